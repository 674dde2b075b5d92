"""Stories come in blocks of four cells, order of the two mentions x which is meant, over one frame and one pair.

So every cue that could stand in for reference (order, nearness, subject, number, gender, noun, pronoun) is right in
exactly half of every block.
"""

from dataclasses import dataclass
from random import Random

from data.links import Link, Span
from data.stories.frames import Frame, subject
from data.stories.grammar import Text, write
from data.stories.language import Language, Pair, placement, told_frames, told_pairs
from data.stories.lexicon import Referent
from data.stories.plots import Ask, Plot


@dataclass(frozen=True, slots=True)
class Story:
    """One text with its gold links and its place in the design."""

    text: str
    links: tuple[Link, ...]
    family: str
    holdout: str
    template: str
    pair: str
    order: int  # which member of the pair is mentioned first
    meant: int  # which member of the pair is meant


def draw_block(rng: Random, language: Language, plot: Plot, frame: Frame, *, shared: bool) -> list[Story]:
    """Write the four cells of one block over a fresh pair that belongs to the language's split and hold-out.

    With `shared` the cells share all that is drawn before the pronoun, so that two cells of one order differ in the
    pronoun alone: what a probe needs. Without it they vary, which is what training needs.
    """
    pair = draw_pair(rng, language, plot, frame)
    seed = rng.random()
    cells = []
    for order in (0, 1):
        for meant in (0, 1):
            own = Random(seed) if shared else rng  # the same draws in the same order
            cells.append(write_cell(own, language, plot, frame, pair, order, meant))
    return cells


def draw_pair(rng: Random, language: Language, plot: Plot, frame: Frame) -> Pair:
    """Draw a pair whose cell with `frame` belongs to the language's split and hold-out."""
    population = language.population
    place = population.holdout if population.holdout not in ("distance", "distractors") else "iid"
    pairs = told_pairs(plot, population)
    while True:
        pair = rng.choice(pairs)
        if placement(plot, frame, pair) == (population.split, place):
            return pair


def write_cell(rng: Random, language: Language, plot: Plot, frame: Frame, pair: Pair, order: int, meant: int) -> Story:
    """Write one cell of a block."""
    slots = (0, 1) if plot.fixed else (order, 1 - order)
    if plot.own_orders and not plot.fixed:  # {A} comes after the pronoun and is what it means
        slots = (meant, 1 - meant)
    bound = {"PLOT": plot.name, "FRAME": frame[order], "FIRST": "AB"[order] if plot.own_orders else "A"}
    bound |= {"A": pair[slots[0]].word, "B": pair[slots[1]].word, "MEANT": "A" if slots[0] == meant else "B"}
    text = write(language.rules, rng, ("{OPENER}", *plot.text.split()), bound)
    links = tuple(link for ask in plot.asks if (link := _link(language, plot, ask, text)) is not None)
    holdout = language.population.holdout
    return Story(text.text, links, plot.family, holdout, frame[0], _pair_name(pair), order, meant)


def plain_story(rng: Random, language: Language, plot: Plot) -> Story:
    """Write a story without a pronoun, its pair one that may stand in its frame in training."""
    bound = {"PLOT": plot.name}
    frame, pair = ("", ""), None
    if plot.frames is not None:
        frame = rng.choice(told_frames(plot, language.population))
        while pair is None or not _may_stand(plot, frame, pair):
            pair = rng.choice(told_pairs(plot, language.population))
        order = rng.randrange(2)
        bound |= {"FRAME": frame[0], "A": pair[order].word, "B": pair[1 - order].word}
    text = write(language.rules, rng, ("{OPENER}", *plot.text.split()), bound)
    name = _pair_name(pair) if pair else text.bound["A"]
    return Story(text.text, (), "no_pronoun", "", frame[0] or plot.name, name, 0, 0)


def _may_stand(plot: Plot, frame: Frame, pair: Pair) -> bool:
    """Whether X may put a pair into a frame: one with a held-out word, which only X tells of, or training's own."""
    if pair[0].held_out or pair[1].held_out:
        return True
    return placement(plot, frame, pair) == ("train", "iid")


def _pair_name(pair: tuple[Referent, Referent]) -> str:
    return f"{pair[0].word} {pair[1].word}"


def _link(language: Language, plot: Plot, ask: Ask, text: Text) -> Link | None:
    """Return the link of one question, or None where this story does not ask it."""
    meant = text.bound["MEANT"]
    pronoun = next(spans for slot, spans in text.spans.items() if slot.startswith("PRONOUN"))[0]
    query = text.before[ask.query[1:]][0] if ask.query[0] == "<" else text.spans[ask.query][0]
    if ask.site == "before_repeat" and "ADJECTIVE" in text.spans and query == text.spans["ADJECTIVE"][0]:
        return None  # the word before the mention is the one that decides: that is S2
    gold, *others = ask.candidates if meant == "A" else ask.candidates[::-1]
    antecedents = _mentions(plot, text, gold, query)
    distractors = tuple(span for slot in (*others, "D", "E") for span in _mentions(plot, text, slot, query))
    first = subject(text.bound["FRAME"])
    subjects = _mentions(plot, text, first, query) if first in ask.candidates else ()
    if plot.family == "no_antecedent":  # whatever was mentioned, it does not mean that
        antecedents, distractors = (), (*antecedents, *distractors)
    payoff = text.spans[ask.payoff][0] if ask.payoff else None
    answers, foils = _answers(language, ask.payoff, text.bound) if ask.payoff else ((), ())
    subject_span = subjects[0] if subjects else None
    return Link(plot.level, ask.site, pronoun, query, antecedents, distractors, subject_span, payoff, answers, foils)


def _answers(language: Language, slot: str, bound: dict[str, str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the words a payoff is drawn from, and the others that it would be if the other mention were meant."""
    answers = language.words(slot, bound)
    others = language.words(slot, {**bound, "MEANT": "B" if bound["MEANT"] == "A" else "A"})
    return answers, tuple(word for word in others if word not in answers)


def _mentions(plot: Plot, text: Text, slot: str, query: Span) -> tuple[Span, ...]:
    """Return where what `slot` stands for has been mentioned before the query."""
    slots = (slot, "C") if slot == "A" and plot.pools == "couple" else (slot,)
    spans = [span for one in slots for span in text.spans.get(one, []) if span[1] <= query[0]]
    return tuple(sorted(spans))
