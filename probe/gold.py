"""Annotated English prose for `path=`: rows with gold coreference links (LitBank), and the passages of GAP."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data.links import Span
from data.natural import CLASSES, Prefix, known_class, pronoun_forms
from probe.external import read_lines, read_objects

# Pronouns of one person per line. A mention that is one of these words is a pronoun; all others are names and nouns.
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
    entities: Sequence[str]  # per mention: its entity


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
