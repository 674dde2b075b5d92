"""The language of the stories: which pairs and frames belong to which hold-out, and the options of every slot.

`grammar.derive` draws from the rules of a `Language` and `floor` computes exact probabilities from them. The rules do
not contain which (frame, pair) cells a hash assigns to dev and test: no predictor could know that, so a dev story is as
probable as a training story.
"""

from collections.abc import Callable, Mapping
from functools import cache
from itertools import product

import numpy as np

from data.stories import frames
from data.stories.grammar import Bindings, Option, Options, Symbols
from data.stories.lexicon import NAMES, NOUNS, REFERENTS, Referent, unit_hash
from data.stories.plots import PLOTS, Plot

START: Symbols = ("{OPENER}", "{PLOT}")
MentionPair = tuple[Referent, Referent]

_MENTIONS = "ABC"
# Stories without a pronoun use held-out words this much more often than other words.
_HELD_OUT_WEIGHT = 8


@cache
def _frames(plot_name: str, split: str) -> tuple[str, ...]:
    return tuple(frame for frame in PLOTS[plot_name].frames if frames.held_out(frame) == split)


@cache
def _pairs(plot_name: str, split: str) -> tuple[MentionPair, ...]:
    plot = PLOTS[plot_name]
    pairs: list[MentionPair] = []
    for pair in product(*_word_pools(plot.pools)):
        if plot.has_pronoun:
            is_in_split = pair[0].held_out == split and (split or not _is_held_out_pair(pair))
            if _valid(pair) and is_in_split:
                pairs.append(pair)
        elif _valid_without_pronoun(pair) and not (plot.refers_by_kind and pair[0].held_out):
            pairs += [pair] * (_weight(pair[0]) * _weight(pair[1]))
    return tuple(pairs)


def _word_pools(kind: str) -> tuple[tuple[Referent, ...], tuple[Referent, ...]]:
    """Return the words for the first member of a pair and those for the second."""
    singular, plural = zip(*NOUNS, strict=True)
    animals = tuple(noun for noun in singular if noun.kind == "animal")
    things = tuple(noun for noun in singular if noun.kind == "thing")
    pools = {"number": (singular, plural), "gender": NAMES, "animals": (animals, animals), "states": (animals, things)}
    return pools[kind]


def _valid(pair: MentionPair) -> bool:
    a, b = pair
    shares_verbs = bool(set(a.verbs) & set(b.verbs))
    return a.held_out == b.held_out and a.lemma != b.lemma and not shares_verbs


def _valid_without_pronoun(pair: MentionPair) -> bool:
    a, b = pair
    if a.held_out and b.held_out:
        return a.lemma != b.lemma
    return _valid(pair) and not _is_held_out_pair(pair)


def _weight(referent: Referent) -> int:
    return _HELD_OUT_WEIGHT if referent.held_out else 1


def _is_held_out_pair(pair: MentionPair) -> bool:
    """Return True if two known words never appear together: one pair in ten, by hash."""
    return unit_hash("pair", *_sorted_words(pair)) < 0.1


def _sorted_words(pair: MentionPair) -> list[str]:
    """Return the words of a pair in an order that does not depend on which is first."""
    return sorted(referent.word for referent in pair)


def placement(frame: str, pair: MentionPair) -> tuple[str, str] | None:
    """Return the (split, hold-out) of a frame with a pair, which the words alone decide; None if it is never used."""
    word_split = pair[0].held_out
    frame_split = frames.held_out(frame)

    # Held-out words are in held-out frames only.
    if word_split or frame_split:
        return (word_split, "headline") if word_split == frame_split else None
    if _is_held_out_pair(pair):
        return None

    # Known words in a known frame: one cell in ten is held out.
    cell = unit_hash("cell", frames.base_frame(frame), *_sorted_words(pair))
    return ("dev" if cell < 0.05 else "test" if cell < 0.1 else "train"), "iid"


_Rule = Callable[["Language", Bindings], Options]


class Language:
    """The grammar of one population: the training mix, or one hold-out of a split."""

    def __init__(self, split: str, holdout: str, shares: Mapping[str, float]) -> None:
        """Plots without a share are impossible."""
        self.split = split
        self.holdout = holdout
        self.shares = shares
        self._held_out = split if holdout == "headline" else ""  # the split that words and frames are held out for

    def frames_of(self, plot: Plot) -> tuple[str, ...]:
        return _frames(plot.name, self._held_out)

    def pairs_of(self, plot: Plot) -> tuple[MentionPair, ...]:
        """Return the pairs of mentions of a plot; a repeated pair is drawn more often."""
        return _pairs(plot.name, self._held_out)

    def rules(self, slot: str, bindings: Bindings) -> Options:
        """Return the options of a slot, given the bindings to its left; a mention gets its word at its first use."""
        name, _, form = slot.partition(".")
        if name in _MENTIONS:
            if name in bindings:
                return _inflected(bindings[name], form)
            bound = tuple(bindings.get(mention, "") for mention in _MENTIONS)
            return _first_mention(self, bindings["PLOT"], name, bound, form)
        rule = _RULES[slot]
        return rule if isinstance(rule, list) else rule(self, bindings)


def _depends_on(*names: str) -> Callable[[Callable[..., list[Option]]], _Rule]:
    """Return the rule of a slot whose options are made once for the same values of these bindings."""

    def rule_of(make: Callable[..., list[Option]]) -> _Rule:
        make_once = cache(lambda *values: Options(make(*values)))
        return lambda language, bindings: make_once(language, *map(bindings.get, names))

    return rule_of


@cache
def _first_mention(language: Language, plot_name: str, name: str, bound: tuple[str, ...], form: str) -> Options:
    """Draw the word of a mention, given those that are `bound` already ("": not yet), and inflect it."""
    words, joint = _joint(language, plot_name)
    free = [axis for axis in range(joint.ndim) if not bound[axis]]
    place = tuple(words.index(word) if word else slice(None) for word in bound[: joint.ndim])
    others = tuple(i for i, axis in enumerate(free) if axis != _MENTIONS.index(name))
    chances = joint[place].sum(axis=others)
    options = []
    for word, chance in zip(words, (chances / chances.sum()).tolist(), strict=True):
        for inflected in _inflected(word, form) if chance else ():
            options.append(Option(chance * inflected.probability, inflected.symbols, ((name, word),)))
    return Options(options)


@cache
def _joint(language: Language, plot_name: str) -> tuple[list[str], np.ndarray]:
    """Return the words of a plot and the probability of each two as A and B [W, W], or of three [W, W, W].

    A third word shares no verb with the others, and is independent of which of them stands first.
    """
    plot = PLOTS[plot_name]
    pairs = language.pairs_of(plot)
    words = list(dict.fromkeys(referent.word for pair in pairs for referent in pair))
    index = {word: i for i, word in enumerate(words)}
    joint = np.zeros((len(words), len(words)))
    for a, b in pairs:  # a pair that is drawn more often is there several times
        joint[index[a.word], index[b.word]] += 1
        joint[index[b.word], index[a.word]] += 1
    if "{C}" in plot.frames[0]:
        shares_none = np.array([[not set(REFERENTS[a].verbs) & set(REFERENTS[b].verbs) for b in words] for a in words])
        weights = shares_none[:, None] & shares_none[None]  # [A, B, C]
        weights = weights * np.array([_weight(REFERENTS[word]) for word in words])
        total = weights.sum(-1, keepdims=True)
        joint = joint[..., None] * weights / np.where(total, total, 1)
    return words, joint / joint.sum()


def _pronouns(form: Callable[[str], str]) -> _Rule:
    """Return the rule of a pronoun in one form; it binds MEANT."""

    @_depends_on("MEANT", "A", "B")
    def options(language: Language, meant: str | None, a: str, b: str) -> list[Option]:
        return _draw_meant(meant, [form(REFERENTS[a].pronoun)], [form(REFERENTS[b].pronoun)])

    return options


def _draw_meant(meant: str | None, of_a: list[str], of_b: list[str]) -> list[Option]:
    """Draw a text, a single symbol, of the mention that is meant; if neither is yet, each with probability 1/2."""
    slots = meant or "AB"
    options = []
    for slot in slots:
        texts = of_a if slot == "A" else of_b
        for text in texts:
            options.append(Option(1 / len(texts) / len(slots), (text,), (("MEANT", slot),)))
    return options


@cache
def _inflected(word: str, form: str) -> Options:
    """Return the options of a slot such as {A.was} whose mention is known."""
    referent = REFERENTS[word]
    child = "girl" if referent.pronoun == "She" else "boy"
    article = "an" if word[0] in "aeiou" else "a"
    forms = {
        "": (word,),
        "gendered": (word, f"a {child} named {word}"),
        "child": (child,),
        "kind": (child if referent.kind == "name" else referent.kind + "s" * referent.plural,),
        "was": ("were" if referent.plural else "was",),
        "a": ("some" if referent.plural else article,),
        "on": ("lay under" if referent.kind == "thing" else "sat on",),
    }
    return _uniform(*forms[form])


def _uniform(*texts: str) -> Options:
    return Options(Option(1 / len(texts), tuple(text.split())) for text in texts)


@_depends_on()
def _plot(language: Language) -> list[Option]:
    total = sum(language.shares.values())
    options = []
    for name, share in language.shares.items():
        options.append(Option(share / total, tuple(PLOTS[name].text.split()), (("PLOT", name),)))
    return options


@_depends_on("PLOT", "FRAME")
def _frame(language: Language, plot_name: str, frame_text: str | None) -> list[Option]:
    return _uniform(*([frame_text] if frame_text is not None else language.frames_of(PLOTS[plot_name])))


@_depends_on("USED")
def _filler(language: Language, used: str | None) -> list[Option]:
    """Draw a neutral sentence that the story has not used yet, and bind the set of used sentences."""
    used_numbers = (used or "").split()
    n_unused = len(frames.FILLERS) - len(used_numbers)
    options = []
    for i, text in enumerate(frames.FILLERS):
        if str(i) not in used_numbers:
            now_used = " ".join(sorted([*used_numbers, str(i)]))
            options.append(Option(1 / n_unused, tuple(text.split()), (("USED", now_used),)))
    return options


@_depends_on("MEANT", "A", "B")
def _verb(language: Language, meant: str, a: str, b: str) -> list[Option]:
    return _uniform(*REFERENTS[a if meant == "A" else b].verbs)


def _one_voice() -> frozenset[str]:
    """Return verbs that training has in the active voice only, two of each side, by hash."""
    known = {"frightened", "feared"}  # of the README
    chosen: list[str] = []
    for slot in ("BY_FIRST", "BY_SECOND"):
        chosen += sorted(set(frames.TEXTS[slot]) - known, key=lambda verb: unit_hash("voice", verb))[:2]
    return frozenset(chosen)


ONE_VOICE = _one_voice()


@_depends_on("MEANT")
def _cause(language: Language, meant: str | None) -> list[Option]:
    """Draw a verb whose subject, or whose object, is the reason of what follows."""
    return _draw_meant(meant, frames.TEXTS["BY_FIRST"], frames.TEXTS["BY_SECOND"])


@_depends_on("MEANT")
def _caused(language: Language, meant: str | None) -> list[Option]:
    """Draw a verb in the passive: in "the cat was feared by the dog" the cat is the reason."""

    def known(slot: str) -> list[str]:
        return [verb for verb in frames.TEXTS[slot] if (verb in ONE_VOICE) == (language.holdout == "voice")]

    return _draw_meant(meant, known("BY_SECOND"), known("BY_FIRST"))


@_depends_on("MEANT", "A", "B")
def _state(language: Language, meant: str | None, a: str, b: str) -> list[Option]:
    of_a, of_b = (frames.TEXTS[f"{REFERENTS[word].kind.upper()}_STATE"] for word in (a, b))
    return _draw_meant(meant, of_a, of_b)


@_depends_on("PLOT")
def _introduction(language: Language, plot_name: str) -> list[Option]:
    """Draw the only mention {A} of a plot without a pronoun."""
    plot = PLOTS[plot_name]
    pools = _word_pools(plot.pools)
    options = []
    for pool in pools:
        total = sum(map(_weight, pool))
        for referent in pool:
            probability = _weight(referent) / total / len(pools)
            symbols = (plot.introduction,)
            options.append(Option(probability, symbols, (("A", referent.word), ("MEANT", "A"))))
    return options


_RULES: dict[str, Options | _Rule] = {slot: _uniform(*texts) for slot, texts in frames.TEXTS.items()}
_RULES |= {
    "PLOT": _plot,
    "FRAME": _frame,
    "FILLERS": Options([Option(0.6, ()), Option(0.2, ("{FILLER}",)), Option(0.2, ("{FILLER}", "{FILLER}"))]),
    "FILLER": _filler,
    "PRONOUN": _pronouns(str),
    "PRONOUN.lower": _pronouns(str.lower),
    "VERB": _verb,
    "REPEAT": lambda language, bindings: _uniform(f"{{{bindings['MEANT']}}}"),
    "CAUSE": _cause,
    "CAUSED": _caused,
    "SIZED": Options([Option(0.6, ()), Option(0.4, ("{SIZE}",))]),
    "STATE": _state,
    # "The animals" and "The girl" refer back to the mention by its number or gender.
    "MENTION_AGAIN": Options(_draw_meant(None, ["{A}"], ["{B}"])),
    "KIND_AGAIN": Options(_draw_meant(None, ["{A.kind}"], ["{B.kind}"])),
    "INTRODUCTION": _introduction,
}
