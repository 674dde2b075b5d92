"""The families of stories: V and R ask what a pronoun means, N has pronouns that mean nothing, X has none.

V  the verb after the pronoun is one of its antecedent's own: "The cat sat near the buses. It purred."
R  a later word decides: "The cat lay on the mat because it was tired, so the cat stayed there."
N  the pronoun means nothing: "The cat sat near the buses. It was raining."
X  no pronoun at all, so that nouns kept out of V and R are still known: "The cat purred."

Stories come in blocks of four cells, order of the two mentions x which of the two is meant, over one frame and one
pair of mentions. So every cue that could stand in for reference (order, nearness, subject, number, gender, noun,
pronoun) is right in exactly half of every block.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from random import Random

from data.links import Link, Span
from data.stories import grammar
from data.stories.grammar import Text
from data.stories.lexicon import FEELINGS, QUALITIES, Referent, names, nouns, rests, unit_hash

LEVELS = {"V": ("L1", "L2"), "R": ("R",), "N": ("N",)}
HOLDOUTS = ("iid", "pairs", "nouns", "templates", "headline")
WEATHER = ("raining", "snowing", "late", "early", "cold", "noon", "windy", "dark")
NATURES = ("little", "clever", "kind", "brave", "cheerful", "gentle")
SAYINGS = ("rain is good", "snow is near", "winter is long", "summer is short", "noon is late", "spring is early")
Pair = tuple[Referent, Referent]
Frame = tuple[str, str]  # the two orders of one template: the pair's first member first, its second member first


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


@dataclass(frozen=True, slots=True)
class Scene:
    """What the four cells of a block share besides the frame and the pair."""

    opener: str
    fillers: str
    ending: str
    variant: int  # which of a family's continuations


@cache
def frames(level: str, kept_for: str = "") -> tuple[Frame, ...]:
    """Return the frames of a level that are used in training, or those kept for "dev" or "test"."""
    if level == "R":
        every: tuple[Frame, ...] = grammar.rest_frames()
    else:
        every = tuple((one, one) for one in (grammar.name_frames() if level == "L2" else grammar.noun_frames()))
    return tuple(frame for frame in every if grammar.held_out(frame[0]) == kept_for)


@cache
def _pools(level: str) -> tuple[tuple[Referent, ...], tuple[Referent, ...]]:
    if level == "L2":
        return names()
    if level == "R":
        return tuple(one for one, _ in nouns() if one.kind == "animal"), rests()
    return tuple(one for one, _ in nouns()), tuple(many for _, many in nouns())


@cache
def _plain_pools(level: str) -> tuple[tuple[Referent, ...], ...]:
    """Return the pools of X, those it alone can tell of three times as often: they are in no other family."""
    return tuple(tuple(one for one in pool for _ in range(3 if one.held_out else 1)) for pool in _pools(level))


@cache
def _pools_kept(level: str, kept_for: str) -> tuple[tuple[Referent, ...], ...]:
    return tuple(tuple(one for one in pool if one.held_out == kept_for) for pool in _pools(level))


def placement(frame: Frame, pair: Pair) -> tuple[str, str] | None:
    """Return the (split, hold-out) to which a frame with a pair belongs, or None where it belongs to none.

    Decided by hash alone before anything is trained, so that a story of one split can never stand in another.
    """
    one, two = pair
    if set(one.verbs) & set(two.verbs) or one.held_out != two.held_out:
        return None
    nouns_for, frame_for = one.held_out, grammar.held_out(frame[0])
    if nouns_for and frame_for:
        return (nouns_for, "headline") if nouns_for == frame_for else None
    if nouns_for:
        return nouns_for, "nouns"
    if is_held_out_pair(pair):
        return None if frame_for else ("test", "pairs")
    if frame_for:
        return frame_for, "templates"
    bucket = unit_hash("cell", frame[0], one.word, two.word)
    return ("dev" if bucket < 0.05 else "test" if bucket < 0.1 else "train"), "iid"


def is_held_out_pair(pair: Pair) -> bool:
    """Whether two mentions are never introduced together in training: one pair in ten, by hash."""
    return unit_hash("pair", pair[0].word, pair[1].word) < 0.1


def draw_scene(rng: Random) -> Scene:
    """Draw an opener, none to two fillers, an ending and a variant."""
    fillers = " ".join(rng.sample(grammar.FILLERS, rng.choice((0, 0, 1, 1, 2))))
    return Scene(rng.choice(grammar.OPENERS), fillers, rng.choice(grammar.ENDINGS), rng.randrange(2))


def verb_story(rng: Random, level: str, frame: Frame, pair: Pair, order: int, meant: int, scene: Scene) -> Story:
    """Write a V story: after the pronoun comes one of four verbs of what it means."""
    referent, other = pair[meant], pair[1 - meant]
    mentions = (pair[order], pair[1 - order])
    text = grammar.fill(
        f"{scene.opener} {frame[order]} {scene.fillers} {{PRONOUN}} {{PAYOFF}} {scene.ending}",
        {"A": mentions[0], "B": mentions[1], "PRONOUN": referent.pronoun, "PAYOFF": rng.choice(referent.verbs)},
    )
    gold, distractor = _mentions(text, mentions, referent)
    pronoun, payoff = text.spans["PRONOUN"], text.spans["PAYOFF"]
    link = Link(level, "S1", pronoun, pronoun, (gold,), (distractor,), None, payoff, referent.verbs, other.verbs)
    return _story(text, (link,), "V", frame, pair, order, meant)


def rest_story(rng: Random, level: str, frame: Frame, pair: Pair, order: int, meant: int, scene: Scene) -> Story:
    """Write an R story: "it" could be the animal or what it lies on until the adjective comes."""
    referent, other = pair[meant], pair[1 - meant]
    mentions = pair  # the frame itself turns the order round
    continuation = ("it was a {ADJECTIVE} {PAYOFF} .", "it was {ADJECTIVE} , so the {PAYOFF} {END} .")[scene.variant]
    text = grammar.fill(
        f"{scene.opener} {frame[order]} {continuation.replace('it', '{PRONOUN}', 1)}",
        {
            "A": mentions[0],
            "B": mentions[1],
            "PRONOUN": "it",
            "ADJECTIVE": rng.choice((FEELINGS, QUALITIES)[meant]),
            "PAYOFF": referent.word,
            "END": ("stayed there", "was nice")[meant],
        },
    )
    gold, distractor = _mentions(text, mentions, referent)
    pronoun, adjective, payoff = (text.spans[slot] for slot in ("PRONOUN", "ADJECTIVE", "PAYOFF"))
    common = ((gold,), (distractor,), None, payoff, (referent.word,), (other.word,))
    links = (Link(level, "S1", pronoun, pronoun, *common), Link(level, "S2", pronoun, adjective, *common))
    return _story(text, links, "R", frame, pair, order, meant)


def empty_story(rng: Random, level: str, frame: Frame, pair: Pair, order: int, meant: int, scene: Scene) -> Story:
    """Write an N story: "It was raining." or "They say rain is good.", which mean no one."""
    mentions = (pair[order], pair[1 - order])
    rest = (f"was {rng.choice(WEATHER)} .", f"say {rng.choice(SAYINGS)} .")[meant]
    text = grammar.fill(
        f"{scene.opener} {frame[order]} {scene.fillers} {{PRONOUN}} {rest}",
        {"A": mentions[0], "B": mentions[1], "PRONOUN": pair[meant].pronoun},
    )
    pronoun = text.spans["PRONOUN"]
    link = Link(level, "S1", pronoun, pronoun, (), _mentions(text, mentions), None, None, (), ())
    return _story(text, (link,), "N", frame, pair, order, meant)


def plain_story(rng: Random, scene: Scene) -> Story:
    """Write an X story: who or what there is and what it does, or an introduction with a mention said again.

    This is where nouns and names that are never meant by a training pronoun show their number, gender and verbs.
    """
    kind = rng.choices(("noun", "name", "rest", "two nouns", "two names"), (10, 6, 1, 3, 3))[0]
    level = "L2" if "name" in kind else "R" if kind == "rest" else "L1"
    if kind.startswith("two"):
        return _said_again(rng, level, scene)
    one = rng.choice(rng.choice(_plain_pools(level)))
    if level == "R":
        adjective = rng.choice(QUALITIES if one.kind == "rest" else FEELINGS)
        frame = rng.choice((f"the {{A}} was {adjective} .", f"there was a {adjective} {{A}} ."))
    else:
        child = _child(one)
        if level == "L1":
            where = rng.choice(grammar.PLACES)
            there = rng.choice((f"there {{A.was}} {{A.a}} {{A}} {where} .", f"the {{A}} {{A.was}} {where} ."))
        else:
            there = rng.choice((f"there was a {child} named {{A}} .", f"{{A}} was a {rng.choice(NATURES)} {child} ."))
        again = "{A}" if level == "L2" else "The {A}"
        frame = f"{there} {again} {rng.choice(one.verbs)} {scene.ending}"
    text = grammar.fill(f"{scene.opener} {frame}", {"A": one})
    return Story(text.text, (), "X", "", frame, one.word, 0, 0)


def _child(one: Referent) -> str:
    return "girl" if one.pronoun == "She" else "boy"


def _said_again(rng: Random, level: str, scene: Scene) -> Story:
    frame = rng.choice(frames(level))
    while True:
        pair = _draw_pair(rng, _plain_pools(level))
        held_out = pair[0].held_out or pair[1].held_out
        if held_out and pair[0].lemma != pair[1].lemma or placement(frame, pair) == ("train", "iid"):
            break
    order, said = rng.randrange(2), rng.choice(pair)
    article = "" if level == "L2" else "The"
    mentions: dict[str, Referent | str] = {"A": pair[order], "B": pair[1 - order]}
    introduction = frame[order]
    for slot, one in zip("AB", (pair[order], pair[1 - order]), strict=True):
        if level == "L2" and rng.random() < 0.5:
            introduction = introduction.replace(f"{{{slot}}}", f"a {_child(one)} named {{{slot}}}")
    text = grammar.fill(
        f"{scene.opener} {introduction} {scene.fillers} {article} {said.word} {rng.choice(said.verbs)} {scene.ending}",
        mentions,
    )
    return Story(text.text, (), "X", "", frame[0], _pair_name(pair), order, 0)


def _story(text: Text, links: tuple[Link, ...], family: str, frame: Frame, pair: Pair, order: int, meant: int) -> Story:
    _, holdout = placement(frame, pair) or ("", "")
    return Story(text.text, links, family, holdout, frame[0], _pair_name(pair), order, meant)


def _draw_pair(rng: Random, pools: tuple[tuple[Referent, ...], ...]) -> Pair:
    return rng.choice(pools[0]), rng.choice(pools[1])


def _pair_name(pair: Pair) -> str:
    return f"{pair[0].word} {pair[1].word}"


def _mentions(text: Text, mentions: Pair, meant: Referent | None = None) -> tuple[Span, ...]:
    """Return the spans of the two mentions, the meant one first."""
    spans = (text.spans["A"], text.spans["B"])
    return spans if mentions[0] is meant or meant is None else spans[::-1]


WRITERS: dict[str, Callable[..., Story]] = {"V": verb_story, "R": rest_story, "N": empty_story}


def draw_block(
    rng: Random, family: str, level: str, split: str, holdout: str, frame: Frame, *, shared: bool
) -> list[Story]:
    """Write the four cells of one block over a fresh pair that belongs to (split, hold-out).

    With `shared` the cells share opener, fillers and ending, so that two cells of one order differ in the pronoun
    alone: what a probe needs. Without it they vary, which is what training needs.
    """
    pools = _pools_kept(level, split if holdout in ("nouns", "headline") else "")
    while True:
        pair = _draw_pair(rng, pools)
        if placement(frame, pair) == (split, holdout):
            break
    scene = draw_scene(rng)
    block = []
    for order in (0, 1):
        for meant in (0, 1):
            story = WRITERS[family](rng, level, frame, pair, order, meant, scene if shared else draw_scene(rng))
            block.append(story)
    return block
