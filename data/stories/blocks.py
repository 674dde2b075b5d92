"""Blocks of four stories (cells): order of the two mentions x which of them is the antecedent.

The cells share a frame and a pair, so every cue other than the pronoun itself (order, distance, subject, number,
gender, noun) points to the antecedent in exactly half of every block.
"""

from random import Random

from data.pairs import Link, LinkedText, Span
from data.stories.frames import Frame, subject
from data.stories.grammar import Bindings, SlotPlaces, sample
from data.stories.language import Language, MentionPair, frames_of, pairs_of, placement
from data.stories.plots import LinkSpec, Plot


def sample_block(
    rng: Random, language: Language, plot: Plot, frame: Frame, *, minimal_pairs: bool, has_links: bool = True
) -> list[LinkedText]:
    """Return the four cells of a block, with a pair drawn from the language's split and hold-out.

    With `minimal_pairs`, two cells of the same order are identical up to the pronoun, as the probe
    needs. Otherwise the cells differ in everything but frame and pair, as training needs. Without
    `has_links`, the stories have no links; their text is the same.
    """
    pair = _sample_pair(rng, language, plot, frame)
    seed = rng.random()
    cells = []
    for order in (0, 1):
        for meant in (0, 1):
            # The same seed makes the same draws in the same order.
            cell_rng = Random(seed) if minimal_pairs else rng
            cells.append(_sample_cell(cell_rng, language, plot, frame, pair, order, meant, has_links))
    return cells


def _sample_pair(rng: Random, language: Language, plot: Plot, frame: Frame) -> MentionPair:
    """Draw pairs until the cell (frame, pair) belongs to the language's split and hold-out."""
    population = language.population
    is_training_cell = population.holdout in ("distance", "bystanders")
    holdout = "iid" if is_training_cell else population.holdout
    pairs = pairs_of(plot, population)
    while True:
        pair = rng.choice(pairs)
        if placement(frame, pair) == (population.split, holdout):
            return pair


def _sample_cell(
    rng: Random,
    language: Language,
    plot: Plot,
    frame: Frame,
    pair: MentionPair,
    order: int,
    meant: int,
    has_links: bool,
) -> LinkedText:
    # The members of the pair in the slots A and B.
    slots = (order, 1 - order)
    if plot.fixed_roles:
        slots = (0, 1)
    elif plot.two_orders:  # cataphora: {A} comes after the pronoun and is its referent
        slots = (meant, 1 - meant)

    # What the block decides; the grammar draws the rest.
    bindings = {
        "PLOT": plot.name,
        "FRAME": frame[order],
        "FIRST": "AB"[order] if plot.two_orders else "A",
        "A": pair[slots[0]].word,
        "B": pair[slots[1]].word,
        "MEANT": "A" if slots[0] == meant else "B",
    }
    derivation = sample(language.rules, rng, ("{OPENER}", *plot.text.split()), bindings)
    links: list[Link] = []
    if has_links:
        places = derivation.slot_places()
        specs = [spec for spec in plot.links if not _is_cue(spec, places)]
        links = [_link(language, plot, spec, places, derivation.bindings) for spec in specs]
    return LinkedText(
        text=derivation.text,
        links=tuple(links),
        family=plot.family,
        holdout=language.population.holdout,
        frame=frame[0],
        pair=_pair_name(pair),
        order=order,
        meant=meant,
    )


def sample_plain_story(rng: Random, language: Language, plot: Plot) -> LinkedText:
    """Return a story without a pronoun, with a pair and a frame that training may combine."""
    # A plot without a frame has one mention, which the grammar draws.
    bindings = {"PLOT": plot.name}
    frame_text, mentions = plot.name, ""
    if plot.frames:
        frame = rng.choice(frames_of(plot, language.population))
        pair = rng.choice(pairs_of(plot, language.population))
        while not _trained_together(frame, pair):
            pair = rng.choice(pairs_of(plot, language.population))
        order = rng.randrange(2)
        frame_text, mentions = frame[0], _pair_name(pair)
        bindings |= {"FRAME": frame_text, "A": pair[order].word, "B": pair[1 - order].word}
    derivation = sample(language.rules, rng, ("{OPENER}", *plot.text.split()), bindings)
    mentions = mentions or derivation.bindings["A"]
    return LinkedText(derivation.text, (), plot.family, "", frame_text, mentions, order=0, meant=0)


def _trained_together(frame: Frame, pair: MentionPair) -> bool:
    """Return True for training cells and for pairs with a held-out word, which only these stories contain."""
    return bool(pair[0].held_out or pair[1].held_out) or placement(frame, pair) == ("train", "iid")


def _pair_name(pair: MentionPair) -> str:
    return f"{pair[0].word} {pair[1].word}"


def _link(language: Language, plot: Plot, spec: LinkSpec, places: SlotPlaces, bindings: Bindings) -> Link:
    spans = places.spans
    query = _query(spec, places)

    # The mentions before the query; bystanders D and E are distractors too.
    meant, other = spec.candidates if bindings["MEANT"] == "A" else spec.candidates[::-1]
    antecedents = _mentions(plot, places, meant, query)
    distractors: tuple[Span, ...] = ()
    for slot in (other, "D", "E"):
        distractors += _mentions(plot, places, slot, query)
    if plot.family == "no_antecedent":
        distractors = antecedents + distractors
        antecedents = ()

    subject_slot = subject(bindings["FRAME"])
    subjects: tuple[Span, ...] = ()
    if subject_slot in spec.candidates:
        subjects = _mentions(plot, places, subject_slot, query)
    # The words that the antecedent allows at the payoff, and those that only the other allows.
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


def _query(spec: LinkSpec, places: SlotPlaces) -> Span:
    if spec.query.startswith("<"):
        return places.previous[spec.query[1:]][0]
    return places.spans[spec.query][0]


def _is_cue(spec: LinkSpec, places: SlotPlaces) -> bool:
    """Return True if the word before the repeated mention is the deciding word, whose site is "cue" already."""
    cues = places.spans.get("ADJECTIVE", [])
    return spec.site == "before_repeat" and _query(spec, places) in cues


def _answers(language: Language, slot: str, bindings: Bindings) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the possible words of a payoff, and the words that only the other antecedent would allow."""
    other = "B" if bindings["MEANT"] == "A" else "A"
    answers = language.first_words(slot, bindings)
    foils = language.first_words(slot, {**bindings, "MEANT": other})
    return answers, tuple(word for word in foils if word not in answers)


def _mentions(plot: Plot, places: SlotPlaces, slot: str, query: Span) -> tuple[Span, ...]:
    """Return the mentions of a slot up to the query; the slot of a couple stands for both members."""
    # Only mentions before the query can be attended to.
    slots = (slot, "C") if slot == "A" and plot.pools == "couple" else (slot,)
    spans = [span for name in slots for span in places.spans.get(name, []) if span[1] <= query[0]]
    return tuple(sorted(spans))
