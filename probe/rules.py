"""Explanations that are not coreference: rules and random labels, scored like heads.

- A rule is a function of one text: 1 if it prefers the antecedent, -1 another mention, 0 a tie.
- Rules may be fitted on dev; they are tested on test like everything else.
- In the stories every fixed rule is right in exactly half of the texts (docs/data.md#balance), which the tests check.
- `selectivity` is after Hewitt & Liang 2019, who train a probe on random labels; here random labels choose a head.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from data.pairs import Cell, Items, Word
from probe.attention import HeadScores, Scores, best_head, score
from probe.results import Head

Rule = Callable[[Cell], float]  # 1 if it prefers the antecedent, -1 another mention, 0 a tie


def _prefer(word_score: Callable[[Cell, Word], float]) -> Rule:
    def rule(cell: Cell) -> float:
        of_meant = max(word_score(cell, word) for word in cell.meant)
        of_others = max(word_score(cell, word) for word in cell.other + cell.bystanders)
        return float(np.sign(of_meant - of_others))

    return rule


# Rules that need no fitting: the mention that is last, first, the grammatical subject, or none.
FIXED_RULES: dict[str, Rule] = {
    "nearest": _prefer(lambda cell, word: word[-1]),
    "first": _prefer(lambda cell, word: -word[0]),
    "subject": _prefer(lambda cell, word: word == cell.subject),
    "uniform": _prefer(lambda cell, word: 0),
}


def preferred(rule: str, items: Items) -> np.ndarray:
    """Return what a fixed rule prefers in the first text of each pair, [N]: 1 the antecedent, -1 another mention."""
    return np.array([FIXED_RULES[rule](pair.cells[0]) for pair in items.pairs])


def most_frequent(dev: Sequence[Cell]) -> Rule:
    """Return the rule that prefers the word that was an antecedent more often in `dev`."""
    counts: Counter[tuple[int, ...]] = Counter()
    for cell in dev:
        counts.update(word_ids(cell, word) for word in cell.meant)
    return _prefer(lambda cell, word: counts[word_ids(cell, word)])


def fixed_offset(dev: Sequence[Cell]) -> Rule:
    """Return the rule that prefers the mention nearest to one distance before the query, the best one in `dev`."""
    # Every distance of a mention is a possible rule.
    offsets = {cell.query - word[-1] for cell in dev for word in cell.meant + cell.other + cell.bystanders}
    rules = [_near(offset) for offset in sorted(offsets)]

    # Texts in which each rule is right, minus texts in which it is wrong.
    wins = [sum(map(rule, dev)) for rule in rules]
    return rules[int(np.argmax(wins))]


def _near(offset: int) -> Rule:
    return _prefer(lambda cell, word: -abs(cell.query - word[-1] - offset))


def fit_rules(dev: Items) -> dict[str, Rule]:
    """Return every rule by name, with those that need fitting fitted on `dev`."""
    return FIXED_RULES | {"most frequent": most_frequent(dev.cells), "fixed offset": fixed_offset(dev.cells)}


def score_rules(rules: Mapping[str, Rule], items: Items) -> dict[str, Scores]:
    """Score rules on whole blocks whose texts have an antecedent and another mention, each field [N_b]."""
    scores = {}
    for name, rule in rules.items():
        preferences = np.array(list(map(rule, items.cells)))  # [N]
        scores[name] = score(preferences, preferences)
    return scores


def selectivity(dev: HeadScores, test: HeadScores, n_controls: int, seed: int, tested: Head | None = None) -> float:
    """Return the accuracy on the real labels minus the mean accuracy on control tasks (Hewitt & Liang 2019).

    A control task: words are ranked at random, and the higher-ranked word of a pair is gold in all four cells. The
    ranks are the same in dev and test, so a head that prefers some words to others can solve it. A pure link head has
    accuracy 1/2 on any ranks, so its selectivity is 1/2. For each of `n_controls` rankings the best head is chosen on
    dev by `best_head` and scored on test, both whole blocks. So is the head for the real labels, unless `tested` names
    it.
    """
    # One rank for each word: with labels drawn for each pair, as first tried, every head was right in half of them.
    # The place of both words of each text in the list of all words, [texts].
    both_words = [pair.clusters[1:] for pair in (*dev.items.pairs, *test.items.pairs)]
    words, places = np.unique(both_words, return_inverse=True)
    first, second = places.reshape(-1, 2).repeat(2, axis=0).T
    meant = np.tile([0, 1], len(both_words))  # 0: the first word is gold, 1: the second
    margins = np.concatenate([dev.rows.attention_margin, test.rows.attention_margin])
    n_dev = len(dev.items.cells)

    def accuracy(labels: np.ndarray, place: Head | None = None) -> float:
        """Return the test accuracy of a head, or of the best on dev, with other gold words: 0 or 1, [texts]."""
        signed = np.where(labels == meant, 1.0, -1.0)[:, None, None] * margins  # [texts, L, H]
        on_dev = score(signed[:n_dev], signed[:n_dev])
        on_test = score(signed[n_dev:], signed[n_dev:])
        return float(on_test.accuracy[:, *(place or best_head(on_dev))].mean())

    rng = np.random.default_rng(seed)
    controls = []
    for _ in range(n_controls):
        rank = rng.permutation(len(words))
        controls.append(accuracy(rank[second] > rank[first]))
    return accuracy(meant, tested) - float(np.mean(controls))


def word_ids(cell: Cell, word: Word) -> tuple[int, ...]:
    """Return the token ids of a word."""
    return tuple(cell.tokens[position] for position in word)
