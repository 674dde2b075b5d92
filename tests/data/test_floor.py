"""The floor: the filter against every story of a small language, the writer against both, and the oracles by hand."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from random import Random

import numpy as np
import pytest
from scipy.stats import chisquare

from data.links import ORACLES
from data.stories import as_dataset, frames, language, language_of, lexicon, generate_split
from data.stories.blocks import draw_block, plain_story
from data.stories.floor import END, Floor, Reader, words
from data.stories.grammar import Symbols, is_slot, write
from data.stories.language import START, Language, Population
from data.stories.lexicon import Referent
from data.stories.plots import PLOTS
from tests.data.test_stories import CONFIG, FULL

Texts = dict[tuple[str, ...], float]
SKEW = 0.7
# One opener is there twice, as one frame is, and one filler is two others: texts that can be told in several ways.
SMALL_RULES = {
    "OPENER": ("One day ,", "One day ,", "At noon ,"),
    "ENDING": (".", "again ."),
    "PLACE": ("at home",),
    "POSTURE": ("sat",),
    "NATURE": ("kind", "brave"),
    "DEED": ("liked", "watched"),
    "LOOK": ("new",),
    "USED": ("ate", "packed"),
    "CALLED": ("called", "fed"),
    "DID": ("washed",),
    "RESULT": ("glad", "proud"),
    "ASIDE": ("Outside",),
    "QUALITY": ("soft", "new"),
    "FEELING": ("sad",),
}
SMALL_FILLERS = ["All was calm .", "Time went by .", "All was calm . Time went by ."]


def small_nouns() -> tuple[tuple[Referent, Referent], ...]:
    """Three nouns, two of which share a verb, and one that only X tells of."""
    verbs = {"cat": ("purred", "ran"), "dog": ("barked", "growled"), "bus": ("honked", "ran"), "owl": ("hooted",)}
    some = []
    for one, many in lexicon.nouns():
        if one.word in verbs:
            kept = {"verbs": verbs[one.word], "held_out": "dev" if one.word == "owl" else ""}
            some.append((replace(one, **kept), replace(many, **kept)))
    return tuple(some)


def small_names() -> tuple[tuple[Referent, ...], tuple[Referent, ...]]:
    verbs = {"Lily": ("sang", "drew"), "Mia": ("swam",), "Tom": ("sang", "read"), "Ben": ("wept",), "Zor": ("sang",)}
    girls, boys = (tuple(replace(one, verbs=verbs[one.word]) for one in side if one.word in verbs) for side in NAMES)
    return girls, boys


NAMES = lexicon.names()


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Shrink the language until all its stories can be told, and keep none of them for dev or test."""
    nouns, people = small_nouns(), small_names()
    rests = tuple(one for one in lexicon.rests() if one.word in ("mat", "rug"))
    everything = [form for noun in nouns for form in noun] + [*people[0], *people[1], *rests]
    singular, plural = (tuple(forms[i] for forms in nouns) for i in (0, 1))
    animals = tuple(tuple(one for one in side if one.kind == "animal") for side in (singular, plural))
    pools = {
        "number": [(singular, plural)],
        "animals": [animals],
        "gender": [people],
        "rest": [(animals[0], rests)],
        "couple": [(people[0], singular)],
        "singular": [(singular, singular)],
        "same gender": [(people[0], people[0]), (people[1], people[1])],
    }
    for slot, texts in SMALL_RULES.items():
        monkeypatch.setitem(language._RULES, slot, language._evenly(*texts))
    monkeypatch.setitem(language._RULES, "ADJECTIVE", language._by_meaning(("sad", "new"), ("soft", "new")))
    changes = {
        "_pools": pools.__getitem__, "_frames": small_frames, "_pairs": cache(language._pairs.__wrapped__),
        "_PETS": ("cat", "dog"), "FOODS": ["pears", "figs"], "STATES": {"sad": ("wept", "ran"), "lost": ("ran",)},
        "_WEATHER": language._evenly("was late", "was cold"), "_SAYING": language._evenly("say no"),
        "names": lambda: people, "nouns": lambda: nouns, "unit_hash": lambda *parts: 0.5,
        "referents": lambda: {one.word: one for one in everything},
        "_may_meet": lambda pair: pair[0].held_out == pair[1].held_out and pair[0].lemma != pair[1].lemma,
    }  # fmt: skip
    for name, value in changes.items():
        monkeypatch.setattr(language, name, value)
    monkeypatch.setattr(frames, "unit_hash", lambda *parts: 0.5)
    monkeypatch.setattr(frames, "FILLERS", SMALL_FILLERS)
    monkeypatch.setattr(Population, "fillers", (0, 0, 1, 2))
    yield


def small_frames(name: str, kept_for: str) -> tuple[frames.Frame, ...]:
    """Two frames, the first of them twice; where orders have texts of their own, one frame that has but one."""
    if not PLOTS[name].frames:
        return ()
    first, second, *_ = PLOTS[name].frames()
    return (first, first, second) if not PLOTS[name].own_orders else (first, (second[0], second[0]))


def tiny(*names: str, n_bystanders: int = 0, skew: float = SKEW) -> Language:
    shares = tuple((name, 1.0 + i / 7) for i, name in enumerate(names))
    return Language(Population(skew=skew, n_bystanders=n_bystanders, shares=shares))


def derivations(rules: Callable, symbols: Symbols, bound: Mapping[str, str]) -> Iterator[tuple[list[str], float]]:
    """Yield every way to finish a story, by walking the rules and nothing else."""
    said = next((i for i, symbol in enumerate(symbols) if is_slot(symbol)), len(symbols))
    if said == len(symbols):
        yield [*symbols], 1.0
        return
    for option in rules(symbols[said][1:-1], bound):
        rest = option.symbols + symbols[said + 1 :]
        for later, chance in derivations(rules, rest, {**bound, **dict(option.binds)}):
            yield [*symbols[:said], *later], option.chance * chance


def told(rules: Callable, start: Symbols = START) -> tuple[Texts, Texts]:
    """Return the chance of every text, summed over its derivations, and that of its best derivation."""
    whole, best = defaultdict(float), defaultdict(float)
    for text, chance in derivations(rules, start, {}):
        whole[tuple(text)] += chance
        best[tuple(text)] = max(best[tuple(text)], chance)
    return dict(whole), dict(best)


def by_prefix(texts: Texts) -> dict[tuple[str, ...], float]:
    """Return the chance that a story begins so; a story that is over goes on with END."""
    mass: dict[tuple[str, ...], float] = defaultdict(float)
    for text, chance in texts.items():
        for n in range(len(text) + 2):
            mass[(*text, END)[:n]] += chance
    return mass


def largest_difference(some: Language, texts: Texts) -> float:
    mass, floor = by_prefix(texts), Floor(some, 0.5)
    largest = abs(mass[()] - 1)
    for text in texts:
        whole = (*text, END)
        exact = [-math.log(mass[whole[: i + 1]] / mass[whole[:i]]) for i in range(len(whole))]
        largest = max(largest, float(np.abs(np.subtract(floor.read(" ".join(text))[0], exact)).max()))
    return largest


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("name", PLOTS)
def test_the_filter_is_the_sum_over_all_texts(name: str) -> None:
    some = tiny(name)
    texts, best = told(some.rules)
    assert len(texts) > 10
    assert largest_difference(some, texts) < 1e-9
    assert any(best[text] < 0.99 * chance for text, chance in texts.items()), "no text that is told in two ways"


@pytest.mark.usefixtures("small")
def test_the_filter_is_the_sum_over_all_texts_of_a_mix_with_bystanders() -> None:
    some = tiny("agreement gender", "no_pronoun rest", n_bystanders=1)
    texts, _ = told(some.rules)
    assert largest_difference(some, texts) < 1e-9


@pytest.mark.usefixtures("small")
def test_a_single_derivation_of_an_ambiguous_text_is_no_floor() -> None:
    texts, best = told(tiny("ambiguous").rules)
    floor = Floor(tiny("ambiguous"), 0.5)
    for text in list(texts)[:50]:
        surprisal = sum(floor.read(" ".join(text))[0])
        assert surprisal == pytest.approx(-math.log(texts[text]), abs=1e-9)
        assert surprisal < -math.log(best[text]) - 0.1


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("name", PLOTS)
def test_stories_are_drawn_as_often_as_the_filter_expects(name: str) -> None:
    plot, some, rng = PLOTS[name], tiny(name, skew=0.5), Random(name)
    told_frames = language.told_frames(plot, some.population)

    def draw() -> str:
        if plot.family == "no_pronoun":
            return plain_story(rng, some, plot).text
        return rng.choice(draw_block(rng, some, plot, rng.choice(told_frames), shared=False)).text

    assert_drawn_from([draw() for _ in range(700)], told(some.rules)[0])


@pytest.mark.usefixtures("small")
def test_the_mean_surprise_of_written_stories_is_the_entropy() -> None:
    some = tiny("agreement number", "later_cue", "no_pronoun name", "ambiguous")
    texts, _ = told(some.rules)
    rng, floor = Random(1), Floor(some, 0.5)
    written = [write(some.rules, rng, START, {}).text for _ in range(1500)]
    assert_drawn_from(written, texts)
    surprisal = [sum(floor.read(text)[0]) for text in written]
    entropy = -sum(chance * math.log(chance) for chance in texts.values())
    assert abs(np.mean(surprisal) - entropy) < 3 * np.std(surprisal) / len(written) ** 0.5


@pytest.mark.usefixtures("small")
def test_stories_of_another_skew_are_told_apart() -> None:
    rng, texts = Random(1), told(tiny("agreement number").rules)[0]
    written = {
        skew: [write(tiny("agreement number", skew=skew).rules, rng, START, {}).text for _ in range(3000)]
        for skew in (SKEW, 0.5)
    }
    assert_drawn_from(written[SKEW], texts)
    with pytest.raises(AssertionError, match="drawn"):
        assert_drawn_from(written[0.5], texts)


def assert_drawn_from(drawn: list[str], texts: Texts) -> None:
    """Compare counts with chances, rare texts in bins of at least ten."""
    counts: dict[tuple[str, ...], int] = defaultdict(int)
    for text in drawn:
        counts[tuple(words(text))] += 1
    assert set(counts) <= set(texts)
    bins: list[list[float]] = [[0.0, 0.0]]
    for text in sorted(texts):  # those that begin alike are counted together
        if bins[-1][0] >= 10:
            bins.append([0.0, 0.0])
        bins[-1][0] += texts[text] * len(drawn)
        bins[-1][1] += counts[text]
    last = bins.pop()
    bins[-1] = [bins[-1][0] + last[0], bins[-1][1] + last[1]]
    expected, seen = zip(*bins, strict=True)
    assert chisquare(seen, np.array(expected) * sum(seen) / sum(expected)).pvalue > 1e-3, "drawn otherwise"


@pytest.fixture(scope="module")
def judged() -> dict[str, list[tuple[dict, dict]]]:
    """The items of test by how often the first mention was meant in training: (row, link) that know the oracles."""
    found = {}
    for skew in (0.5, 0.9):
        config = replace(
            CONFIG, skew=skew, n_train_stories=40, n_validation_stories=40, n_test_templates=3, n_test_pairs=1
        )
        rows = as_dataset(generate_split(config, "test"))
        found[str(skew)] = [(row, link) for row in rows for link in row["links"] if link["payoff"]]
    return found


def oracles(link: dict) -> dict[str, float]:
    return dict(zip(ORACLES, link["surprisal"], strict=True))


def test_the_best_reader_bets_on_the_antecedents_verbs_and_a_blind_one_on_both(judged: dict) -> None:
    n = 0
    for row, link in judged["0.5"]:
        if row["family"] == "agreement":
            known, blind = math.log(len(link["answers"])), math.log(2)
            assert oracles(link) == pytest.approx(dict.fromkeys(ORACLES, known + blind) | {"bayes": known}, abs=1e-9)
            n += 1
        if row["family"] == "later_cue" and link["site"] != "pronoun":
            assert oracles(link)["bayes"] == pytest.approx(0, abs=1e-9)
            assert oracles(link)["blind"] == pytest.approx(math.log(2), abs=1e-9)
    assert n > 50


def test_where_the_first_mention_was_meant_in_nine_of_ten_the_rules_bet_nine_to_one(judged: dict) -> None:
    beliefs = defaultdict(set)
    for row, link in judged["0.9"]:
        if row["family"] != "agreement":
            continue
        first = row["order"] == row["meant"]
        right = math.log(len(link["answers"])) - math.log(0.9)
        wrong = math.log(len(link["answers"])) - math.log(0.1)
        found = oracles(link)
        assert found["first"] == pytest.approx(right if first else wrong, abs=1e-9)
        assert found["nearest"] == found["first"]  # who knows that the nearest is right in one of ten bets on the first
        subject = found["blind"] if link["subject"] is None else found["first"]  # the same, of what is subject there
        assert found["subject"] == pytest.approx(subject, abs=1e-9)
        assert found["default"] == found["blind"]
        beliefs[first].add(round(found["first"], 6))
    assert all(len(some) == 1 for some in beliefs.values()) and len(beliefs) == 2


def test_what_means_nothing_and_what_means_two_is_read_alike_by_the_rules() -> None:
    floor = Floor(language_of(FULL, "test", "iid"), 0.9)
    for name, text in (
        ("no_antecedent", "One sunny day, the cat sat near the buses. Outside, it was raining."),
        ("no_pronoun", "One sunny day, the cat was at home. The animal purred."),
    ):
        n = len(words(text))
        _, found = floor.read(text, range(5, n))
        after = [surprisal for i, surprisal in found.items() if i >= n - 2]
        for some in after:
            assert some == pytest.approx([some[-1]] * len(ORACLES), abs=1e-9), name


def test_the_chances_of_the_next_word_add_up_to_one_in_the_whole_language() -> None:
    rules, rng = language_of(CONFIG, "train", "iid").rules, Random(0)
    texts = [write(rules, rng, START, {}).text for _ in range(1500)]
    vocabulary = {word for text in texts for word in words(text)} | set(lexicon.word_classes()) | {END}
    reader = Reader(rules, START)
    place = reader.start
    for i, word in enumerate([*words(next(text for text in texts if " it was " in text)), END]):
        if i % 5 == 2:
            assert sum(reader.read(place, one)[0] for one in vocabulary) == pytest.approx(1, abs=1e-9)
        place = reader.read(place, word)[1]


def test_a_text_that_cannot_be_told_is_refused() -> None:
    floor = Floor(language_of(CONFIG, "train", "iid"), 0.5)
    with pytest.raises(ValueError, match="cannot go on with 'barked'"):
        floor.read("One sunny day, the cat sat near the buses. It barked.")
