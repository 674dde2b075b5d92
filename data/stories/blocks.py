"""Blocks of four stories (cells): order of the two mentions x which of them is the antecedent.

The cells share a frame and a pair, so every cue but the pronoun, or the verb before it, (order, distance, subject,
number, gender, noun) points to the antecedent in exactly half of every block.
"""

from collections.abc import Mapping
from random import Random

from data.pairs import NO_LINK, Link, LinkedText, Span
from data.stories.frames import subject
from data.stories.grammar import Bindings, derive
from data.stories.language import Language, MentionPair, placement
from data.stories.lexicon import REFERENTS
from data.stories.plots import Plot


def sample_block(rng: Random, language: Language, plot: Plot, frame: str, *, minimal_pairs: bool) -> list[LinkedText]:
    """Return the four cells of a block, with a pair drawn from the language's split and hold-out.

    With `minimal_pairs`, two cells of the same order are identical up to the word that decides, as the probe needs.
    Otherwise the cells differ in everything but frame and pair, as training needs. Stories of the training split have
    no link.
    """
    pairs = language.pairs_of(plot)
    pair = rng.choice(pairs)
    place = (language.split, "headline" if language.holdout == "headline" else "iid")
    while placement(frame, pair) != place:
        pair = rng.choice(pairs)

    seed = rng.random()
    cells = []
    for order in (0, 1):
        for meant in (0, 1):
            # The same seed makes the same draws in the same order.
            cell_rng = Random(seed) if minimal_pairs else rng
            cells.append(_sample_cell(cell_rng, language, plot, frame, pair, order, meant))
    return cells


def _sample_cell(
    rng: Random, language: Language, plot: Plot, frame: str, pair: MentionPair, order: int, meant: int
) -> LinkedText:
    bindings = {
        "PLOT": plot.name,
        "FRAME": frame,
        "A": pair[order].word,
        "B": pair[1 - order].word,
        "MEANT": "A" if order == meant else "B",
    }
    derivation = derive(language.rules, rng, ("{OPENER}", *plot.text.split()), bindings)
    link = NO_LINK if language.split == "train" else _link(plot, derivation.slot_places(), derivation.bindings)
    return LinkedText(
        text=derivation.text,
        link=link,
        family=plot.family,
        holdout=language.holdout,
        frame=frame,
        pair=_pair_name(pair),
        order=order,
        meant=meant,
    )


def sample_plain_story(rng: Random, language: Language, plot: Plot) -> LinkedText:
    """Return a story without a pronoun, with a pair and a frame that training may combine."""
    # A plot without a frame has one mention, which the grammar draws.
    bindings = {"PLOT": plot.name}
    frame_text = plot.name
    mentions = ""
    if plot.frames:
        frame = rng.choice(language.frames_of(plot))
        pairs = language.pairs_of(plot)
        pair = rng.choice(pairs)
        # Training cells, and pairs with a held-out word, which only these stories contain.
        while not pair[0].held_out and not pair[1].held_out and placement(frame, pair) != ("train", "iid"):
            pair = rng.choice(pairs)
        order = rng.randrange(2)
        frame_text = frame
        mentions = _pair_name(pair)
        bindings |= {"FRAME": frame, "A": pair[order].word, "B": pair[1 - order].word}
    derivation = derive(language.rules, rng, ("{OPENER}", *plot.text.split()), bindings)
    mentions = mentions or derivation.bindings["A"]
    return LinkedText(derivation.text, NO_LINK, plot.family, "", frame_text, mentions, order=0, meant=0)


def _pair_name(pair: MentionPair) -> str:
    return f"{pair[0].word} {pair[1].word}"


def _link(plot: Plot, places: Mapping[str, list[Span]], bindings: Bindings) -> Link:
    """Return the link of the pronoun, which decides the next word {VERB}."""
    query = (places.get("PRONOUN") or places["PRONOUN.lower"])[0]
    meant, rival = "AB" if bindings["MEANT"] == "A" else "BA"
    # Only mentions before the pronoun can be attended to.
    mentions = {slot: tuple(span for span in places.get(slot, ()) if span[1] <= query[0]) for slot in "ABC"}
    subjects = mentions.get(subject(bindings["FRAME"]), ())
    answers = REFERENTS[bindings[meant]].verbs
    return Link(
        question=plot.question,
        query=query,
        antecedents=mentions[meant],
        distractors=mentions[rival],
        bystanders=mentions["C"],
        subject=subjects[0] if subjects else None,
        payoff=places["VERB"][0],
        answers=answers,
        foils=REFERENTS[bindings[rival]].verbs,  # the mentions share no verb
        more_foils=REFERENTS[bindings["C"]].verbs if mentions["C"] else (),
        n_fitting=len(answers),
    )
