"""The language of the stories: which plots there are, how likely each is, and what may fill every slot.

One `Language` is one population of stories: the training mix, or what a hold-out is drawn from. It holds the rules
that `grammar.write` draws from and `floor` weighs. Left out of the rules is only which (frame, pair) cells a hash has
kept for dev and test: no reader could know that, so a story of dev is as likely to it as one of training.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache

from data.stories import frames
from data.stories.frames import Frame, subject
from data.stories.grammar import Option, Symbols
from data.stories.lexicon import FEELINGS, FOODS, QUALITIES, STATES, Referent, names, nouns, referents, rests, unit_hash
from data.stories.plots import PLOTS, Plot

Bound = Mapping[str, str]
Pair = tuple[Referent, Referent]

_FORMS = {  # of a pronoun that opens a sentence: inside one, as an object, as an owner
    "It": ("it", "it", "Its"),
    "They": ("they", "them", "Their"),
    "She": ("she", "her", "Her"),
    "He": ("he", "him", "His"),
}


@dataclass(frozen=True, slots=True)
class Population:
    """What sets one population of stories apart from another."""

    split: str = "train"  # whose held-out words and frames
    holdout: str = "iid"
    skew: float = 0.5  # how often the mention that comes first is meant
    n_bystanders: int = 0  # at most, of mentions that nothing can mean
    shares: tuple[tuple[str, float], ...] = ()  # of plots, by name; a plot without one is not told

    @property
    def fillers(self) -> tuple[int, ...]:
        """How many neutral sentences may stand before the pronoun, each number equally likely."""
        return (3, 4, 5, 6) if self.holdout == "distance" else (0, 0, 0, 1, 2)

    @property
    def bystanders(self) -> tuple[int, ...]:
        """How many bystanders may, each number equally likely."""
        least = 2 if self.holdout == "distractors" else 0
        return tuple(range(least, least + self.n_bystanders + 1))


def told_frames(plot: Plot, population: Population) -> tuple[Frame, ...]:
    """Return the frames of a plot that the population uses."""
    kept_for = population.split if population.holdout in ("templates", "headline") else ""
    return _frames(plot.name, kept_for)


@cache
def _frames(name: str, kept_for: str) -> tuple[Frame, ...]:
    make = PLOTS[name].frames
    return tuple(frame for frame in make() if frames.held_out(frame[0]) == kept_for) if make else ()


def told_pairs(plot: Plot, population: Population) -> tuple[Pair, ...]:
    """Return the pairs of mentions that the population may put into a plot; a pair may stand there several times."""
    if population.holdout in ("nouns", "headline"):
        return _pairs(plot.name, population.split, False)
    return _pairs(plot.name, "", population.holdout == "pairs")


@cache
def _pairs(name: str, kept_for: str, kept_apart: bool) -> tuple[Pair, ...]:
    plot = PLOTS[name]
    # Of one pool each two words are one pair: (a, b) and (b, a) tell the same stories, which must share a split.
    every = [(a, b) for one, two in _pools(plot.pools) for a in one for b in two if one is not two or a.word < b.word]
    if plot.family == "no_pronoun":
        some = [pair for pair in every if _may_meet_in_x(pair) and not (plot.chooses and pair[0].held_out)]
        return tuple(pair for pair in some for _ in range(_weight(pair[0]) * _weight(pair[1])))
    some = [pair for pair in every if _may_meet(pair) and pair[0].held_out == kept_for]
    return tuple(some if kept_for else [pair for pair in some if is_held_out_pair(pair) == kept_apart])


def _pools(kind: str) -> list[tuple[tuple[Referent, ...], tuple[Referent, ...]]]:
    """Return the pools from which the two members of a pair are drawn, several where either may serve."""
    singular, plural = (tuple(forms[i] for forms in nouns()) for i in (0, 1))
    animals = tuple(one for one in singular if one.kind == "animal")
    girls, boys = names()
    return {
        "number": [(singular, plural)],
        "animals": [(animals, tuple(many for many in plural if many.kind == "animal"))],
        "gender": [(girls, boys)],
        "rest": [(animals, rests())],
        "couple": [(girls, singular)],
        "singular": [(singular, singular)],
        "same gender": [(girls, girls), (boys, boys)],
    }[kind]


def _may_meet(pair: Pair) -> bool:
    one, two = pair
    return one.held_out == two.held_out and one.lemma != two.lemma and not set(one.verbs) & set(two.verbs)


def _may_meet_in_x(pair: Pair) -> bool:
    one, two = pair
    if one.held_out and two.held_out:
        return one.lemma != two.lemma
    return _may_meet(pair) and not is_held_out_pair(pair)


def _weight(one: Referent) -> int:
    """How much more often X tells of words that it alone can tell of."""
    return 8 if one.held_out else 1


def is_held_out_pair(pair: Pair) -> bool:
    """Whether two mentions are never introduced together in training: one pair in ten, by hash."""
    return unit_hash("pair", pair[0].word, pair[1].word) < 0.1


def placement(plot: Plot, frame: Frame, pair: Pair) -> tuple[str, str] | None:
    """Return the (split, hold-out) to which a frame with a pair belongs, or None where it belongs to none.

    Decided by hash alone before anything is trained, so that a story of one split can never stand in another.
    """
    nouns_for, frame_for = pair[0].held_out, frames.held_out(frame[0])
    if not _may_meet(pair):
        return None
    if nouns_for and frame_for:
        return (nouns_for, "headline") if nouns_for == frame_for else None
    if nouns_for:
        return nouns_for, "nouns"
    if is_held_out_pair(pair):
        return None if frame_for else ("test", "pairs")
    if frame_for:
        return frame_for, "templates"
    bucket = unit_hash("cell", frames.plain(frame[0]), pair[0].word, pair[1].word)
    return ("dev" if bucket < 0.05 else "test" if bucket < 0.1 else "train"), "iid"


@dataclass(slots=True)
class Language:
    """The rules of one population."""

    population: Population
    _memory: dict[tuple, list[Option]] = field(default_factory=dict)
    _counted: dict[tuple[str, str], dict[str, Counter[str]]] = field(default_factory=dict)

    def rules(self, slot: str, bound: Bound) -> list[Option]:
        """Return the options of a slot, given what has been bound before it."""
        name, _, form = slot.partition(".")
        if name in _BESIDE:
            return self._mention(name, form, bound)
        if name == "PRONOUN":
            return self._pronoun(form, bound)
        if name in bound:
            return [Option(1.0, tuple(bound[name].split()))]
        return _RULES[name](self, bound)

    def plot(self, bound: Bound) -> Plot:
        """Return the plot that is being told."""
        return PLOTS[bound["PLOT"]]

    def remembered(self, *key: object, make: Callable[[], list[Option]]) -> list[Option]:
        """Return the options under `key`, made once."""
        if key not in self._memory:
            self._memory[key] = make()
        return self._memory[key]

    def _mention(self, name: str, form: str, bound: Bound) -> list[Option]:
        """Say a mention, drawing it first where that is still to be done."""
        if name in bound:
            return self.remembered(name, form, bound[name], make=lambda: _said(bound[name], form))
        plot, beside = bound["PLOT"], bound.get(_BESIDE[name], "")
        drawn = self.remembered(plot, name, beside, make=lambda: self._draw(PLOTS[plot], name, beside))

        def make() -> list[Option]:
            return [
                Option(one.chance * said.chance, said.symbols, one.binds)
                for one in drawn
                for said in _said(one.symbols[0], form)
            ]

        return self.remembered(plot, name, beside, form, make=make)

    def _draw(self, plot: Plot, name: str, beside: str) -> list[Option]:
        """Return the chance of each word for a mention, given the word beside which it stands ("" if none yet)."""
        if name in "AB":
            chances = self._members(plot, name)[beside]
            total = sum(chances.values())
            return [Option(n / total, (word,), ((name, word),)) for word, n in chances.items()]
        if name == "C":  # a boy, known as little as the girl is
            girl = referents()[beside]
            boys = [boy for boy in names()[1] if boy.held_out == girl.held_out]
            words = [boy.word for boy in boys if boy.held_out or not is_held_out_pair((girl, boy))]
        else:
            words = [word for word in _company(plot, name) if word != beside]
        return [Option(words.count(word) / len(words), (word,), ((name, word),)) for word in dict.fromkeys(words)]

    def _members(self, plot: Plot, name: str) -> dict[str, Counter[str]]:
        """Return in how many pairs each word is the member `name`, by the word beside it and under "" in all."""
        if (plot.name, name) not in self._counted:
            counts: dict[str, Counter[str]] = defaultdict(Counter)
            for pair in told_pairs(plot, self.population):
                for one, two in [pair] if plot.fixed else [pair, pair[::-1]]:
                    word, other = (one.word, two.word) if name == "A" else (two.word, one.word)
                    counts[""][word] += 1
                    counts[other][word] += 1
            self._counted[plot.name, name] = counts
        return self._counted[plot.name, name]

    def _pronoun(self, form: str, bound: Bound) -> list[Option]:
        """Say the pronoun of what is meant, deciding what is meant where that is still to be done."""
        if "MEANT" in bound:
            return [Option(1.0, (self._pronoun_of(bound["MEANT"], form, bound),))]
        if "A" not in bound:  # the pronoun stands before what it means
            return [
                Option(
                    one.chance, (self._pronoun_of("A", form, {**bound, **dict(one.binds)}),), one.binds + _A_IS_MEANT
                )
                for one in self._mention("A", "", bound)
            ]
        return [
            Option(chance, (self._pronoun_of(slot, form, bound),), (("MEANT", slot),))
            for slot, chance in self.prior(bound)
        ]

    def prior(self, bound: Bound) -> list[tuple[str, float]]:
        """Return the candidates' slots in the order in which they were mentioned, each with its chance to be meant."""
        first = bound.get("FIRST", "A")
        return [(first, self.population.skew), ("B" if first == "A" else "A", 1 - self.population.skew)]

    def _pronoun_of(self, slot: str, form: str, bound: Bound) -> str:
        pronoun = "They" if slot == "A" and self.plot(bound).pools == "couple" else referents()[bound[slot]].pronoun
        return dict(zip(("low", "object", "own"), _FORMS[pronoun], strict=True)).get(form, pronoun)

    def words(self, slot: str, bound: Bound) -> tuple[str, ...]:
        """Return the first words that a slot may become."""
        found: list[str] = []
        for option in self.rules(slot, bound):
            first = option.symbols[0]
            found += self.words(first[1:-1], {**bound, **dict(option.binds)}) if first[0] == "{" else [first]
        return tuple(dict.fromkeys(found))


# What a mention depends on: its partner in the pair, the girl beside the boy, or the one it must differ from.
_BESIDE = {"A": "B", "B": "A", "C": "A", "D": "E", "E": "D"} | {
    "P": "Q",
    "Q": "P",
    "F": "G",
    "G": "F",
    "S": "T",
    "T": "S",
}
_A_IS_MEANT = (("MEANT", "A"),)


def _company(plot: Plot, name: str) -> tuple[str, ...]:
    """Return the words of what is owned or felt, and of bystanders, which no pronoun of the plot can mean."""
    if name in "DE":
        people = plot.pools not in ("gender", "same gender")
        some = [one for pool in (names() if people else zip(*nouns(), strict=True)) for one in pool]
        return tuple(one.word for one in some if not one.held_out)
    return {"P": _PETS, "Q": _PETS, "F": tuple(FOODS), "G": tuple(FOODS)}.get(name, tuple(STATES))


def _said(word: str, form: str) -> list[Option]:
    """Return how a word is said in a form, binding nothing."""
    if not form:
        return [Option(1.0, (word,))]
    one = referents()[word]
    child = "girl" if one.pronoun == "She" else "boy"
    if form == "told":
        return [Option(0.5, (word,)), Option(0.5, ("a", child, "named", word))]
    kind = child if one.kind == "name" else one.kind + "s" * one.plural
    said = {"a": one.article, "was": "were" if one.plural else "was", "child": child, "is": kind}
    return [Option(1.0, (said[form],))]


def _evenly(*texts: str) -> Callable[[Language, Bound], list[Option]]:
    """Return the rule of a slot whose options are texts, equally likely."""
    options = [Option(1 / len(texts), tuple(text.split())) for text in texts]
    return lambda language, bound: options


def _plot(language: Language, bound: Bound) -> list[Option]:
    def make() -> list[Option]:
        shares = [(name, share) for name, share in language.population.shares if share > 0]
        total = sum(share for _, share in shares)
        return [Option(share / total, tuple(PLOTS[name].text.split()), (("PLOT", name),)) for name, share in shares]

    return language.remembered("PLOT", make=make)


def _frame(language: Language, bound: Bound) -> list[Option]:
    """Draw a frame, and remember its subject; where its orders differ, draw one, and remember who comes first."""
    plot = language.plot(bound)

    def make() -> list[Option]:
        told = told_frames(plot, language.population)
        if not plot.own_orders:
            return [Option(1 / len(told), tuple(text.split()), (("SUBJECT", subject(text)),)) for text, _ in told]
        return [
            Option(
                0.5 / len(told),
                tuple(frame[order].split()),
                (("FIRST", "AB"[order]), ("SUBJECT", subject(frame[order]))),
            )
            for frame in told
            for order in (0, 1)
        ]

    return language.remembered("FRAME", plot.name, make=make)


def _fillers(language: Language, bound: Bound) -> list[Option]:
    some = language.population.fillers
    return [Option(some.count(n) / len(some), ("{FILLER}",) * n) for n in dict.fromkeys(some)]


def _bystanders(language: Language, bound: Bound) -> list[Option]:
    some = language.population.bystanders
    article = "" if language.plot(bound).pools in ("number", "animals") else "The"
    told = [f"{article} {{{name}}} {{{name}.was}} {{PLACE}} ." for name in "DE"]
    return [Option(1 / len(some), tuple(" ".join(told[:n]).split())) for n in some]


def _filler(language: Language, bound: Bound) -> list[Option]:
    """Say a neutral sentence that has not been said yet."""
    said = bound.get("SAID", "").split()

    def make() -> list[Option]:
        left = [i for i in range(len(frames.FILLERS)) if str(i) not in said]
        return [
            Option(1 / len(left), tuple(frames.FILLERS[i].split()), (("SAID", " ".join(sorted([*said, str(i)]))),))
            for i in left
        ]

    return language.remembered("FILLER", *said, make=make)


def _verb(language: Language, bound: Bound) -> list[Option]:
    """Say one of the verbs of what is meant; those of a couple are both members' together."""
    plot, meant = language.plot(bound), bound["MEANT"]
    if plot.pools == "couple" and meant == "A":
        verbs = referents()[bound["A"]].verbs + referents()[bound["C"]].verbs
    elif plot.level == "state":
        verbs = STATES[bound["S" if meant == "A" else "T"]]
    else:
        verbs = referents()[bound[meant]].verbs
    return language.remembered(
        "VERB", *verbs, make=lambda: [Option(verbs.count(verb) / len(verbs), (verb,)) for verb in dict.fromkeys(verbs)]
    )


def _by_meaning(of_a: tuple[str, ...], of_b: tuple[str, ...]) -> Callable[[Language, Bound], list[Option]]:
    """Return the rule of a slot whose options depend on which mention is meant."""
    rules = {"A": _evenly(*of_a), "B": _evenly(*of_b)}
    return lambda language, bound: rules[bound["MEANT"]](language, bound)


def _other(language: Language, bound: Bound) -> list[Option]:
    """Say the candidate that is not meant, deciding which that is where it is still to be done."""
    meant = [(bound["MEANT"], 1.0)] if "MEANT" in bound else language.prior(bound)
    return [Option(chance, ("{B}" if slot == "A" else "{A}",), (("MEANT", slot),)) for slot, chance in meant]


def _nothing(language: Language, bound: Bound) -> list[Option]:
    plural = referents()[bound[bound["MEANT"]]].plural
    return _SAYING(language, bound) if plural else _WEATHER(language, bound)


def _said_again(form: str = "") -> Callable[[Language, Bound], list[Option]]:
    """Return the rule by which one of the two mentions is said once more, each equally likely."""
    said = [Option(0.5, (f"{{{slot}{form}}}",), (("MEANT", slot),)) for slot in "AB"]
    return lambda language, bound: said


def _alone(language: Language, bound: Bound) -> list[Option]:
    """Draw the one mention {A} of a plot that has no other, words that only X tells of more often."""
    plot = language.plot(bound)

    def make() -> list[Option]:
        options = []
        pools = _pools(plot.pools)[0]
        for pool in pools:
            total = sum(_weight(one) for one in pool)
            options += [
                Option(
                    _weight(one) / total / len(pools),
                    tuple(plot.alone[one.kind].split()),
                    (("A", one.word), *_A_IS_MEANT),
                )
                for one in pool
            ]
        return options

    return language.remembered("ALONE", plot.name, make=make)


_PETS = tuple(one.word for one, _ in nouns() if one.kind == "animal" and not one.held_out)
_WEATHER = _evenly(*(f"was {one}" for one in "raining snowing late early cold noon windy dark".split()))
_SAYING = _evenly(
    *(f"say {one}" for one in ("rain is good", "snow is near", "winter is long", "summer is short", "noon is late"))
)
_RULES: dict[str, Callable[[Language, Bound], list[Option]]] = {
    "OPENER": _evenly(*frames.OPENERS),
    "ENDING": _evenly(*frames.ENDINGS),
    "PLACE": _evenly(*frames.PLACES),
    "POSTURE": _evenly("sat", "stood", "waited", "stayed", "rested"),
    "NATURE": _evenly("little", "clever", "kind", "brave", "cheerful", "gentle"),
    "DEED": _evenly("watched", "followed", "liked", "noticed", "remembered"),
    "LOOK": _evenly("new", "clean", "fine", "strange", "pretty", "famous"),
    "TASTE": _evenly("gone", "sweet", "fresh", "good", "warm", "ready"),
    "CALLED": _evenly("called", "fed", "brushed", "hugged"),
    "DID": _evenly("washed", "called", "helped", "thanked", "tickled"),
    "RESULT": _evenly("clean", "glad", "proud", "awake", "ready"),
    "PLOT": _plot,
    "FRAME": _frame,
    "FILLERS": _fillers,
    "FILLER": _filler,
    "BYSTANDERS": _bystanders,
    "VERB": _verb,
    "ADJECTIVE": _by_meaning(tuple(FEELINGS), tuple(QUALITIES)),
    "TURN": _by_meaning(("stayed there",), ("was nice",)),
    "LATER": _evenly(
        "{PRONOUN.low} was a {ADJECTIVE} {AGAIN} .", "{PRONOUN.low} was {ADJECTIVE} , so the {AGAIN} {TURN} ."
    ),
    "AGAIN": _by_meaning(("{A}",), ("{B}",)),
    "OTHER": _other,
    "OWNED": _by_meaning(("{F}",), ("{G}",)),
    "PET": _by_meaning(("{P}",), ("{Q}",)),
    # Said before the pronoun, so that a head that stands there can know that nothing is meant.
    "ASIDE": _evenly("Outside", "In town", "All around", "Over there"),
    "NOTHING": _nothing,
    "SAID_AGAIN": _said_again(),
    "WHICH": _said_again(".is"),
    "ALONE": _alone,
    "QUALITY": _evenly(*QUALITIES),
    "FEELING": _evenly(*FEELINGS),
    "IT": _evenly("it"),
    # The verb stands away from its noun, where only attention can bring the two together, as after a pronoun. "The
    # animals", "The girl": number and gender are to be read back from the mention. Where a name is hardly ever said
    # again before what it does, its calling is learned too late.
    "NOUN": _evenly(
        "there {A.was} {A.a} {A} {PLACE} . The {A.is}",
        "the {A} {A.was} {PLACE} . The {A.is}",
        "there {A.was} {A.a} {A} {PLACE} that",
        "the {A} that {A.was} {PLACE}",
        "the {A} {POSTURE} {PLACE} . The {A.is}",
        "we saw the {A} {PLACE} . The {A.is}",
    ),
    "NAME": _evenly(
        "there was a {A.child} named {A} . {A}",
        "{A} was a {NATURE} {A.child} . The {A.is}",
        "there was a {A.child} named {A} {PLACE} who",
        "{A} , a {NATURE} {A.child} ,",
        "there was a child named {A} {PLACE} . The {A.is}",
    ),
    "FELT": _evenly(
        "the {A} was {FEELING}", "there was a {FEELING} {A}", "the {A} was {FEELING} , so the {A} stayed there"
    ),
    "BEING": _evenly(
        "the {A} was {QUALITY}", "there was a {QUALITY} {A}", "the {A} was {QUALITY} , so the {A} was nice"
    ),
}
START: Symbols = ("{OPENER}", "{PLOT}")
