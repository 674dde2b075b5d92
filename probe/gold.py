"""Which files are meant, and their lines; whatever does not fit is one line that names the file and the line."""

import glob
import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from data.links import Span, word_pieces
from model.transformer import Block, Transformer
from probe.scores import text_batches
from probe.statistics import clustered
from probe.subject import Report, Subject, between, cover, coverage_line, markdown_table, percent


def find_files(path: str, endings: Sequence[str]) -> list[Path]:
    """Return the files meant by a file, a folder, a glob, or several of them parted by commas, in order of name.

    Args:
        path: as the user wrote it.
        endings: of the files that this test reads, the only ones taken from a folder.

    Raises:
        FileNotFoundError: nothing is there.
        ValueError: a file has another ending, or is one in name only, as a pipe is.

    """
    found: list[Path] = []
    for part in path.split(","):
        here = Path(os.path.expanduser(part.strip()))  # of nobody's home: as it stands, and so not there
        if here.is_dir():
            some = sorted(file for file in here.iterdir() if file.suffix in endings)
        else:
            some = [here] if here.is_file() else sorted(Path(name) for name in glob.glob(str(here)))
        if not part.strip() or not some:
            raise FileNotFoundError(f"path: no file of {' or '.join(endings)} at {part.strip() or 'an empty name'}")
        found += some
    for file in found:
        if file.suffix not in endings:
            raise ValueError(f"path: {file} is not one of {', '.join(endings)}, which this task reads")
        if file.exists() and not file.is_file():  # to open a pipe is to wait for whoever writes to it
            raise ValueError(f"path: {file} is no regular file: write the lines to one and give that")
    return list(dict.fromkeys(found))


def read_lines(file: Path) -> list[tuple[int, str]]:
    """Return (number, line) of the lines that are not blank; ValueError where there is none or it is no UTF-8 text."""
    try:
        text = file.read_text(encoding="utf-8-sig")  # with its mark or without
    except UnicodeDecodeError as error:
        raise ValueError(f"{file} is not UTF-8 text: {error.reason} at byte {error.start}") from None
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    if not lines:
        raise ValueError(f"{file} is empty")
    return lines


def read_objects(file: Path) -> list[tuple[int, dict[str, Any]]]:
    """Return (number, object) of each line of a .jsonl file; ValueError naming the line that holds none."""
    found = []
    for number, line in read_lines(file):
        try:
            value = json.loads(line)
        except ValueError as error:
            raise ValueError(f"{file} line {number}: not JSON: {error}") from None
        if not isinstance(value, dict):
            raise ValueError(f"{file} line {number}: not a JSON object")
        found.append((number, value))
    return found


def field(value: dict[str, Any], name: str, kind: type, where: str) -> Any:
    """Return value[name]; ValueError, beginning with `where`, unless it is there and of `kind`."""
    if name not in value:
        raise ValueError(f"{where}: no field {name}")
    found = value[name]
    if not isinstance(found, kind) or isinstance(found, bool):
        raise ValueError(f"{where}: {name} is not {_KINDS[kind]}")
    return found


_KINDS = {str: "a text", int: "a whole number", list: "a list"}


@dataclass(frozen=True, slots=True)
class Anchor:
    """One published figure."""

    name: str  # of what was scored
    share: float  # right, 0 to 1
    source: str  # author, year, table or file


_BLIMP = "Warstadt et al. 2020, BLiMP, raw_results/summary/models_summary.jsonl"


_HUMAN = "Warstadt et al. 2020, BLiMP, raw_results/summary/human_validation_summary.csv"


_ZORRO = "Huebner et al. 2021, Zorro"


# Paradigm: 5-gram, LSTM, Transformer-XL, GPT-2, people; full sentences, 1,000 pairs each.
_PARADIGMS = {
    "anaphor_gender_agreement": (0.439, 0.882, 0.912, 0.994, 0.96),
    "anaphor_number_agreement": (0.519, 0.952, 0.970, 0.992, 0.99),
    "principle_A_c_command": (0.578, 0.588, 0.608, 0.737, 0.86),
    "principle_A_case_1": (1.0, 1.0, 1.0, 1.0, 0.98),
    "principle_A_case_2": (0.489, 0.873, 0.953, 0.948, 0.96),
    "principle_A_domain_1": (0.952, 0.983, 0.991, 0.984, 0.95),
    "principle_A_domain_2": (0.564, 0.683, 0.697, 0.775, 0.75),
    "principle_A_domain_3": (0.522, 0.552, 0.600, 0.754, 0.829),
    "principle_A_reconstruction": (0.404, 0.464, 0.379, 0.468, 0.78),
}


_READERS = ("5-gram", "LSTM", "Transformer-XL", "GPT-2", "people")


def anchors_of(name: str) -> tuple[Anchor, ...]:
    """Return what is published of a file of minimal pairs, by its name without ending; () where nothing is known."""
    if name in _PARADIGMS:
        shares = zip(_READERS, _PARADIGMS[name], strict=True)
        return tuple(Anchor(who, share, _HUMAN if who == "people" else _BLIMP) for who, share in shares)
    if name == "anaphor_agreement-pronoun_gender":
        return (Anchor("RoBERTa-base", 0.910, _ZORRO),)
    return ()


# 8,896 pronouns of all 100 novels, the mention nearest to each that is no pronoun itself.
LINKS = (Anchor("nearest nominal mention, all 100 novels", 0.349, "counted in LitBank, Bamman et al. 2020"),)


ENDINGS = (".jsonl",)


# A mention of one of these words alone is a pronoun, every other is nominal. Of the same line: of one person.
_PERSONS = (
    "i me my mine myself",
    "you your yours yourself yourselves ye thou thee thy thine thyself",
    "he him his himself",
    "she her hers herself",
    "it its itself",
    "we us our ours ourselves",
    "they them their theirs themselves",
)


PERSON = {form: line for line in _PERSONS for form in line.split()}


QUESTIONS = {
    "any mention": "all mentions before the pronoun, pronouns among them",
    "nominal mentions": "names and nouns alone, where one of them is an antecedent",
}


AGREEING = "same person"  # a rule that knows agreement: shown beside, never counted as knowing nothing


@dataclass(frozen=True, slots=True)
class Row:
    """One pronoun of a document."""

    doc: str
    words: tuple[str, ...]  # up to and including the pronoun, which is the last
    mentions: tuple[Span, ...]  # words [start, end), all before the pronoun
    gold: tuple[bool, ...]  # of each mention, whether it is an antecedent


def read_rows(file: Path) -> list[Row]:
    """Read the rows of a .jsonl file; ValueError naming the line and what is wrong with it."""
    rows = []
    for number, value in read_objects(file):
        where = f"{file} line {number}"
        doc, context = field(value, "doc", str, where), field(value, "context", list, where)
        at = field(value, "pron_pos", int, where)
        if not all(isinstance(word, str) and word.strip() == word != "" for word in context):
            raise ValueError(f"{where}: context is not a list of words")
        if not 0 <= at < len(context):
            raise ValueError(f"{where}: pron_pos is {at}, and context has {len(context)} words")
        right = [_span(one, at, "antecedents", where) for one in field(value, "antecedents", list, where)]
        wrong = [_span(one, at, "other_mentions", where) for one in field(value, "other_mentions", list, where)]
        if not right:
            raise ValueError(f"{where}: antecedents is empty")
        gold = (True,) * len(right) + (False,) * len(wrong)
        rows.append(Row(doc, tuple(context[: at + 1]), (*right, *wrong), gold))
    return rows


def _span(value: Any, pronoun: int, name: str, where: str) -> Span:
    """Return [start, end) of a mention; what follows in the list (its cluster) is not needed."""
    numbers = value[:2] if isinstance(value, list) else []
    if len(numbers) < 2 or not all(isinstance(one, int) and not isinstance(one, bool) for one in numbers):
        raise ValueError(f"{where}: {name} holds {value!r}, which is not [start, end)")
    start, end = numbers
    if not 0 <= start < end <= pronoun:
        raise ValueError(f"{where}: {name} holds [{start}, {end}), which is not a span before the pronoun {pronoun}")
    return start, end


def prose(words: Sequence[str]) -> tuple[str, list[Span]]:
    """Write words as prose is written, and return where each stands.

    Treebank tokens stand apart ("Hall , in"); a model of prose has read "Hall, in". No space stands before closing
    marks and parts of words ('s, n't), none after opening ones. A straight quote closes where one is open; the first
    one closes where it follows a mark and the sentence goes on in small letters.
    """
    text, spans, glued, open_quote = "", [], True, False
    for i, word in enumerate(words):
        quote, closing = word == '"', word in _CLOSING or word.lower() in _PARTS
        if quote:
            if i == 0 or '"' not in words[:i]:
                after = words[i + 1] if i + 1 < len(words) else '"'
                open_quote = i > 0 and words[i - 1] in _BEFORE_CLOSING and (after[0].islower() or after == '"')
            closing, open_quote = open_quote, not open_quote
        text += "" if glued or closing else " "
        spans.append((len(text), len(text) + len(word)))
        text += word
        glued = word in _OPENING or (quote and open_quote)
    return text, spans


_CLOSING = frozenset(", . ; : ! ? ) ] \u201d \u2019 ... \u2026 %".split())


_OPENING = frozenset("( [ \u201c \u2018".split())


_PARTS = frozenset("'s 'm 'd 'll 've 're n't \u2019s \u2019m \u2019d \u2019ll \u2019ve \u2019re n\u2019t".split())


_BEFORE_CLOSING = frozenset(", . ! ? ; -- \u2014".split())


@dataclass(frozen=True, slots=True)
class Item:
    """A row that can be asked, with what the rules look at. W candidate words, in order."""

    doc: str
    choice: "Choice"
    mention: tuple[int, ...]  # [W] which mention each word belongs to
    nominal: tuple[bool, ...]  # [W] whether that mention is a name or a noun
    same: tuple[bool, ...]  # [W] whether the mention is the pronoun's own word
    agrees: tuple[bool, ...]  # [W] whether it is a pronoun of the same person
    named: tuple[bool, ...]  # [W] whether it begins with a capital letter, as names do


def make_item(subject: Subject, row: Row) -> Item | str:
    """Return the row in the model's tokens, or the reason why it is left out."""
    text, spans = prose(row.words)
    pronoun = row.words[-1].lower()
    owner = owners(row.mentions, len(row.words))
    candidates = [i for i, mention in enumerate(owner) if mention is not None]
    of = [mention for mention in owner if mention is not None]
    choice = cut(subject, text, [spans[i] for i in candidates], [row.gold[one] for one in of], spans[-1])
    if isinstance(choice, str):
        return choice
    n_lost = len(of) - len(choice.words)  # words cut off at the left
    of = of[n_lost:]
    if not any(choice.gold):
        return "every antecedent is made of other mentions"
    if all(choice.gold):
        return "no other mention to choose"
    alone = [row.words[row.mentions[one][0]].lower() for one in of]
    single = [row.mentions[one][1] - row.mentions[one][0] == 1 for one in of]
    person = [PERSON.get(word) if short else None for word, short in zip(alone, single, strict=True)]
    return Item(
        row.doc,
        choice,
        tuple(of),
        tuple(one is None for one in person),
        tuple(short and word == pronoun for word, short in zip(alone, single, strict=True)),
        tuple(one is not None and one == PERSON.get(pronoun) for one in person),
        tuple(row.words[row.mentions[one][0]][0].isupper() for one in of),
    )


def rule_hits(item: Item, asked: Sequence[bool]) -> dict[str, float]:
    """Return what each rule gets of one item: 1 where the mention it takes is an antecedent.

    Args:
        item: to be asked.
        asked: [W] the words that may be chosen.

    """
    every = [i for i in range(len(asked)) if asked[i]]
    gold = item.choice.gold

    def nearest(*preferences: Sequence[bool]) -> float:
        for preferred in preferences:
            if some := [i for i in every if preferred[i]]:
                return float(gold[some[-1]])
        return float(gold[every[-1]])

    mentions = {item.mention[i]: gold[i] for i in every}
    return {
        "nearest": nearest(),
        "nearest nominal": nearest(item.nominal),
        "nearest name": nearest(
            [one and other for one, other in zip(item.named, item.nominal, strict=True)], item.nominal
        ),
        "first": float(gold[every[0]]),
        "same word": nearest(item.same),
        "uniform": sum(mentions.values()) / len(mentions),
        AGREEING: nearest(item.agrees, item.nominal),
    }


def ask(subject: Subject, items: Sequence[Item]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Ask every head both questions; return the results by question and a row per question and head."""
    config = subject.config
    docs = np.array([item.doc for item in items])
    width = max(len(item.choice.words) for item in items)
    gold = _array([item.choice.gold for item in items], width)
    there = _array([[True] * len(item.choice.words) for item in items], width)
    nominal = _array([item.nominal for item in items], width)
    some = {
        "any mention": (there, np.ones(len(items), dtype=bool)),
        "nominal mentions": (nominal, ((gold & nominal).any(1) & (nominal & ~gold).any(1))),
    }
    found: dict[str, list[np.ndarray]] = {name: [] for name in some}
    for model in (subject.model, *(subject.untrained(i) for i in range(config.n_untrained))):
        scores = word_scores(model, [item.choice for item in items], config.tokens_per_batch)
        for name, (asked, take) in some.items():
            found[name].append(hits(scores[take], gold[take], asked[take]))
    results: dict[str, Any] = {}
    rows: list[dict[str, Any]] = []
    for name, (asked, take) in some.items():
        if not take.any():
            continue
        kept = [(item, asked[i][: len(item.mention)]) for i, item in enumerate(items) if take[i]]
        every = [rule_hits(item, open_) for item, open_ in kept]
        rules = {rule: np.array([one[rule] for one in every]) for rule in every[0]}
        if name == "nominal mentions":  # of names and nouns alone the nearest is what the other rules take too
            rules = {rule: rules[rule] for rule in ("nearest nominal", "nearest name", "first", "uniform")}
        beside = {rule: rules.pop(rule) for rule in (AGREEING,) if rule in rules}
        results[name], of_heads = _question(found[name], rules, beside, docs[take], config.n_bootstrap, config.seed)
        rows += [{"question": name, **row} for row in of_heads]
    return results, rows


def _question(
    found: Sequence[np.ndarray],
    rules: dict[str, np.ndarray],
    beside: dict[str, np.ndarray],
    docs: np.ndarray,
    n_bootstrap: int,
    seed: int,
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Choose on one half and test on the other, and the other way round as a check."""
    model, *untrained = found
    first = halves(docs, seed)
    if first.all() or not first.any():
        return {"n": len(docs), "n_documents": 1, "tested": None, "reversed": None}, []
    both = {
        name: held_out(model, rules, untrained, docs, half, n_bootstrap, seed, beside)
        for name, half in (("tested", first), ("reversed", ~first))
    }
    chosen = choose(model[first])
    halves_mean = [model[half].mean(0, dtype=np.float64) for half in (first, ~first)]
    rows = [
        {
            "layer": layer,
            "head": head,
            "chosen_half": round(float(halves_mean[0][layer, head]), 6),
            "tested_half": round(float(halves_mean[1][layer, head]), 6),
            "chosen": int((layer, head) == chosen),
        }
        for layer in range(model.shape[1])
        for head in range(model.shape[2])
    ]
    return {"n": len(docs), "n_documents": len(np.unique(docs)), **both}, rows


def _array(rows: Sequence[Sequence[bool]], width: int) -> np.ndarray:
    """Return [N, W] of rows of different lengths, False behind."""
    found = np.zeros((len(rows), width), dtype=bool)
    for i, row in enumerate(rows):
        found[i, : len(row)] = row
    return found


def links(subject: Subject, path: str) -> Report:
    """Ask every head about the rows of all files meant by `path`."""
    rows = [row for file in find_files(path, ENDINGS) for row in read_rows(file)]
    made = [make_item(subject, row) for row in rows]
    items = [one for one in made if isinstance(one, Item)]
    left_out = Counter(one for one in made if isinstance(one, str))
    covered = cover(subject, _once(rows))
    results, heads = ask(subject, items) if items else ({}, [])
    lines = [coverage_line(subject, covered, f"{len(rows):,} pronouns in {len({row.doc for row in rows})} documents")]
    lines += [f"left out: {n:,} rows: {reason}" for reason, n in left_out.most_common()]
    for name, one in results.items():
        lines += ["", *_lines(name, one)]
    if not items:
        lines += ["", "no row is left to ask"]
    lines += ["", *_LEGEND]
    about = {
        "n_rows": len(rows),
        "left_out": dict(left_out),
        "coverage": asdict(covered),
        "questions": results,
        "anchors": [asdict(one) for one in LINKS],
    }
    return Report(about, lines, heads)


def _once(rows: Sequence[Row]) -> list[str]:
    """Return every fourth text of a document: contexts overlap, and all of them would count the same words over."""
    kept: Counter[str] = Counter()
    texts = []
    for row in rows:
        if kept[row.doc] % 4 == 0:
            texts.append(prose(row.words)[0])
        kept[row.doc] += 1
    return texts


def _lines(name: str, one: dict[str, Any]) -> list[str]:
    title = f"{name} ({QUESTIONS[name]}): {one['n']:,} pronouns, {one['n_documents']} documents"
    if one["tested"] is None:
        return [title, "one document cannot be parted into a half to choose on and a half to test on"]
    lines = [title]
    rows = []
    for what, label in (("tested", "tested on half 2"), ("reversed", "the other way round")):
        found = one[what]
        untrained = found["untrained"]
        rows += [
            [label, f"head L{found['layer']}H{found['head']}", percent(found["accuracy"]), between(found["interval"])]
            + ["-", "-"]
        ]
        for rule, share in {**found["rules"], "best untrained": max(untrained)}.items():
            difference = found["differences"][rule]
            mean = f"{100 * difference['mean']:+.1f}"
            rows.append([label, rule, percent(share), "-", mean, between(difference["interval"])])
        for rule, known in found["beside"].items():
            mean = f"{100 * known['mean']:+.1f}"
            cells = [percent(known["accuracy"]), "-", mean, between(known["interval"])]
            rows.append([label, f"{rule} (knows agreement)", *cells])
    header = ["", "who", "right %", "95 %", "head minus it", "95 %"]
    lines += markdown_table(header, rows)
    found = one["tested"]
    lines.append(f"head L{found['layer']}H{found['head']}: {found['verdict']}")
    lines += [f"  why not: {reason}" for reason in found["reasons"]]
    if found["verdict"] == "established":
        lines += [
            f"  {rule}, which knows agreement and no more, is not beaten: this may be all that the head knows"
            for rule, known in found["beside"].items()
            if known["interval"] is None or known["interval"][0] <= 0
        ]
    return lines


_LEGEND = (
    "right: the mention with the largest weight, by its largest word, is one of the antecedents",
    "the head is chosen on half of the documents and tested once on the other half; intervals resample documents",
    "established: the difference to every rule and to the best untrained model has an interval above 0, no less",
    "same word: the nearest mention that is the same pronoun, else the nearest; a head that matches words gets it",
    f"published: {LINKS[0].name} {percent(LINKS[0].share)} % of 8,896 ({LINKS[0].source})",
)


@dataclass(frozen=True, slots=True)
class Choice:
    """One pronoun in the tokens of one tokenizer, and the words of the mentions before it. W words."""

    tokens: tuple[int, ...]  # END first, up to and including the pronoun's last piece
    words: tuple[tuple[int, ...], ...]  # [W] the positions in `tokens` of each word's pieces
    gold: tuple[bool, ...]  # [W] of an antecedent


def owners(mentions: Sequence[Span], n_words: int) -> list[int | None]:
    """Return, for each word, the innermost mention that holds it; None where none does.

    Args:
        mentions: words [start, end) of each.
        n_words: of the text.

    """
    owner: list[int | None] = [None] * n_words
    for i in sorted(range(len(mentions)), key=lambda i: (mentions[i][0] - mentions[i][1], mentions[i][0], -i)):
        owner[slice(*mentions[i])] = [i] * (mentions[i][1] - mentions[i][0])  # shorter ones come later
    return owner


def cut(subject: Subject, text: str, spans: Sequence[Span], gold: Sequence[bool], needed: Span) -> Choice | str:
    """Return the words `spans` of `text` as a choice at the word `needed`, or the reason why there is none.

    What is longer than the context is cut at the left, as long as that takes no word of an antecedent.

    Args:
        subject: whose tokenizer and context it must fit.
        text: to be read up to the word `needed`.
        spans: characters of each candidate word, all before `needed`.
        gold: whether each belongs to an antecedent.
        needed: characters of the pronoun.

    """
    ids, offsets = subject.encode(text[: needed[1]])
    try:
        *words, pronoun = word_pieces(text, offsets, [*spans, needed])
    except ValueError:
        return "a word shares a token with its neighbour"
    stop = pronoun[-1] + 1
    start = max(0, stop - subject.limit)
    if start > pronoun[0] or any(right and word[0] < start for word, right in zip(words, gold, strict=True)):
        return "an antecedent lies outside the context"
    kept = [i for i, word in enumerate(words) if word[0] >= start]
    return Choice(
        (subject.end, *ids[start:stop]),
        tuple(tuple(piece - start + 1 for piece in words[i]) for i in kept),
        tuple(gold[i] for i in kept),
    )


@torch.no_grad()
def word_scores(model: Transformer, choices: Sequence[Choice], tokens_per_batch: int) -> np.ndarray:
    """Return the score of every word for every head, [N, L, H, W] float32: the LSE of its pieces' scores.

    The softmax over all keys is one denominator for the whole row, so the order of these is the order of the weights.
    Missing words are -inf. A block that adds nothing, as all of a model that was never trained, is not computed.
    """
    width = max((len(choice.words) for choice in choices), default=1)
    shape = (len(choices), model.config.n_layer, model.config.n_head, width)
    found = np.full(shape, -np.inf, dtype=np.float32)
    device = model.token_embedding.weight.device
    blocks = list(model.layers())
    last = max((i for i, block in enumerate(blocks) if block.adds()), default=-1)
    for members, place, tokens in text_batches([choice.tokens for choice in choices], tokens_per_batch):
        some = [choices[i] for i in members]
        keys, index = _keys(some)
        rows = torch.tensor(place, device=device)
        query = torch.tensor([len(choice.tokens) - 1 for choice in some], device=device)
        keys, flat = keys.to(device), index.flatten(1)[:, None].to(device)
        x = model.embed(tokens.to(device))
        for layer, block in enumerate(blocks):
            scores = F.pad(_scores(block, x, rows, query, keys), (0, 1), value=float("-inf"))
            of_pieces = scores.gather(-1, flat.expand(-1, scores.shape[1], -1)).unflatten(-1, index.shape[1:])
            found[members, layer, :, : index.shape[1]] = of_pieces.logsumexp(-1).cpu().numpy()
            if layer < min(last + 1, len(blocks) - 1) and block.adds():
                x = block(x)
    return found


def _keys(choices: Sequence[Choice]) -> tuple[Tensor, Tensor]:
    """Return the positions [N, M] of all pieces of each choice, and where among the M each word's are: [N, W, P].

    Where there is no piece the position is 0 and the place M.
    """
    flat = [[piece for word in choice.words for piece in word] for choice in choices]
    n_keys = max(1, *map(len, flat)) if flat else 1
    n_words = max((len(choice.words) for choice in choices), default=1)
    n_pieces = max((len(word) for choice in choices for word in choice.words), default=1)
    keys = np.zeros((len(choices), n_keys), dtype=np.int64)
    index = np.full((len(choices), n_words, n_pieces), n_keys)
    for i, choice in enumerate(choices):
        keys[i, : len(flat[i])] = flat[i]
        place = 0
        for j, word in enumerate(choice.words):
            index[i, j, : len(word)] = range(place, place + len(word))
            place += len(word)
    return torch.from_numpy(keys), torch.from_numpy(index)


def _scores(block: Block, x: Tensor, rows: Tensor, query: Tensor, keys: Tensor) -> Tensor:
    """Return [N, H, M] what each query thinks of a few keys before it, as `Attention.scores` does of all.

    Args:
        block: of one layer.
        x: [B, T, D] the stream that enters it.
        rows: [N] the batch row of each query.
        query: [N] its position.
        keys: [N, M] positions, none after the query.

    """
    attention, heads = block.attention, (block.attention.n_head, -1)
    q = attention.query(block.norm_1(x[rows, query]))[:, None].unflatten(-1, heads).transpose(1, 2)  # [N, H, 1, K]
    k = attention.key(block.norm_1(x[rows[:, None], keys])).unflatten(-1, heads).transpose(1, 2)  # [N, H, M, K]
    if attention.turned:
        q = attention.turn(q, query[:, None, None])
        k = attention.turn(k, keys[:, None])
    return attention.judge(q, k, query[:, None], keys)[:, :, 0]


def hits(scores: np.ndarray, gold: np.ndarray, asked: np.ndarray) -> np.ndarray:
    """Return whether each head's largest word is an antecedent's, [N, L, H] float32; ties share the hit.

    Args:
        scores: [N, L, H, W].
        gold: [N, W] True for words of an antecedent.
        asked: [N, W] True for words that may be chosen; every item has one.

    """
    open_only = np.where(asked[:, None, None], scores, -np.inf)
    largest = open_only == open_only.max(-1, keepdims=True)
    return ((largest & gold[:, None, None]).sum(-1) / largest.sum(-1)).astype(np.float32)


def halves(groups: np.ndarray, seed: int) -> np.ndarray:
    """Return [N] True for the items of one half of the groups, drawn by lot; the other half is the rest."""
    names = np.unique(groups)
    chosen = np.random.default_rng(seed).permutation(names)[: len(names) // 2]
    return np.isin(groups, chosen)


def choose(found: np.ndarray) -> tuple[int, int]:
    """Return the (layer, head) of largest mean hit; of equals the first."""
    mean = found.mean(0, dtype=np.float64)
    layer, head = np.unravel_index(int(mean.argmax()), mean.shape)
    return int(layer), int(head)


def held_out(
    found: np.ndarray,
    rules: Mapping[str, np.ndarray],
    untrained: Sequence[np.ndarray],
    groups: np.ndarray,
    chosen_on: np.ndarray,
    n_bootstrap: int,
    seed: int,
    beside: Mapping[str, np.ndarray] = MappingProxyType({}),
) -> dict[str, Any]:
    """Choose a head on one half of the groups and test it once on the other, beside everything that knows nothing.

    Args:
        found: [N, L, H] hits of the trained model.
        rules: name: [N] hits of a rule that was not chosen.
        untrained: [N, L, H] hits of each untrained model; its best head is chosen in the same way.
        groups: [N] what is resampled whole: the document.
        chosen_on: [N] True for the half to choose on.
        n_bootstrap: resamplings behind each interval.
        seed: of the resamplings.
        beside: name: [N] hits of a rule that does know something; the head is held against it, but not judged by it.

    Returns:
        "verdict" is "established" if and only if the interval of the difference to every rule, and to the best of the
        untrained models, lies above 0; "reasons" says what is missing.

    """
    tested = ~chosen_on
    layer, head = choose(found[chosen_on])
    values = found[tested][:, layer, head].astype(float)
    nothing = [one[tested][(slice(None), *choose(one[chosen_on]))].astype(float) for one in untrained]
    best = max(nothing, key=lambda one: one.mean())
    against = {name: rule[tested].astype(float) for name, rule in rules.items()} | {"best untrained": best}
    settings = groups[tested], n_bootstrap, seed

    def less(other: np.ndarray) -> dict[str, Any]:
        return {"mean": float((values - other).mean()), "interval": clustered(values - other, *settings)}

    differences = {name: less(other) for name, other in against.items()}
    reasons = []
    for name, difference in differences.items():
        interval = difference["interval"]
        if interval is None or interval[0] <= 0:
            why = "too few documents" if interval is None else "the interval of the difference to it is not above 0"
            reasons.append(f"{name}: {why}")
    known = {name: rule[tested] for name, rule in beside.items()}
    return {
        "layer": layer,
        "head": head,
        "beside": {name: {"accuracy": float(rule.mean()), **less(rule)} for name, rule in known.items()},
        "chosen_with": float(found[chosen_on][:, layer, head].mean(dtype=np.float64)),
        "n": int(tested.sum()),
        "n_groups": len(np.unique(groups[tested])),
        "accuracy": float(values.mean()),
        "interval": clustered(values, *settings),
        "rules": {name: float(rule[tested].mean()) for name, rule in rules.items()},
        "untrained": [float(one.mean()) for one in nothing],
        "differences": differences,
        "verdict": "not established" if reasons else "established",
        "reasons": reasons,
    }
