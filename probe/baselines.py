"""Explanations that are not coreference: rules, a head's habits, and random labels, all scored like heads.

Rules may be fitted on dev; they are tested on test like everything else.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from data.links import LinkItem, Word
from probe.scores import Scores, best_head, score

Rule = Callable[[LinkItem], float]  # 1 if it prefers the antecedent, -1 a distractor, 0 a tie
_WordScore = Callable[[LinkItem, Word], float]


def _prefer(word_score: _WordScore) -> Rule:
    """Return the rule that prefers the candidate of highest score."""

    def rule(item: LinkItem) -> float:
        antecedent = max(word_score(item, word) for word in item.antecedents)
        return float(np.sign(antecedent - max(word_score(item, word) for word in item.distractors)))

    return rule


# Rules that need no fitting: the candidate mentioned last, first, the grammatical subject, or none.
FIXED_RULES: dict[str, Rule] = {
    "nearest": _prefer(lambda item, word: word[-1]),
    "first": _prefer(lambda item, word: -word[0]),
    "subject": _prefer(lambda item, word: word == item.subject),
    "uniform": _prefer(lambda item, word: 0),
}
REFERENCE_RULES = frozenset({"agreement sieve"})  # use the labels' own cue: shown beside, never "the best baseline"


def most_frequent(dev: Sequence[LinkItem]) -> Rule:
    """Return the rule that prefers the word that was an antecedent more often in `dev`."""
    counts = Counter(_word_ids(item, word) for item in dev for word in item.antecedents)
    return _prefer(lambda item, word: counts[_word_ids(item, word)])


def fixed_offset(dev: Sequence[LinkItem]) -> Rule:
    """Return the rule that prefers the candidate nearest to one distance before the query, the best one in `dev`."""

    def distances(item: LinkItem, words: Sequence[Word]) -> list[int]:
        return [item.query - word[-1] for word in words]

    pairs = [(distances(item, item.antecedents), distances(item, item.distractors)) for item in dev]
    offsets = np.unique([distance for pair in pairs for side in pair for distance in side])
    wins = np.zeros(len(offsets))  # items in which each offset is right, minus items in which it is wrong
    for antecedents, distractors in pairs:
        right, wrong = (np.abs(np.subtract.outer(side, offsets)).min(0) for side in (antecedents, distractors))
        wins += np.sign(wrong - right)
    best = int(offsets[wins.argmax()]) if len(offsets) else 0
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
    fitted = {
        "most frequent": most_frequent(dev),
        "fixed offset": fixed_offset(dev),
        "agreement sieve": agreement_sieve(dev),
    }
    return FIXED_RULES | fitted


def score_rule(rule: Rule, items: Sequence[LinkItem]) -> Scores:
    """Score a rule on whole blocks of items, each field [N_b]."""
    preference = np.array([rule(item) for item in items])
    return score(preference, preference, (preference > 0).astype(float))


def score_rules(rules: Mapping[str, Rule], items: Sequence[LinkItem]) -> dict[str, Scores]:
    """Score rules on whole blocks of items that have an antecedent and a distractor."""
    return {name: score_rule(rule, items) for name, rule in rules.items()}


def best_baseline(scores: Mapping[str, Scores]) -> str:
    """Return the rule of highest accuracy, without REFERENCE_RULES."""
    return max((name for name in scores if name not in REFERENCE_RULES), key=lambda name: scores[name].accuracy.mean())


def habit_prediction(dev: Sequence[LinkItem], dev_log_ratio: np.ndarray, test: Sequence[LinkItem]) -> np.ndarray:
    """Predict heads' log ratios from position and words alone, as if the head never read the query.

    Ridge regression (penalty 1) of the log ratio on the presence of each word, on which candidate comes first and on
    the log ratio of the distances, antecedents minus distractors. It has no constant, because a constant would be
    coreference. Two items that differ in the query alone get opposite predictions, so over whole blocks of such items
    the accuracy is exactly 1/2.

    Args:
        dev: items to fit on.
        dev_log_ratio: [N_dev, ...] log ratios of any number of heads.
        test: items to predict; words that are not in dev have no effect.

    Returns:
        [N_test, ...] predicted log ratios.

    """
    words = {_word_ids(item, word) for item in dev for word in item.antecedents + item.distractors}
    column = {word: i for i, word in enumerate(sorted(words))}
    features = _habit_features(dev, column)
    target = dev_log_ratio.reshape(len(dev), -1)
    weights = np.linalg.solve(features.T @ features + np.eye(features.shape[1]), features.T @ target)
    return (_habit_features(test, column) @ weights).reshape(len(test), *dev_log_ratio.shape[1:])


def _habit_features(items: Sequence[LinkItem], column: Mapping[tuple[int, ...], int]) -> np.ndarray:
    """Return [N, n_words + 2]: word presence, first mention and log distance, antecedents minus distractors."""
    features = np.zeros((len(items), len(column) + 2))
    for row, item in zip(features, items, strict=True):
        for words, sign in ((item.antecedents, 1), (item.distractors, -1)):
            for word in words:
                if _word_ids(item, word) in column:
                    row[column[_word_ids(item, word)]] += sign / len(words)
                row[-1] += sign / len(words) * np.log(1 + item.query - word[-1])
        row[-2] = FIXED_RULES["first"](item)
    return features


def explained_share(log_ratio: np.ndarray, predicted: np.ndarray) -> np.ndarray:
    """Return the share of the mean square of the log ratio [N, ...] that a prediction removes."""
    total = (log_ratio**2).sum(axis=0)
    residual = ((log_ratio - predicted) ** 2).sum(axis=0)
    return 1 - np.divide(residual, total, out=np.ones_like(total), where=total != 0)


def selectivity(
    dev: Sequence[LinkItem],
    dev_margin: np.ndarray,
    test: Sequence[LinkItem],
    test_margin: np.ndarray,
    n_controls: int,
    seed: int,
) -> dict[str, float]:
    """Return the accuracy on the real labels minus the accuracy on random labels (Hewitt & Liang 2019).

    The control task: for each word pair x template a coin decides which word is gold in all four cells. A head can
    solve it by a preference for words, not by coreference: a pure link head has accuracy 1/2 on any coins, so its
    selectivity is 1/2. For each set of labels the best head is chosen on dev by `best_head` and scored on test.

    Args:
        dev: whole blocks to choose heads on.
        dev_margin: [N_dev, L, H] `HeadRows.margin`.
        test: whole blocks to score the chosen heads on.
        test_margin: [N_test, L, H].
        n_controls: number of sets of random labels.
        seed: seed of the coins.

    Returns:
        accuracy, control (mean accuracy on random labels) and selectivity, their difference; all on test.

    """
    items = [*dev, *test]
    names = sorted({(item.pair, item.template) for item in items})
    number = {name: i for i, name in enumerate(names)}
    groups = np.array([number[item.pair, item.template] for item in items])
    meant = np.array([item.meant for item in items])
    rng = np.random.default_rng(seed)

    def accuracy(signs: np.ndarray) -> float:
        signs = signs[:, None, None]
        layer, head = best_head(_score_margin(dev_margin * signs[: len(dev)]))
        return float(_score_margin(test_margin * signs[len(dev) :]).accuracy[:, layer, head].mean())

    coins = [rng.integers(0, 2, size=len(names))[groups] for _ in range(n_controls)]
    control = float(np.mean([accuracy(np.where(coin == meant, 1.0, -1.0)) for coin in coins]))
    real = accuracy(np.ones(len(items)))
    return {"accuracy": real, "control": control, "selectivity": real - control}


def _score_margin(margin: np.ndarray) -> Scores:
    return score(margin, margin, margin > 0)


def _word_ids(item: LinkItem, word: Word) -> tuple[int, ...]:
    return tuple(item.tokens[position] for position in word)
