"""Blocks of four stories (cells): order of the two mentions x which of them is the antecedent.

The cells share a frame and a pair, so every cue other than the pronoun itself (order, distance, subject, number,
gender, noun) points to the antecedent in exactly half of every block.
"""

from dataclasses import dataclass
from random import Random

from data.links import Link, Span
from data.stories.frames import Frame, subject
from data.stories.grammar import Bindings, Derivation, sample
from data.stories.language import Language, Pair, frames_of, pairs_of, placement
from data.stories.plots import LinkSpec, Plot


@dataclass(frozen=True, slots=True)
class Story:
    """One text with its gold links and its cell of the design."""

    text: str
    links: tuple[Link, ...]
    family: str
    holdout: str
    frame: str  # its text for order 0
    pair: str  # the two words, separated by a space
    order: int  # index in the pair of the word that is mentioned first
    meant: int  # index in the pair of the antecedent


def sample_block(rng: Random, language: Language, plot: Plot, frame: Frame, *, minimal_pairs: bool) -> list[Story]:
    """Returns the four cells of a block, with a pair drawn from the language's split and hold-out.

    With `minimal_pairs`, two cells of the same order are identical up to the pronoun, as the probe needs. Otherwise the
    cells differ in everything but frame and pair, as training needs.
    """
    pair = _sample_pair(rng, language, plot, frame)
    seed = rng.random()
    return [
        # The same seed makes the same draws in the same order.
        _sample_cell(Random(seed) if minimal_pairs else rng, language, plot, frame, pair, order, meant)
        for order in (0, 1)
        for meant in (0, 1)
    ]


def _sample_pair(rng: Random, language: Language, plot: Plot, frame: Frame) -> Pair:
    """Draws pairs until the cell (frame, pair) belongs to the language's split and hold-out."""
    population = language.population
    holdout = "iid" if population.holdout in ("distance", "bystanders") else population.holdout
    pairs = pairs_of(plot, population)
    while True:
        pair = rng.choice(pairs)
        if placement(frame, pair) == (population.split, holdout):
            return pair


def _sample_cell(
    rng: Random, language: Language, plot: Plot, frame: Frame, pair: Pair, order: int, meant: int
) -> Story:
    slots = (order, 1 - order)  # the members of the pair in the slots A and B
    if plot.fixed_roles:
        slots = (0, 1)
    elif plot.two_orders:  # cataphora: {A} comes after the pronoun and is its referent
        slots = (meant, 1 - meant)
    bindings = {
        "PLOT": plot.name,
        "FRAME": frame[order],
        "FIRST": "AB"[order] if plot.two_orders else "A",
        "A": pair[slots[0]].word,
        "B": pair[slots[1]].word,
        "MEANT": "A" if slots[0] == meant else "B",
    }
    derivation = sample(language.rules, rng, ("{OPENER}", *plot.text.split()), bindings)
    links = [_link(language, plot, spec, derivation) for spec in plot.links if not _is_cue(spec, derivation)]
    holdout = language.population.holdout
    return Story(derivation.text, tuple(links), plot.family, holdout, frame[0], _pair_name(pair), order, meant)


def sample_plain_story(rng: Random, language: Language, plot: Plot) -> Story:
    """Returns a story without a pronoun, with a pair and a frame that training may combine."""
    bindings, frame_text = {"PLOT": plot.name}, plot.name
    if plot.frames:
        frame = rng.choice(frames_of(plot, language.population))
        pair = rng.choice(pairs_of(plot, language.population))
        while not _trained_together(frame, pair):
            pair = rng.choice(pairs_of(plot, language.population))
        order, frame_text = rng.randrange(2), frame[0]
        bindings |= {"FRAME": frame_text, "A": pair[order].word, "B": pair[1 - order].word}
    derivation = sample(language.rules, rng, ("{OPENER}", *plot.text.split()), bindings)
    mentions = _pair_name(pair) if plot.frames else derivation.bindings["A"]
    return Story(derivation.text, (), "no_pronoun", "", frame_text, mentions, 0, 0)


def _trained_together(frame: Frame, pair: Pair) -> bool:
    """Returns True for training cells and for pairs with a held-out word, which only these stories contain."""
    return bool(pair[0].held_out or pair[1].held_out) or placement(frame, pair) == ("train", "iid")


def _pair_name(pair: Pair) -> str:
    return f"{pair[0].word} {pair[1].word}"


def _link(language: Language, plot: Plot, spec: LinkSpec, derivation: Derivation) -> Link:
    """Returns the gold link of one position of a story."""
    bindings, spans = derivation.bindings, derivation.spans
    query = _query(spec, derivation)
    antecedent, distractor = spec.candidates if bindings["MEANT"] == "A" else spec.candidates[::-1]
    antecedents = _mentions(plot, derivation, antecedent, query)
    distractors = tuple(span for slot in (distractor, "D", "E") for span in _mentions(plot, derivation, slot, query))
    subject_slot = subject(bindings["FRAME"])
    subjects = _mentions(plot, derivation, subject_slot, query) if subject_slot in spec.candidates else ()
    if plot.family == "no_antecedent":
        antecedents, distractors = (), (*antecedents, *distractors)
    answers, foils = _answers(language, spec.payoff, bindings) if spec.payoff else ((), ())
    return Link(
        level=plot.level,
        site=spec.site,
        pronoun=next(uses[0] for slot, uses in spans.items() if slot.startswith("PRONOUN")),
        query=query,
        antecedents=antecedents,
        distractors=distractors,
        subject=subjects[0] if subjects else None,
        payoff=spans[spec.payoff][0] if spec.payoff else None,
        answers=answers,
        foils=foils,
    )


def _query(spec: LinkSpec, derivation: Derivation) -> Span:
    if spec.query.startswith("<"):
        return derivation.previous[spec.query[1:]][0]
    return derivation.spans[spec.query][0]


def _is_cue(spec: LinkSpec, derivation: Derivation) -> bool:
    """Returns True if the word before the repeated mention is the deciding word, whose site is "cue" already."""
    return spec.site == "before_repeat" and _query(spec, derivation) in derivation.spans.get("ADJECTIVE", [])


def _answers(language: Language, slot: str, bindings: Bindings) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the possible words of a payoff, and the words that only the other antecedent would allow."""
    answers = language.first_words(slot, bindings)
    foils = language.first_words(slot, {**bindings, "MEANT": "B" if bindings["MEANT"] == "A" else "A"})
    return answers, tuple(word for word in foils if word not in answers)


def _mentions(plot: Plot, derivation: Derivation, slot: str, query: Span) -> tuple[Span, ...]:
    """Returns the mentions of a slot up to the query; the slot of a couple stands for both members."""
    slots = (slot, "C") if slot == "A" and plot.pools == "couple" else (slot,)
    spans = [span for name in slots for span in derivation.spans.get(name, []) if span[1] <= query[0]]
    return tuple(sorted(spans))
