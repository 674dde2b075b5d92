"""Annotated English prose for `path=`: rows with gold coreference links (LitBank), and the passages of GAP."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data.errors import UserError
from data.links import Span
from data.natural import CLASSES, Prefix, known_class, pronoun_forms
from data.test_set_files import load_lines, load_objects

# A mention that is one of these words is a pronoun; all others are names and nouns.
_MASCULINE = frozenset("he him his himself".split())
_FEMININE = frozenset("she her hers herself".split())
_OTHER_PRONOUNS = (
    "i me my mine myself we us our ours ourselves you your yours yourself yourselves ye thou thee thy thine thyself "
    "it its itself they them their theirs themselves"
)
_PRONOUNS = _MASCULINE | _FEMININE | frozenset(_OTHER_PRONOUNS.split())
_ARTICLES = frozenset("the a an his her its their my our your this that these those".split())
_CLOSING = frozenset(", . ; : ! ? ) ] \u201d \u2019 ... \u2026 %".split())
_OPENING = frozenset("( [ \u201c \u2018".split())
_CLITICS = frozenset("'s 'm 'd 'll 've 're n't \u2019s \u2019m \u2019d \u2019ll \u2019ve \u2019re n\u2019t".split())
ANTECEDENT = "antecedent"  # an entity


@dataclass(frozen=True, slots=True)
class GoldRow:
    """One pronoun of a document."""

    doc: str
    words: Sequence[str]  # up to and including the pronoun
    mentions: Sequence[Span]  # words [start, end), all before the pronoun
    entities: Sequence[str]  # per mention: its entity; ANTECEDENT for those that the pronoun refers to


@dataclass(frozen=True, slots=True)
class _Line:
    """A line of a file with gold links. A mention is [start, end) or [start, end, entity]."""

    doc: str
    context: list
    pron_pos: int
    antecedents: list
    other_mentions: list


def load_gold_rows(file: Path) -> list[GoldRow]:
    """Return the rows of a .jsonl file; UserError names the line and the field that is wrong."""
    rows = []
    for where, line in load_objects(file, _Line).items():
        # Words are words, and every mention is before the pronoun.
        if not all(isinstance(word, str) and word.strip() == word != "" for word in line.context):
            raise UserError(f"{where}: context is not a list of words")
        if not 0 <= line.pron_pos < len(line.context):
            raise UserError(f"{where}: pron_pos is {line.pron_pos}, but context has {len(line.context)} words")
        antecedents = _spans(line.antecedents, line.pron_pos, f"{where}: antecedents")
        distractors = _spans(line.other_mentions, line.pron_pos, f"{where}: other_mentions")
        if not antecedents:
            raise UserError(f"{where}: antecedents is empty")

        # The antecedents are one entity; other mentions may name theirs.
        entities = [ANTECEDENT] * len(antecedents)
        for i, mention in enumerate(line.other_mentions):
            entities.append(str(mention[2]) if len(mention) > 2 else f"mention {i}")
        words = line.context[: line.pron_pos + 1]
        rows.append(GoldRow(line.doc, words, antecedents + distractors, entities))
    return rows


def _spans(mentions: Sequence[Any], pronoun: int, where: str) -> list[Span]:
    """Return [start, end) of the mentions in a field; UserError for one that is not before the pronoun."""
    spans = []
    for mention in mentions:
        span = mention[:2] if isinstance(mention, list) else []
        is_span = len(span) == 2 and all(type(number) is int for number in span)
        if not is_span or not 0 <= span[0] < span[1] <= pronoun:
            raise UserError(f"{where} contains {mention!r}, which is not [start, end) before the pronoun")
        spans.append((span[0], span[1]))
    return spans


def load_passages(file: Path) -> list[str]:
    """Return the column Text of a .tsv file in the format of GAP (Webster et al. 2018); UserError if it has none."""
    # The first line names the columns.
    header, *rows = load_lines(file).items()
    columns = header[1].split("\t")
    if "Text" not in columns:
        raise UserError(f"{file}: no column Text")
    passages = []
    for where, line in rows:
        cells = line.rstrip("\r").split("\t")
        if len(cells) != len(columns):
            raise UserError(f"{where}: {len(cells)} cells, but the first line has {len(columns)}")
        passages.append(cells[columns.index("Text")])
    return passages


def gold_prefixes(rows: Iterable[GoldRow]) -> list[Prefix]:
    """Return the rows with a gendered pronoun and entities of both genders as prefixes of the question "gender".

    The class of the pronoun is that of its gold antecedent; the other class are all entities whose
    pronouns or words (data/english.py) have the other gender. Only names and nouns count as mentions.
    `is_first` is True if no pronoun refers to the antecedent earlier in the row. "Her" is left out:
    its grammatical form needs the next word.
    """
    prefixes = []
    for row in rows:
        forms = pronoun_forms(row.words[-1], "", "gender")
        prefix = None if forms is None else _gold_prefix(row, forms)
        if prefix is not None:
            prefixes.append(prefix)
    return prefixes


def _gold_prefix(row: GoldRow, forms: tuple[str, str]) -> Prefix | None:
    """Return a row as a prefix, None without a name or noun of either gender; `forms` are those of its pronoun."""
    meant = forms.index(row.words[-1])

    # Entities of the other gender than the pronoun's.
    mentions_of = defaultdict(list)
    for (start, end), entity in zip(row.mentions, row.entities, strict=True):
        mentions_of[entity].append(row.words[start:end])
    other_gender = CLASSES["gender"][1 - meant]
    of_other_gender = {entity for entity, mentions in mentions_of.items() if _gender(mentions) == other_gender}

    # By class, the characters of the names and nouns. A word belongs to its shortest mention only.
    text, spans = detokenize(row.words)
    innermost = innermost_mentions(row.mentions, len(row.words))
    groups: tuple[list[Span], list[Span]] = ([], [])
    names = ["", ""]
    for i, (start, end) in enumerate(row.mentions):
        own = [word for word in range(start, end) if innermost[word] == i]
        is_pronoun = end - start == 1 and row.words[start].lower() in _PRONOUNS
        is_antecedent = row.entities[i] == ANTECEDENT
        if not own or is_pronoun or not (is_antecedent or row.entities[i] in of_other_gender):
            continue
        last = next(word for word in own if word + 1 not in own)  # the end of the first unbroken run
        side = meant if is_antecedent else 1 - meant
        groups[side].append((spans[own[0]][0], spans[last][1]))
        names[side] = _without_article(row.words[own[0] : last + 1])
    if not groups[0] or not groups[1]:
        return None

    # Does an earlier pronoun refer to the antecedent?
    antecedents = mentions_of[ANTECEDENT]
    has_pronoun = any(len(mention) == 1 and mention[0].lower() in _PRONOUNS for mention in antecedents)
    return Prefix(
        doc=row.doc,
        question="gender",
        text=text[: spans[-1][0]],
        forms=forms,
        meant=meant,
        rest="",
        mentions=(tuple(sorted(groups[0])), tuple(sorted(groups[1]))),
        entities=(names[0], names[1]),
        is_first=not has_pronoun,
    )


def _without_article(words: Sequence[str]) -> str:
    """Return the first word of a mention in lower case that is no article; "" without one."""
    return next((word for word in map(str.lower, words) if word not in _ARTICLES), "")


def _gender(mentions: Sequence[Sequence[str]]) -> str:
    """Return the gender of an entity from its pronouns, otherwise from the words that the lexicon knows; or ""."""
    # Its pronouns decide, if it has any.
    single = {mention[0].lower() for mention in mentions if len(mention) == 1}
    genders = set()
    if single & _MASCULINE:
        genders.add("masculine")
    if single & _FEMININE:
        genders.add("feminine")
    genders = genders or {known_class(mention) for mention in mentions} - {""}
    return genders.pop() if len(genders) == 1 else ""


def detokenize(words: Sequence[str]) -> tuple[str, list[Span]]:
    """Join Treebank tokens as prose ("Hall , in" -> "Hall, in"); return the text and the span of each word.

    Straight quotes open and close alternately.
    """
    text = ""
    spans = []
    joins = True  # the next word follows without a space
    in_quote = False
    for word in words:
        # A space before each word, except inside brackets and quotes and before punctuation.
        closes = word in _CLOSING or word.lower() in _CLITICS or (word == '"' and in_quote)
        text += "" if joins or closes else " "
        spans.append((len(text), len(text) + len(word)))
        text += word

        joins = word in _OPENING or (word == '"' and not in_quote)
        in_quote ^= word == '"'
    return text, spans


def innermost_mentions(mentions: Sequence[Span], n_words: int) -> list[int | None]:
    """Return for each word the index of the shortest mention that contains it, None if no mention does."""
    # A shorter mention overwrites the longer ones around it.
    longest_first = sorted(range(len(mentions)), key=lambda i: mentions[i][0] - mentions[i][1])
    innermost: list[int | None] = [None] * n_words
    for i in longest_first:
        for word in range(*mentions[i]):
            innermost[word] = i
    return innermost
