"""Gold coreference links of English prose (LitBank): does a head look from a pronoun at a mention of its antecedent?

The head that is best on a random half of the documents is tested once on the other half, against baseline rules and
untrained models. Attention only: nothing here is causal.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from data.links import Span, token_spans
from data.natural import CLASSES, Prefix, known_class, pronoun_forms
from model.observe import ObservableModel
from probe.config import ProbeConfig
from probe.external import (
    EvaluatedModel,
    Report,
    coverage,
    coverage_line,
    find_files,
    markdown_table,
    percent,
    percent_interval,
    read_lines,
    read_objects,
)
from probe.scores import text_batches
from probe.statistics import cluster_interval, largest, random_half

# Pronouns of one person per line. A mention that is one of these words is a pronoun, every other mention is nominal.
_PERSONS = (
    "i me my mine myself",
    "you your yours yourself yourselves ye thou thee thy thine thyself",
    "he him his himself",
    "she her hers herself",
    "it its itself",
    "we us our ours ourselves",
    "they them their theirs themselves",
)
PERSON = {word: number for number, words in enumerate(_PERSONS) for word in words.split()}
# Per question what may be chosen, the field that such a word has, and the rules (default: all). Without pronouns the
# other rules equal "nearest".
_QUESTIONS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "any mention": ("all mentions before the pronoun", "positions", ()),
    "nominal mentions": ("names and nouns only", "nominal", ("nearest", "nearest name", "first", "uniform")),
}
AGREEMENT_RULE = "same person"  # uses agreement, so it is reported for comparison and not required to be beaten
PUBLISHED = "nearest nominal mention, all 100 novels: 34.9 % of 8,896 pronouns (counted in LitBank, Bamman et al. 2020)"
_ARTICLES = frozenset("the a an his her its their my our your this that these those".split())
_CLOSING = frozenset(", . ; : ! ? ) ] \u201d \u2019 ... \u2026 %".split())
_OPENING = frozenset("( [ \u201c \u2018".split())
_CLITICS = frozenset("'s 'm 'd 'll 've 're n't \u2019s \u2019m \u2019d \u2019ll \u2019ve \u2019re n\u2019t".split())


@dataclass(frozen=True, slots=True)
class Row:
    """One pronoun of a document."""

    doc: str
    words: Sequence[str]  # up to and including the pronoun
    mentions: Sequence[Span]  # words [start, end), all before the pronoun
    gold: Sequence[bool]  # per mention: True for an antecedent
    entities: Sequence[str] = ()  # per mention: its entity


class Candidate(NamedTuple):
    """One word of a mention before the pronoun."""

    positions: tuple[int, ...]  # token positions
    mention: int
    gold: bool
    nominal: bool  # the mention is a name or a noun
    name: bool  # nominal, with a capital first letter
    same_word: bool  # the mention is the pronoun's own word form
    same_person: bool  # the mention is a pronoun of the same person


@dataclass(frozen=True, slots=True)
class Item:
    """A row in the tokens of one model; the query is the last token."""

    doc: str
    tokens: tuple[int, ...]
    candidates: tuple[Candidate, ...]  # in text order


def read_rows(file: Path) -> list[Row]:
    """Read the rows of a .jsonl file; ValueError names the line and the field that is wrong."""
    rows = []
    fields = {"doc": str, "context": list, "pron_pos": int, "antecedents": list, "other_mentions": list}
    for where, value in read_objects(file, fields).items():
        words, pronoun = value["context"], value["pron_pos"]
        if not all(isinstance(word, str) and word.strip() == word != "" for word in words):
            raise ValueError(f"{where}: context is not a list of words")
        if not 0 <= pronoun < len(words):
            raise ValueError(f"{where}: pron_pos is {pronoun}, but context has {len(words)} words")
        antecedents, other_mentions = (_spans(value, name, where) for name in ("antecedents", "other_mentions"))
        if not antecedents:
            raise ValueError(f"{where}: antecedents is empty")
        gold = [True] * len(antecedents) + [False] * len(other_mentions)
        entities = ["antecedent"] * len(antecedents)
        for i, mention in enumerate(value["other_mentions"]):
            entities.append(str(mention[2]) if len(mention) > 2 else f"mention {i}")
        rows.append(Row(value["doc"], words[: pronoun + 1], antecedents + other_mentions, gold, entities))
    return rows


def read_passages(file: Path) -> list[str]:
    """Reads the column Text of a .tsv file in the format of GAP (Webster et al. 2018); ValueError if it has none."""
    header, *rows = read_lines(file).items()
    columns = header[1].split("\t")
    if "Text" not in columns:
        raise ValueError(f"{file}: no column Text")
    passages = []
    for where, line in rows:
        cells = line.rstrip("\r").split("\t")
        if len(cells) != len(columns):
            raise ValueError(f"{where}: {len(cells)} cells, but the first line has {len(columns)}")
        passages.append(cells[columns.index("Text")])
    return passages


def _spans(row: dict[str, Any], name: str, where: str) -> list[Span]:
    """Return [start, end) of the mentions in a field; a third entry names the entity."""
    spans = []
    for mention in row[name]:
        span = mention[:2] if isinstance(mention, list) else []
        is_span = len(span) == 2 and all(type(number) is int for number in span)
        if not is_span or not 0 <= span[0] < span[1] <= row["pron_pos"]:
            raise ValueError(f"{where}: {name} contains {mention!r}, which is not [start, end) before the pronoun")
        spans.append((span[0], span[1]))
    return spans


def gold_prefixes(rows: Iterable[Row]) -> list[Prefix]:
    """Returns the rows with a gendered pronoun and entities of both genders as prefixes of the question "gender".

    The class of the pronoun is that of its gold antecedent; the other class are all entities whose pronouns or words
    (data/english.py) have the other gender. Only names and nouns count as mentions. `is_first` is True if no pronoun
    refers to the antecedent earlier in the row. "Her" is left out: its grammatical form needs the next word.
    """
    prefixes = []
    for row in rows:
        forms = pronoun_forms(row.words[-1], "", "gender")
        if forms is None:
            continue
        meant = forms.index(row.words[-1])
        words = defaultdict(list)  # the words of each entity
        for (start, end), entity in zip(row.mentions, row.entities, strict=True):
            words[entity].append(row.words[start:end])
        others = {entity for entity, mentions in words.items() if _gender(mentions) == CLASSES["gender"][1 - meant]}
        text, spans = detokenize(row.words)
        groups, entities = (list[Span](), list[Span]()), ["", ""]
        innermost = innermost_mentions(row.mentions, len(row.words))
        for i, (start, end) in enumerate(row.mentions):
            inner = [word for word in range(start, end) if innermost[word] == i]
            is_pronoun = end - start == 1 and row.words[start].lower() in PERSON
            if not inner or is_pronoun or not (row.gold[i] or row.entities[i] in others):
                continue
            last = next(word for word in inner if word + 1 not in inner)  # the end of the first unbroken run
            side = meant if row.gold[i] else 1 - meant
            groups[side].append((spans[inner[0]][0], spans[last][1]))
            entities[side] = next((w for w in map(str.lower, row.words[inner[0] : last + 1]) if w not in _ARTICLES), "")
        if groups[0] and groups[1]:
            is_first = not any(mention[0].lower() in PERSON for mention in words["antecedent"] if len(mention) == 1)
            before, names = text[: spans[-1][0]], (entities[0], entities[1])
            mentions = (tuple(sorted(groups[0])), tuple(sorted(groups[1])))
            prefixes.append(Prefix(row.doc, "gender", before, forms, meant, "", mentions, names, is_first))
    return prefixes


def _gender(mentions: Sequence[Sequence[str]]) -> str:
    """Returns the gender of an entity from its pronouns, otherwise from the words that the lexicon knows; or ""."""
    pronouns = {PERSON.get(mention[0].lower()) for mention in mentions if len(mention) == 1}
    by_pronoun = {name for name, word in (("masculine", "he"), ("feminine", "she")) if PERSON[word] in pronouns}
    known = by_pronoun or {known_class(mention) for mention in mentions} - {""}
    return known.pop() if len(known) == 1 else ""


def detokenize(words: Sequence[str]) -> tuple[str, list[Span]]:
    """Join Treebank tokens as prose ("Hall , in" -> "Hall, in"); return the text and the span of each word.

    Straight quotes open and close alternately.
    """
    text, spans, joins, in_quote = "", [], True, False
    for word in words:
        closes = word in _CLOSING or word.lower() in _CLITICS or (word == '"' and in_quote)
        text += "" if joins or closes else " "
        spans.append((len(text), len(text) + len(word)))
        text += word
        joins = word in _OPENING or (word == '"' and not in_quote)
        in_quote ^= word == '"'
    return text, spans


def innermost_mentions(mentions: Sequence[Span], n_words: int) -> list[int | None]:
    """Return for each word the index of the shortest mention that contains it, None if no mention does."""
    innermost: list[int | None] = [None] * n_words
    for i in sorted(range(len(mentions)), key=lambda i: mentions[i][0] - mentions[i][1]):  # longest first
        innermost[slice(*mentions[i])] = [i] * (mentions[i][1] - mentions[i][0])
    return innermost


def make_item(evaluated: EvaluatedModel, row: Row) -> Item | str:
    """Return the row as the model reads it, or the reason why it is left out.

    A text longer than the context loses its beginning, unless that would remove a word of an antecedent.
    """
    text, spans = detokenize(row.words)
    mention_of = innermost_mentions(row.mentions, len(row.words))
    candidate_words = [i for i, mention in enumerate(mention_of) if mention is not None]
    ids, offsets = evaluated.encode(text)
    try:
        *pieces, pronoun = token_spans(text, offsets, [*(spans[i] for i in candidate_words), spans[-1]])
    except ValueError:
        return "a word shares a token with its neighbour"
    stop = pronoun[-1] + 1
    start = max(0, stop - (evaluated.model.context_length - 1))  # the start token comes first
    candidates = []
    for word, indices in zip(candidate_words, pieces, strict=True):
        positions = tuple(index - start + 1 for index in indices)  # the start token is position 0
        candidate = _candidate(row, mention_of[word] or 0, positions)
        if positions[0] >= 1:
            candidates.append(candidate)
        elif candidate.gold:
            return "an antecedent lies outside the context"
    if not any(candidate.gold for candidate in candidates):
        return "every antecedent consists of other mentions"
    if all(candidate.gold for candidate in candidates):
        return "no other mention to choose"
    return Item(row.doc, (evaluated.start_token, *ids[start:stop]), tuple(candidates))


def _candidate(row: Row, mention: int, positions: tuple[int, ...]) -> Candidate:
    start, end = row.mentions[mention]
    word, pronoun = row.words[start].lower(), row.words[-1].lower()
    person = PERSON.get(word) if end - start == 1 else None
    nominal = person is None
    return Candidate(
        positions=positions,
        mention=mention,
        gold=row.gold[mention],
        nominal=nominal,
        name=nominal and row.words[start][0].isupper(),
        same_word=end - start == 1 and word == pronoun,
        same_person=not nominal and person == PERSON.get(pronoun),
    )


def rule_accuracies(candidates: Sequence[Candidate]) -> dict[str, float]:
    """Return the accuracy of each baseline rule on one item: 1 if the mention it chooses is an antecedent."""

    def last(*features: str) -> float:
        """Return whether the last candidate with the first feature that any candidate has is an antecedent."""
        for feature in features:
            matching = [candidate for candidate in candidates if getattr(candidate, feature)]
            if matching:
                return float(matching[-1].gold)
        return float(candidates[-1].gold)

    mentions = {candidate.mention: candidate.gold for candidate in candidates}
    return {
        "nearest": last(),
        "nearest nominal": last("nominal"),
        "nearest name": last("name", "nominal"),
        "first": float(candidates[0].gold),
        "same word": last("same_word"),
        "uniform": sum(mentions.values()) / len(mentions),
        AGREEMENT_RULE: last("same_person", "nominal"),
    }


def word_scores(model: ObservableModel, items: Sequence[Item], tokens_per_batch: int) -> np.ndarray:
    """Return the log of every head's unnormalised weight on each candidate word, [N, L, H, W], -inf beyond the last.

    The weight of a word is the sum over its tokens.
    """
    n_words = max(len(item.candidates) for item in items)
    result = np.full((len(items), model.n_layer, model.n_head, n_words), -np.inf, dtype=np.float32)
    for members, rows, tokens, query in text_batches([item.tokens for item in items], tokens_per_batch):
        recorded = model.attention_scores(tokens.to(model.device), query[:, None].to(model.device))
        scores = recorded[:, :, :, 0].cpu().numpy()  # [L, B, H, T]
        for i, row in zip(members, rows, strict=True):
            words = [candidate.positions for candidate in items[i].candidates]
            starts = np.cumsum([0, *map(len, words[:-1])])
            of_tokens = scores[:, row][..., np.concatenate(words)]
            result[i, :, :, : len(words)] = np.logaddexp.reduceat(of_tokens, starts, axis=-1)
    return result


def head_accuracies(scores: np.ndarray, gold: np.ndarray, allowed: np.ndarray) -> np.ndarray:
    """Return whether each head's highest-scored word belongs to an antecedent, [N, L, H]; ties count in part.

    `scores` are [N, L, H, W]; `gold` [N, W] is True for words of an antecedent, `allowed` [N, W] for words that may be
    chosen, at least one per item.
    """
    scores = np.where(allowed[:, None, None], scores, -np.inf)
    highest = (scores == scores.max(-1, keepdims=True)) & allowed[:, None, None]
    return (highest & gold[:, None, None]).sum(-1) / highest.sum(-1)


def held_out_test(
    trained: np.ndarray,
    untrained: Sequence[np.ndarray],
    rules: Mapping[str, np.ndarray],
    docs: np.ndarray,
    config: ProbeConfig,
) -> dict[str, Any]:
    """Choose a head on half of the documents `docs` [N] and test it on the other half against every baseline.

    `trained` and each of `untrained` are [N, L, H] accuracies of a model's heads; each model's best head is chosen in
    the same way. `rules` has the accuracy [N] of each rule. "established" is True if the interval of the difference to
    every rule but AGREEMENT_RULE, and to the best untrained model, is above 0. Whole documents are resampled.
    """
    choosing = random_half(docs, config.seed)
    layer, head = largest(trained[choosing].mean(axis=0))
    accuracy = trained[~choosing, layer, head]
    chance = [model[(~choosing, *largest(model[choosing].mean(axis=0)))] for model in untrained]
    compared = {name: rule[~choosing] for name, rule in rules.items()}
    compared["best untrained"] = max(chance, key=lambda values: values.mean())
    settings = docs[~choosing], config.n_bootstrap, config.seed
    baselines = {
        name: {
            "accuracy": float(values.mean()),
            "difference": float((accuracy - values).mean()),
            "difference_interval": cluster_interval(accuracy - values, *settings),
        }
        for name, values in compared.items()
    }
    intervals: list[Any] = [baselines[name]["difference_interval"] for name in baselines if name != AGREEMENT_RULE]
    return {
        "layer": layer,
        "head": head,
        "n": len(accuracy),
        "n_documents": len(np.unique(docs[~choosing])),
        "accuracy": float(accuracy.mean()),
        "interval": cluster_interval(accuracy, *settings),
        "baselines": baselines,
        "established": all(interval is not None and interval[0] > 0 for interval in intervals),
    }


def links(evaluated: EvaluatedModel, path: str) -> Report:
    """Test the heads on the rows of every .jsonl file of `path`."""
    rows = [row for file in find_files(path, (".jsonl",)) for row in read_rows(file)]
    results = [make_item(evaluated, row) for row in rows]
    items = [item for item in results if isinstance(item, Item)]
    left_out = Counter(reason for reason in results if isinstance(reason, str))
    # The contexts of neighbouring pronouns overlap, so every fourth one is enough.
    covered = coverage(evaluated, [detokenize(row.words)[0] for row in rows[::4]])
    questions = ask_questions(evaluated, items) if items else {}
    lines = [coverage_line(evaluated, covered, f"{len(rows):,} pronouns in {len({row.doc for row in rows})} documents")]
    lines += [f"left out: {n:,} rows: {reason}" for reason, n in left_out.most_common()]
    for name, result in questions.items():
        lines += ["", *_question_lines(name, result)]
    lines += ["", *([] if questions else ["no question has items in two documents or more"]), *_LEGEND]
    counts = {"n_rows": len(rows), "left_out": dict(left_out), "coverage": covered}
    return Report(counts | {"questions": questions, "published": PUBLISHED}, lines)


def ask_questions(evaluated: EvaluatedModel, items: Sequence[Item]) -> dict[str, Any]:
    """Return `held_out_test` of both questions; without those that have no items in two documents."""
    config = evaluated.config
    models = [evaluated.model, *(evaluated.untrained(i) for i in range(config.n_untrained))]
    scores = [word_scores(model, items, config.tokens_per_batch) for model in models]
    results = {}
    for name, (_, feature, rule_names) in _QUESTIONS.items():
        gold, allowed = np.zeros((2, len(items), scores[0].shape[-1]), dtype=bool)
        for i, item in enumerate(items):
            gold[i, : len(item.candidates)] = [candidate.gold for candidate in item.candidates]
            allowed[i, : len(item.candidates)] = [bool(getattr(candidate, feature)) for candidate in item.candidates]
        usable = np.flatnonzero((gold & allowed).any(1) & (~gold & allowed).any(1)).tolist()
        docs = np.array([items[i].doc for i in usable])
        if len(set(docs)) < 2:
            continue
        trained, *untrained = (head_accuracies(values[usable], gold[usable], allowed[usable]) for values in scores)
        of_rules = [rule_accuracies([c for c in items[i].candidates if getattr(c, feature)]) for i in usable]
        rules = {rule: np.array([values[rule] for values in of_rules]) for rule in rule_names or of_rules[0]}
        results[name] = held_out_test(trained, untrained, rules, docs, config)
    return results


def _question_lines(name: str, result: dict[str, Any]) -> list[str]:
    head = f"head L{result['layer']}H{result['head']}"
    table = [[head, percent(result["accuracy"]), percent_interval(result["interval"]), "-", "-"]]
    for rule, baseline in result["baselines"].items():
        difference = f"{100 * baseline['difference']:+.1f}", percent_interval(baseline["difference_interval"])
        table.append([rule, percent(baseline["accuracy"]), "-", *difference])
    return [
        f"{name} ({_QUESTIONS[name][0]}): {result['n']:,} pronouns, {result['n_documents']} documents in the test half",
        *markdown_table(("", "right %", "95 %", "head minus it", "95 %"), table),
        f"{head}: {'established' if result['established'] else 'not established'}",
    ]


_LEGEND = (
    "right: the mention with the highest attention weight, by its highest word, is an antecedent",
    "the head is chosen on half of the documents and tested on the other half; intervals resample documents",
    "established: the difference to every rule and to the best untrained model has an interval above 0;",
    f"  {AGREEMENT_RULE} uses agreement and is not required",
    f"published: {PUBLISHED}",
)
