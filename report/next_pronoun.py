"""The results on the next pronoun as printed lines, tables and claims."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from probe.results import Confirmation, Estimate, LevelCriterion, NextPronounResult
from probe.verdict import DECISION_LEVELS, NOT_ESTABLISHED, SUGGESTIVE, SUPPORTED, UNKNOWN_TO_MODEL
from report.tables import Table, estimate, head_names, number, table_of

_WORDS = {
    "next_pronoun_gender": ('"she" or "he"', "person", "the gender of the people"),
    "next_pronoun_number": ('"it" or "they"', "thing", "the number of the things"),
}
_LEGEND = (
    "Read at the word before the pronoun. share: how much of the decision changes sides when the head's attention to",
    "the two people is exchanged. flips: in how many texts the more probable pronoun changes. author's person: how",
    "often the model picks whom the text means (nearest: a rule that takes the last one named). p: corrected for all",
    "heads. E1: the pronoun follows the people. E2: cutting the head's edges moves it. E3: the head decides it.",
)
_LIMITS = [
    "that the model understands the text",
    "that the head finds the person whom the author means: a head that copies from anybody passes the same criteria",
    "that the choice is more than recency: compare the author's person with the nearest mention",
    "that another run has such a head at the same index",
    "anything beyond its passages and the words of the lexicon, in which gender is binary",
]
# With more heads the results say how the edited ones were found. In smaller models the files stay as they were.
NOTED_HEADS = 64
_LONGEST_EXAMPLE = 75  # characters of a passage on the terminal


# Lines


def next_pronoun_lines(results: Sequence[NextPronounResult]) -> list[str]:
    """Return the table of all questions about the next pronoun and one real passage of each; none without results."""
    if not results:
        return []
    table = table_of("", results, {
        "next pronoun, natural text": lambda result: f"{_WORDS[result.question][0]}: {result.name}",
        "head": lambda result: head_names(result.judged.heads),
        "share [95 %]": lambda result: _short(result.judged.share),
        "flips": lambda result: f"{result.judged.flips.value:.2f}",
        "author's person": _author,
        "p": lambda result: f"{result.p_corrected:.4f}",
        "verdict": lambda result: f"{result.verdict} ({result.evidence_level})",
    })  # fmt: skip

    # Under the table: one passage of each question, and further facts
    lines = table.lines()
    for result in results:
        lines += _example_lines(result)
        lines += [f"  {line}" for line in _unmet(result)]
    return [*lines, "", *_LEGEND]


def _author(result: NextPronounResult) -> str:
    return f"{result.author_accuracy.value:.2f} (nearest {result.nearest_accuracy:.2f})"


def confirmation_lines(confirmed: Sequence[Confirmation]) -> list[str]:
    """Return the table of heads that were chosen on the run's own validation text; none without any."""
    if not confirmed:
        return []
    table = table_of("", confirmed, {
        "next pronoun, head chosen on the run's own text": lambda test: _WORDS[test.question][0],
        "head": lambda test: head_names(test.heads),
        "passages": lambda test: f"{test.n:,}",
        "edge effect, nats [95 %]": lambda test: _of(test.edge_effect),
        "meant edge cut": lambda test: _of(test.meant_cut),
        "other edge cut": lambda test: _of(test.other_cut),
        "p": lambda test: f"{test.p:.4f}",
    })  # fmt: skip
    return [*table.lines(), ""]


def _of(value: Estimate) -> str:
    return estimate(value.value, (value.low, value.high))


def _short(value: Estimate) -> str:
    if any(map(math.isnan, (value.value, value.low, value.high))):
        return "–"
    return f"{value.value:.2f} [{value.low:.2f}, {value.high:.2f}]"


def _unmet(result: NextPronounResult) -> list[str]:
    """Return the criteria that are not met, of the lowest level that has one: the next level is further."""
    unmet: list[LevelCriterion] = []
    for criterion in result.judged.criteria:
        if not criterion.is_met and (not unmet or criterion.level == unmet[0].level):
            unmet.append(criterion)
    return [f"not met: {criterion.name} ({criterion.measured})" for criterion in unmet]


def _example_lines(result: NextPronounResult) -> list[str]:
    """Return the most typical passage: weights on both entities, both pronouns before and after the exchange."""
    if not result.examples:
        return []
    example = result.examples[0]
    text = " ".join(example.text.split())
    shown = text if len(text) <= _LONGEST_EXAMPLE else f"… {text[-_LONGEST_EXAMPLE:]}"

    # The entity with the larger weight first
    pairs = sorted(zip(example.entities, example.weights, strict=True), key=lambda pair: -pair[1])
    attends = ", ".join(f"{name} {weight:.2f}" for name, weight in pairs)
    before = _chances(example.forms, example.clean)
    exchanged = _chances(example.forms, example.exchanged)
    return [f"  {shown} ___", f"    {result.place} → {attends}    next: {before}    weights exchanged: {exchanged}"]


def _chances(forms: Sequence[str], chances: Sequence[float]) -> str:
    return ", ".join(f"{form} {chance:.2f}" for form, chance in zip(forms, chances, strict=True))


def screening_notes(results: Sequence[NextPronounResult], n_heads: int) -> list[str]:
    """Return how the heads that were edited were found among `n_heads`, a sentence for each question.

    None for a model of up to NOTED_HEADS heads.
    """
    notes: list[str] = []
    for result in results if n_heads > NOTED_HEADS else ():
        # The candidates are in the order of their direct effects.
        heads = [head for head, *_ in result.candidates]
        rank = 1 + heads.index(result.place)
        notes.append(
            f"{result.question}: of {n_heads} heads only {len(heads)} were edited, those with the largest direct "
            f"effect on the documents that choose the head; {result.place} has number {rank} of these effects"
        )
    return notes


# Claims


def next_pronoun_card(result: NextPronounResult) -> dict[str, Any]:
    """Return the object of claims.json about a result."""
    copied = "question site layer head verdict evidence_level unit p_corrected n".split()
    return {
        "claim": next_pronoun_claim(result),
        **{name: getattr(result, name) for name in copied},
        "criteria": result.judged.criteria,
        "does_not_show": _LIMITS,
    }


def copied(result: NextPronounResult) -> str:
    """Return what a head copies that decides this question, "the gender of the people it attends to ..."."""
    attends = "they attend" if result.unit == "set" else "it attends"
    return f"{_WORDS[result.question][2]} {attends} to into the next pronoun"


def next_pronoun_claim(result: NextPronounResult) -> str:
    """Return the claim about one question in a few sentences."""
    # The claim, by the verdict
    words, noun, _ = _WORDS[result.question]
    copying = f"{copied(result)} ({words})"
    judged = result.judged
    heads = head_names(judged.heads)
    is_set = result.unit == "set"
    name = f"Heads {heads} together" if is_set else f"Attention head {heads}"
    opening = {
        SUPPORTED: f"{name} {'copy' if is_set else 'copies'} {copying}.",
        SUGGESTIVE: f"{name} may copy {copying}.",
        NOT_ESTABLISHED: f"No head is shown to copy {copying}; the best candidate is {heads}.",
        UNKNOWN_TO_MODEL: f"The model does not know whether the next word is {words}: it ignores the {noun}.",
    }[result.verdict]

    # The model, then the heads, then the criteria of the next level
    follows = result.follows_twin
    sentences = [
        opening,
        f"The model follows the {noun} in {follows.value:.1%} [{follows.low:.1%}, {follows.high:.1%}] "
        f"of {result.n_one} passages that mention one.",
        f"In {result.n_two} passages with one of each class, exchanging the attention weights on the two moves a "
        f"share of {_short(judged.share)} of the decision to the other side and changes the "
        f"more probable pronoun in {judged.flips.value:.0%}; corrected p {result.p_corrected:.4f}.",
        f"The {noun} that the model picks is the author's in {result.author_accuracy.value:.0%} of them; the last one "
        f"mentioned is the author's in {result.nearest_accuracy:.0%}.",
        f"Evidence level {result.evidence_level}: {DECISION_LEVELS[result.evidence_level]}.",
        *(f"{sentence.capitalize()}." for sentence in _unmet(result)),
    ]
    return " ".join(sentences)


# Tables


def next_pronoun_tables(results: Sequence[NextPronounResult]) -> list[Table]:
    """Return the tables of decisions, edges, criteria, heads and sets, and the passages shown."""
    tables = []
    for result in results:
        # Some questions lack a set of heads.
        tables_of_result = [
            _decision_table(result), _choice_table(result), _edge_table(result), _criteria_table(result),
            _head_table(result), _set_table(result), _passage_table(result),
        ]  # fmt: skip
        for table in tables_of_result:
            tables.append(replace(table, title=f"Next pronoun, {_WORDS[result.question][0]}: {table.title}"))
    return tables


def _decision_table(result: NextPronounResult) -> Table:
    """Return whether the model's margin follows the entities, and the rules next to its choice."""
    rows = [
        ("follows the twin (one entity)", _of(result.follows_twin), "the margin changes with the entity's class"),
        ("right in both readings", number(result.right_in_both), "and the more probable pronoun is right"),
        ("head's edge cut (one entity)", _of(result.head_share_of_one), "share of the margin lost"),
        ("output of the twin (one entity)", _of(result.interchanged), "share of the margin moved"),
        ("author's entity (two)", _of(result.author_accuracy), "the model picks whom the author means"),
        (
            f"  nearest is wrong ({result.n_nearest_is_wrong})",
            _of(result.author_where_nearest_is_wrong),
            "the same, where the last is not meant",
        ),
    ]
    for name, value in result.rules.items():
        rows.append((f"  rule: {name}", number(value), ""))
    rows.append(("correlation", number(result.weight_correlation), "difference of the head's weights and margin"))

    # Counts of passages, for the note
    left_out = []
    for reasons in result.left_out.values():
        left_out += [f"{count:,} {reason}" for reason, count in reasons.items()]
    effective = ", ".join(f"{value:.0f}" for value in result.effective_clusters)
    note = (
        f"{result.n:,} tested passages: {result.n_one} with one entity, {result.n_two} with two, of "
        f"{result.n_documents} documents or sections. Effective clusters: {effective} (documents, entities of each "
        f"class). Left out: {'; '.join(left_out) or 'none'}."
    )
    return Table("the model's choice", ("measure", "value [95 %]", "meaning"), rows, note)


def _choice_table(result: NextPronounResult) -> Table:
    return table_of("whom the model picks", result.choices, {
        "passages with two": lambda choice: choice.stratum,
        "n": lambda choice: f"{choice.n:,}",
        "author's entity": lambda choice: _of(choice.author),
        "nearest": lambda choice: number(choice.nearest),
        "nearest is wrong in": lambda choice: f"{choice.n_wrong:,}",
        "author's entity there": lambda choice: _of(choice.author_where_wrong),
    }, "Both halves: no head is chosen here. The twin's earlier pronouns are exchanged too.")  # fmt: skip


def _edge_table(result: NextPronounResult) -> Table:
    """Return what the edits of the head, and of the set if there is one, do."""
    edited = [tested for tested in (result.chosen, result.head_set) if tested is not None]
    return table_of("edges", edited, {
        "heads": lambda tested: f"{'head' if tested is result.chosen else 'set'} {head_names(tested.heads)}",
        "edge effect, nats": lambda tested: _of(tested.edge_effect),
        "meant edge cut": lambda tested: _of(tested.meant_cut),
        "other edge cut": lambda tested: _of(tested.other_cut),
        "beyond a random word": lambda tested: _of(tested.content_cut),
        "exchanged": lambda tested: _of(tested.share),
        "flips": lambda tested: _of(tested.flips),
        "verdict": lambda tested: f"{tested.verdict} ({tested.evidence_level})",
    }, "Cuts and exchange: shares of the size of the margin, passages with two entities.")  # fmt: skip


def _criteria_table(result: NextPronounResult) -> Table:
    return table_of("criteria", result.judged.criteria, {
        "criterion": lambda criterion: criterion.name,
        "level": lambda criterion: criterion.level,
        "outcome": lambda criterion: "met" if criterion.is_met else "not met",
        "measured": lambda criterion: criterion.measured,
    })  # fmt: skip


def _head_table(result: NextPronounResult) -> Table:
    """Return the edge effects of all tested heads."""
    rows = [(str(head), number(effect), number(t), f"{p:.4f}") for head, effect, t, p in result.candidates]
    note = f"Largest t of untrained models: {', '.join(f'{t:.1f}' for t in result.untrained_t)}."
    return Table("all tested heads", ("head", "edge effect, nats", "t", "p"), rows, note)


def _set_table(result: NextPronounResult) -> Table:
    """Return the share exchanged against the number of heads."""
    rows = []
    for n, (head, chosen, tested) in enumerate(result.curve, 1):
        rows.append((str(n), str(head), number(chosen), _of(tested)))
    header = ("heads", "added", "share exchanged, choosing half", "tested half [95 %]")
    return Table("heads together", header, rows, "Added one by one on the choosing half.")


def _passage_table(result: NextPronounResult) -> Table:
    def numbers(values: Sequence[float], digits: int) -> str:
        return " / ".join(f"{value:.{digits}f}" for value in values)

    return table_of("passages", result.examples, {
        "passage": lambda example: " ".join(example.text.split()),
        "pronouns": lambda example: " / ".join(example.forms),
        "weights on their entities": lambda example: numbers(example.weights, 2),
        "probability": lambda example: numbers(example.clean, 3),
        "weights exchanged": lambda example: numbers(example.exchanged, 3),
    }, "Of the fifth nearest to the median share, those with the most probable pronouns.")  # fmt: skip
