"""The floor: the filter against all stories of a small language, the generator against both, the payoffs by formula."""

import math
from collections import Counter, defaultdict
from dataclasses import replace
from functools import cache
from random import Random

import numpy as np
import pytest
from scipy.stats import chisquare

from data.stories import frames, generate_split, language, language_of, lexicon
from data.stories.blocks import sample_block, sample_plain_story
from data.stories.floor import Floor
from data.stories.grammar import is_slot
from data.stories.language import START, Language
from data.stories.plots import PLOTS
from data.tokenizer import END
from data.words import words_of
from tests.data.small_corpora import CONFIG

Texts = dict[tuple[str, ...], float]
# One opener is there twice, as one frame is, and one filler is two others: texts with several derivations.
SMALL_RULES = {
    "OPENER": ("One day ,", "One day ,", "At noon ,"), "ENDING": (".", "again ."), "PLACE": ("at home",),
    "POSTURE": ("sat",), "NATURE": ("kind", "brave"), "DEED": ("liked", "watched"), "SIZE": ("small",),
}  # fmt: skip
CAUSES = {"BY_FIRST": ["amazed", "charmed"], "BY_SECOND": ["feared"]}
# Two of the nouns share a verb; the owl and Zor are held out.
VERBS = {
    "cow": ("mooed",), "mat": ("frayed",),
    "cat": ("purred", "ran"), "dog": ("barked", "growled"), "bus": ("honked", "ran"), "owl": ("hooted",),
    "Lily": ("sang", "drew"), "Mia": ("swam",), "Tom": ("sang", "read"), "Ben": ("wept",), "Zor": ("sang",),
}  # fmt: skip


def with_verbs(group):
    """Return the words of a group that the small language has."""
    words = [word for word in group if word.lemma in VERBS]
    return tuple(
        replace(word, verbs=VERBS[word.lemma], held_out="dev" * (word.lemma in ("owl", "Zor"))) for word in words
    )


@pytest.fixture
def small(monkeypatch):
    """Shrink the language until all of its stories can be enumerated, and hold none of them out."""
    nouns = tuple(filter(None, map(with_verbs, lexicon.NOUNS)))
    names = tuple(map(with_verbs, lexicon.NAMES))
    referents = {referent.word: referent for group in (*nouns, *names) for referent in group}
    for slot, texts in SMALL_RULES.items():
        monkeypatch.setitem(language._RULES, slot, language._uniform(*texts))
    for slot, texts in CAUSES.items():
        monkeypatch.setitem(frames.TEXTS, slot, texts)
    changes = {
        "_frames": small_frames, "_pairs": cache(language._pairs.__wrapped__),
        "NAMES": names, "NOUNS": nouns, "REFERENTS": referents, "ONE_VOICE": frozenset({"charmed"}),
        "unit_hash": lambda *strings: 0.5,
        "_valid": lambda pair: pair[0].held_out == pair[1].held_out and pair[0].lemma != pair[1].lemma,
    }  # fmt: skip
    for name, value in changes.items():
        monkeypatch.setattr(language, name, value)
    monkeypatch.setattr(frames, "unit_hash", lambda *strings: 0.5)
    monkeypatch.setattr(frames, "FILLERS", ["All was calm .", "Time went by .", "All was calm . Time went by ."])


def small_frames(plot_name, split):
    """Return two frames, the first of them twice."""
    first_two = PLOTS[plot_name].frames[:2]
    return (*first_two[:1], *first_two)


def derivations(rules, symbols, bindings):
    """Yield every derivation of the symbols with its probability."""
    first = next((i for i, symbol in enumerate(symbols) if is_slot(symbol)), len(symbols))
    if first == len(symbols):
        yield [*symbols], 1.0
        return
    for option in rules(symbols[first][1:-1], bindings):
        rest = option.symbols + symbols[first + 1 :]
        for ending, probability in derivations(rules, rest, {**bindings, **dict(option.binds)}):
            yield [*symbols[:first], *ending], option.probability * probability


def all_texts(rules):
    """Return {text: probability} and the number of derivations."""
    found = [*derivations(rules, START, {})]
    texts: Texts = defaultdict(float)
    for text, probability in found:
        texts[tuple(text)] += probability
    return dict(texts), len(found)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("names", [*((name,) for name in PLOTS), ("verb active", "verb passive", "no_pronoun active")])
def test_the_filter_is_the_sum_over_all_derivations(names):
    small = Language("train", "iid", {name: 1.0 + i / 7 for i, name in enumerate(names)})
    texts, n_derivations = all_texts(small.rules)
    assert n_derivations > len(texts) > 10  # some texts have several
    prefixes: Texts = defaultdict(float)
    for text, probability in texts.items():
        for n in range(len(text) + 2):
            prefixes[(*text, END)[:n]] += probability
    assert prefixes[()] == pytest.approx(1, abs=1e-9)
    floor = Floor(small)
    for text in texts:
        ended = (*text, END)
        exact = [-math.log(prefixes[ended[: i + 1]] / prefixes[ended[:i]]) for i in range(len(ended))]
        np.testing.assert_allclose(floor.surprisal(" ".join(text)), exact, rtol=0, atol=1e-9)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("name", PLOTS)
def test_blocks_are_sampled_with_the_probabilities_of_the_grammar(name):
    plot = PLOTS[name]
    small = Language("train", "iid", {name: 1.0})
    rng = Random(name)

    def draw():
        if plot.family == "no_pronoun":
            return sample_plain_story(rng, small, plot).text
        return rng.choice(sample_block(rng, small, plot, rng.choice(small.frames_of(plot)), minimal_pairs=False)).text

    # A chi-squared test of counts against probabilities; rare texts share a bin.
    texts, _ = all_texts(small.rules)
    counts = Counter(tuple(words_of(draw())) for _ in range(700))
    assert set(counts) <= set(texts)
    bins = [np.zeros(2)]  # expected and observed counts
    for text in sorted(texts):
        if bins[-1][0] >= 10:
            bins.append(np.zeros(2))
        bins[-1] += (texts[text] * 700, counts[text])
    if bins[-1][0] < 10:
        bins[-2] += bins.pop()
    expected, observed = np.transpose(bins)
    assert chisquare(observed, expected * observed.sum() / expected.sum()).pvalue > 1e-3


def test_at_a_payoff_the_optimal_predictor_chooses_among_the_words_that_fit():
    questions = Counter[str]()
    config = replace(CONFIG, n_test_frames=2, n_test_pairs=2)
    floors = {holdout: Floor(language_of(config, "test", holdout)) for holdout in ("iid", "headline", "voice")}
    for story in generate_split(config, "test"):
        surprisal = floors[story.holdout].surprisal(story.text)
        link = story.link
        assert link.payoff is not None
        position = len(words_of(story.text[: link.payoff[0]]))
        assert surprisal[position] == pytest.approx(math.log(link.n_fitting), abs=1e-9)
        questions[link.question] += 1
    assert min(questions[name] for name in ("number", "gender", "verb")) > 30
