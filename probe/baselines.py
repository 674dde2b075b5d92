"""Explanations that are not coreference: rules and random labels, scored like heads.

Rules may be fitted on dev; they are tested on test like everything else.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from data.links import LinkItem, Word
from probe.results import Head
from probe.scores import Scores, best_head, score

Rule = Callable[[LinkItem], float]  # 1 if it prefers the antecedent, -1 a distractor, 0 a tie


def _prefer(word_score: Callable[[LinkItem, Word], float]) -> Rule:
    """Return the rule that prefers the candidate of highest score."""

    def rule(item: LinkItem) -> float:
        antecedent = max(word_score(item, word) for word in item.antecedents)
        distractor = max(word_score(item, word) for word in item.distractors)
        return float(np.sign(antecedent - distractor))

    return rule


# Rules that need no fitting: the candidate mentioned last, first, the grammatical subject, or none.
FIXED_RULES: dict[str, Rule] = {
    "nearest": _prefer(lambda item, word: word[-1]),
    "first": _prefer(lambda item, word: -word[0]),
    "subject": _prefer(lambda item, word: word == item.subject),
    "uniform": _prefer(lambda item, word: 0),
}
REFERENCE_RULES = frozenset({"agreement sieve"})  # use the labels' cue: shown, but never "the best baseline"


def most_frequent(dev: Sequence[LinkItem]) -> Rule:
    """Return the rule that prefers the word that was an antecedent more often in `dev`."""
    counts: Counter[tuple[int, ...]] = Counter()
    for item in dev:
        counts.update(_word_ids(item, word) for word in item.antecedents)
    return _prefer(lambda item, word: counts[_word_ids(item, word)])


def fixed_offset(dev: Sequence[LinkItem]) -> Rule:
    """Return the rule that prefers the candidate nearest to one distance before the query, the best one in `dev`."""

    def distances(item: LinkItem, words: Sequence[Word]) -> list[int]:
        return [item.query - word[-1] for word in words]

    # Every distance of a mention in dev is a possible rule, [O].
    found: set[int] = set()
    for item in dev:
        found.update(distances(item, item.antecedents + item.distractors))
    offsets = np.array(sorted(found))

    # Items in which each rule is right, minus items in which it is wrong.
    wins = np.zeros(len(offsets))
    for item in dev:
        right = np.abs(np.subtract.outer(distances(item, item.antecedents), offsets)).min(0)
        wrong = np.abs(np.subtract.outer(distances(item, item.distractors), offsets)).min(0)
        wins += np.sign(wrong - right)
    best = int(offsets[wins.argmax()]) if found else 0
    return _prefer(lambda item, word: -abs(item.query - word[-1] - best))


def agreement_sieve(dev: Sequence[LinkItem]) -> Rule:
    """Return the rule that knows which kind of word agrees with the query: singular with "It", animal with "tired".

    The kind is the word's position in its pair, so the rule knows number, gender and kind of all words, also of words
    that are not in dev. A query word that dev lacks, or that goes with both kinds equally often, gives a tie.
    """
    leaning: dict[int, int] = defaultdict(int)
    for item in dev:
        leaning[item.tokens[item.query]] += 1 - 2 * item.meant
    return lambda item: float(np.sign(leaning.get(item.tokens[item.query], 0)) * (1 - 2 * item.meant))


def fit_rules(dev: Sequence[LinkItem]) -> dict[str, Rule]:
    """Return every rule by name, with those that need fitting fitted on `dev`."""
    return FIXED_RULES | {
        "most frequent": most_frequent(dev),
        "fixed offset": fixed_offset(dev),
        "agreement sieve": agreement_sieve(dev),
    }


def score_rules(rules: Mapping[str, Rule], items: Sequence[LinkItem]) -> dict[str, Scores]:
    """Score rules on whole blocks of items that have an antecedent and a distractor, each field [N_b]."""
    scores = {}
    for name, rule in rules.items():
        preferences = np.array([rule(item) for item in items])  # [N]
        scores[name] = _score_margin(preferences)
    return scores


def best_baseline(scores: Mapping[str, Scores]) -> str:
    """Return the rule of highest accuracy, without REFERENCE_RULES."""
    names = [name for name in scores if name not in REFERENCE_RULES]
    return max(names, key=lambda name: scores[name].accuracy.mean())


def selectivity(
    dev: Sequence[LinkItem],
    dev_margin: np.ndarray,
    test: Sequence[LinkItem],
    test_margin: np.ndarray,
    n_controls: int,
    seed: int,
    tested: Head | None = None,
) -> float:
    """Return the accuracy on the real labels minus the mean accuracy on control tasks (Hewitt & Liang 2019).

    A control task: words are ranked at random, and the higher-ranked word of a pair is gold in all four cells. The
    ranks are the same in dev and test, so a head that prefers some words to others can solve it. A pure link head has
    accuracy 1/2 on any ranks, so its selectivity is 1/2. For each of `n_controls` rankings the best head is chosen on
    dev by `best_head` and scored on test; both are whole blocks, with the margins [N, L, H] of `HeadRows`. So is the
    head for the real labels, unless `tested` names it.
    """
    # The place of both words of each item's pair in the list of all words, [N].
    items = [*dev, *test]
    words, places = np.unique([item.pair.split()[:2] for item in items], return_inverse=True)
    first, second = places.reshape(-1, 2).T
    meant = np.array([item.meant for item in items])  # 0: the first word is gold, 1: the second

    def accuracy(labels: np.ndarray, place: Head | None = None) -> float:
        """Return the test accuracy of a head, or of the best on dev, with other gold words: 0 or 1, [N]."""
        signs = np.where(labels == meant, 1.0, -1.0)[:, None, None]
        layer, head = place or best_head(_score_margin(dev_margin * signs[: len(dev)]))
        scores = _score_margin(test_margin * signs[len(dev) :])
        return float(scores.accuracy[:, layer, head].mean())

    rng = np.random.default_rng(seed)
    controls = []
    for _ in range(n_controls):
        rank = rng.permutation(len(words))
        controls.append(accuracy(rank[second] > rank[first]))
    return accuracy(meant, tested) - float(np.mean(controls))


def _score_margin(margin: np.ndarray) -> Scores:
    return score(margin, margin, (margin > 0).astype(float))


def _word_ids(item: LinkItem, word: Word) -> tuple[int, ...]:
    return tuple(item.tokens[position] for position in word)
