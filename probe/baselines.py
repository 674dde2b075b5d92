"""What does not refer but might look as if it did: simple rules, a head's own habits, and labels drawn by lot.

All are scored exactly as heads are. A rule may learn from dev; it is then tested on test like everything else.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence

import numpy as np

from data.links import LinkItem, Word
from probe.scores import Scores, best_head, score

Rule = Callable[[LinkItem], float]  # above 0 where it prefers the antecedent, below 0 for a distractor, 0 for neither


def _by_word(worth: Callable[[LinkItem, Word], float]) -> Rule:
    """Make a rule of what each candidate is worth: the best antecedent against the best distractor."""

    def rule(item: LinkItem) -> float:
        right, wrong = (max(worth(item, word) for word in some) for some in (item.antecedents, item.distractors))
        return float(np.sign(right - wrong))

    return rule


# Rules that learn nothing: prefer the candidate mentioned last, first, the grammatical subject, or none.
BASELINES: dict[str, Rule] = {
    "nearest": _by_word(lambda item, word: word[-1]),
    "first": _by_word(lambda item, word: -word[0]),
    "subject": _by_word(lambda item, word: word == item.subject),
    "uniform": _by_word(lambda item, word: 0),
}
KNOWING = frozenset({"sieve"})  # rules that know what a reader must know: shown beside, never "the best baseline"


def most_frequent(dev: Sequence[LinkItem]) -> Rule:
    """Prefer the word that was an antecedent more often in `dev`; a word never seen there counts 0."""
    counts = Counter(_ids(item, word) for item in dev for word in item.antecedents)
    return _by_word(lambda item, word: counts[_ids(item, word)])


def fixed_offset(dev: Sequence[LinkItem]) -> Rule:
    """Prefer the candidate that stands nearest to one distance before the query, the best distance in `dev`."""
    every = [
        [[item.query - word[-1] for word in some] for some in (item.antecedents, item.distractors)] for item in dev
    ]
    distances = np.unique([distance for item in every for some in item for distance in some])
    right = np.zeros(len(distances))  # how often each is, less how often it is wrong
    for antecedents, distractors in every:
        near, other = (np.abs(np.subtract.outer(some, distances)).min(0) for some in (antecedents, distractors))
        right += np.sign(other - near)
    best = int(distances[right.argmax()]) if len(distances) else 0
    return _by_word(lambda item, word: -abs(item.query - word[-1] - best))


def sieve(dev: Sequence[LinkItem]) -> Rule:
    """Prefer the kind of word that went with the word at the query in `dev`: singulars with "It", animals with "tired".

    The kind is the word's place in its pair, so the rule knows number, gender and kind of every word, also of those
    never seen in dev: it is what agreement alone can do. A word at the query that dev lacks, or that went with both
    kinds alike, leaves a tie.
    """
    leaning: dict[int, int] = defaultdict(int)
    for item in dev:
        leaning[item.tokens[item.query]] += 1 - 2 * item.meant
    return lambda item: float(np.sign(leaning.get(item.tokens[item.query], 0)) * (1 - 2 * item.meant))


def fit_rules(dev: Sequence[LinkItem]) -> dict[str, Rule]:
    """Return every rule by name, those that learn having learnt from `dev`."""
    learnt = {"most frequent": most_frequent(dev), "fixed offset": fixed_offset(dev), "sieve": sieve(dev)}
    return BASELINES | learnt


def baselines(rules: Mapping[str, Rule], test: Sequence[LinkItem]) -> dict[str, Scores]:
    """Score `rules` on `test`, whole blocks of items with an antecedent and a distractor, each array [N_b]."""
    return {name: score_baseline(rule, test) for name, rule in rules.items()}


def best_baseline(scores: dict[str, Scores]) -> str:
    """Return the name of the highest Sel@1 among rules that do not know what a reader must know."""
    return max((name for name in scores if name not in KNOWING), key=lambda name: scores[name].accuracy.mean())


def score_baseline(rule: Rule, items: Sequence[LinkItem]) -> Scores:
    """Score a rule on whole blocks of items."""
    preference = np.array([rule(item) for item in items])
    return score(preference, preference, (preference > 0).astype(float))


def surrogate(dev: Sequence[LinkItem], dev_preference: np.ndarray, test: Sequence[LinkItem]) -> np.ndarray:
    """Predict heads' lambda from position and taste alone: what a head would do if it never read the query.

    lambda is fitted by ridge regression (one pseudo-item for each term) on the taste for each word, antecedent less
    distractor, on who comes first and on the log ratio of the distances. There is no constant: it would be reference
    itself. So two items that differ in the query alone get opposite predictions, and over whole blocks of such items
    Sel@1 is exactly 1/2; `explained` says how much of what the head does the surrogate already does.

    Args:
        dev: items to fit on.
        dev_preference: [N_dev, ...] lambda of any number of heads.
        test: items to predict.

    Returns:
        [N_test, ...] lambda; a word that dev lacks bears no taste.

    """
    words = {_ids(item, word) for item in dev for word in item.antecedents + item.distractors}
    column = {word: i for i, word in enumerate(sorted(words))}
    seen = _habits(dev, column)
    outcome = dev_preference.reshape(len(dev), -1)
    taste = np.linalg.solve(seen.T @ seen + np.eye(seen.shape[1]), seen.T @ outcome)
    return (_habits(test, column) @ taste).reshape(len(test), *dev_preference.shape[1:])


def _habits(items: Sequence[LinkItem], column: dict[tuple[int, ...], int]) -> np.ndarray:
    """Return [N, n_words + 2]: each word's presence, first mention and log distance, antecedents less distractors."""
    table = np.zeros((len(items), len(column) + 2))
    for row, item in zip(table, items, strict=True):
        for side, sign in ((item.antecedents, 1), (item.distractors, -1)):
            for word in side:
                if _ids(item, word) in column:
                    row[column[_ids(item, word)]] += sign / len(side)
                row[-1] += sign / len(side) * np.log(1 + item.query - word[-1])
        row[-2] = BASELINES["first"](item)
    return table


def explained(preference: np.ndarray, predicted: np.ndarray) -> np.ndarray:
    """Return the share of lambda's mean square over items [N, ...] that a prediction removes; 1 is all, 0 nothing."""
    whole = (preference**2).sum(axis=0)
    left = ((preference - predicted) ** 2).sum(axis=0)
    return 1 - np.divide(left, whole, out=np.ones_like(whole), where=whole != 0)


def selectivity(
    dev: Sequence[LinkItem],
    dev_preference: np.ndarray,
    test: Sequence[LinkItem],
    test_preference: np.ndarray,
    n_draws: int,
    seed: int,
) -> dict[str, float]:
    """Compare the real labels with labels drawn by lot, each with the head that is best for them (Hewitt & Liang 2019).

    The control task: for each pair of words x template a coin says which member is gold, in all four cells and
    whatever the query says. It can be learnt by a taste for words, never by reference: a pure link head picks either
    member in half of the cells, so it scores 1/2 on any coins, and its selectivity is 1/2. Best are the heads by the
    rule of `best_head`, chosen on dev and scored on test, with the same coins for the same pair x template.

    Args:
        dev: whole blocks to choose heads on.
        dev_preference: [N_dev, L, H] `Rows.selects`.
        test: whole blocks to score the chosen on.
        test_preference: [N_test, L, H].
        n_draws: sets of coins.
        seed: of the coins.

    Returns:
        accuracy and control, both on test, control its mean over the draws, and selectivity, their difference.

    """
    groups = _numbered((item.pair, item.template) for item in [*dev, *test])
    meant = np.array([item.meant for item in [*dev, *test]])
    rng = np.random.default_rng(seed)
    real = np.ones(len(meant))
    found = []
    for draw in range(n_draws + 1):
        coins = rng.integers(0, 2, size=groups.max() + 1)[groups]
        signs = (real if draw == 0 else np.where(coins == meant, 1.0, -1.0))[:, None, None]
        layer, head = best_head(_relabelled(dev_preference, signs[: len(dev)]))
        found.append(_relabelled(test_preference, signs[len(dev) :]).accuracy[:, layer, head].mean())
    accuracy, control = float(found[0]), float(np.mean(found[1:]))
    return {"accuracy": accuracy, "control": control, "selectivity": accuracy - control}


def _relabelled(preference: np.ndarray, signs: np.ndarray) -> Scores:
    flipped = preference * signs
    return score(flipped, flipped, flipped > 0)


def _numbered(names: Iterable[Hashable]) -> np.ndarray:
    """Return a number for each name, the same for the same name."""
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(name, len(numbers)) for name in names])


def _ids(item: LinkItem, word: Word) -> tuple[int, ...]:
    return tuple(item.tokens[place] for place in word)
