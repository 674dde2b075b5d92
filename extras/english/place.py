"""The place rule predicts which of two people the author means from place and form, not from the meaning of words.

It is the baseline for a head that predicts whom the author means: a logistic regression of "the person named last is
meant" on features of both mentions and of the words before the pronoun, and on all products of two of them. Words of
the story have no features of their own, but a few that show the form of a sentence.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from scipy import special

from data.pairs import Span
from data.words import ENGLISH_WORD
from extras.english.lexicon import NAME_CLASSES
from extras.english.passages import Passage, name_counts, names_by_length

# From the features [N, F] of passages to the log odds [N] that the nearest person is meant
PlaceRule = Callable[[Sequence[Sequence[float]]], np.ndarray]
_ENDS = frozenset(".!?")
_BEFORE = (("and",), ("with", "to", "for", "of", "by", "at", "from"), ("the", "a", "an"), ("my", "his", "her", "their"))
_AFTER = (("and",), (",",), ("'", "\u2019"), ("said", "asked", "told"), ("was", "had", "is"), (".", "!", "?"))
_LAST = ((",",), ("and",), (".", "!", "?"), ('"', "\u201d", "'", "\u2019"), ("but", "so"), ("that", "if"),
         ("when", "because", "as"), ("to", "for", "with", "at", "of"))  # fmt: skip
_PARENTS = frozenset("mom dad mommy daddy mother father mum mummy grandma grandpa".split())
_PENALTIES = (0.05, 0.1, 0.2, 0.4)  # added to the mean log loss; one is chosen by cross-validation on the fitted text
_N_FOLDS = 5
MIN_FITTED = 1000  # passages; a rule fitted to fewer would leave more to the head
N_NAMES = 12  # names are drawn from this many of each gender


def nearest(passage: Passage) -> int:
    """Return the class of the last mentioned person."""
    return int(passage.mentions[1][-1] > passage.mentions[0][-1])


def place_features(passage: Passage) -> list[float]:
    """Return the features of a passage with two people: of the nearest, the other one, and the last words."""
    near = nearest(passage)
    values = [*_features_of(passage, near), *_features_of(passage, 1 - near)]

    words = list(map(str.lower, ENGLISH_WORD.findall(passage.text)))
    since_end = next((i for i, word in enumerate(reversed(words)) if word in _ENDS), len(words))
    form = passage.forms[0]
    values += [words[-1] in group for group in _LAST]
    values += [since_end <= 1, np.log1p(since_end), np.log1p(len(words)), form.lower() == "she", form.istitle()]
    return list(map(float, values))


def _features_of(passage: Passage, side: int) -> list[float]:
    mentions, others = passage.mentions[side], passage.mentions[1 - side]
    start, end = mentions[-1]
    before = [".", *map(str.lower, ENGLISH_WORD.findall(passage.text[:start]))]
    after = list(map(str.lower, ENGLISH_WORD.findall(passage.text[end:]))) or [""]
    n_ends = sum(word in _ENDS for word in after)
    values = [
        np.log1p(len(after)),
        n_ends == 0,
        n_ends == 1,
        np.log(len(mentions)),
        passage.subject in mentions,
        mentions[0] < others[0],
        before[-1] in _ENDS,
        passage.text[start].isupper(),
        passage.text[start:end].lower() in _PARENTS,
    ]
    values += [before[-1] in group for group in _BEFORE]
    return values + [after[0] in group for group in _AFTER]


def fit_place_rule(passages: Sequence[Passage]) -> PlaceRule:
    """Return the rule fitted to whom the author means in `passages`, all with two people."""
    features = np.array(list(map(place_features, passages)))
    is_nearest = np.array([passage.meant == nearest(passage) for passage in passages])
    means = features.mean(axis=0)
    scales = np.maximum(features.std(axis=0), 0.05)  # a feature that is nearly constant gets no large value
    inputs = _with_products((features - means) / scales)

    documents = np.unique([passage.doc for passage in passages], return_inverse=True)[1]
    folds = documents % _N_FOLDS

    def unseen_loss(penalty: float) -> float:
        """Return the loss on documents that the fit has not seen."""
        total = 0.0
        for fold in range(_N_FOLDS):
            weights = _fit(inputs[folds != fold], is_nearest[folds != fold], penalty)
            total += _log_losses(inputs[folds == fold] @ weights, is_nearest[folds == fold]).sum()
        return total

    weights = _fit(inputs, is_nearest, min(_PENALTIES, key=unseen_loss))

    def rule(features: Sequence[Sequence[float]]) -> np.ndarray:
        return np.asarray(_with_products((np.array(features) - means) / scales) @ weights)

    return rule


def redrawn(passages: Sequence[Passage], rule: PlaceRule, n_tokens: Callable[[str], int], seed: int) -> list[Passage]:
    """Return passages with two people, with their log odds of the rule and redrawn names, so that none dominates.

    The names are the most frequent of each gender that have the same number of tokens (`n_tokens`), up to N_NAMES. A
    person without a name ("the king") keeps the noun.
    """
    names = dict(name_counts(passages).most_common())
    by_length = names_by_length(names, n_tokens).values()
    pools = max(by_length, key=lambda pools: min(N_NAMES, *map(len, pools)), default=([], []))

    rng = np.random.default_rng(seed)
    features = list(map(place_features, passages))
    found = []
    for passage, form, place in zip(passages, features, rule(features).tolist(), strict=True):
        changes = dict[Span, str]()
        entities = list(passage.entities)
        for side, pool in enumerate(pools):
            if not pool:
                continue  # a text may have names of one gender only
            drawn = pool[int(rng.integers(min(N_NAMES, len(pool))))]
            if NAME_CLASSES.keys() >= set(passage.surfaces(side)):
                changes |= dict.fromkeys(passage.mentions[side], drawn)
                entities[side] = drawn.lower()
        first, second = entities
        renamed = passage.with_words(changes)
        found.append(replace(renamed, entities=(first, second), place=place, form=tuple(form)))
    return found


def _with_products(features: np.ndarray) -> np.ndarray:
    """Return a constant, the features and all products of two, [N, 1 + F + F (F - 1) / 2]."""
    first, second = np.triu_indices(features.shape[1], k=1)
    return np.hstack([np.ones((len(features), 1)), features, features[:, first] * features[:, second]])


def _log_losses(log_odds: np.ndarray, is_true: np.ndarray) -> np.ndarray:
    return np.logaddexp(0.0, np.where(is_true, -log_odds, log_odds))


def _fit(inputs: np.ndarray, is_true: np.ndarray, penalty: float) -> np.ndarray:
    """Return the weights of a logistic regression with an L2 penalty on all but the constant."""
    penalties = np.full(inputs.shape[1], penalty)
    penalties[0] = 0.0

    def loss_and_gradient(weights: np.ndarray) -> tuple[float, np.ndarray]:
        log_odds = inputs @ weights
        loss = _log_losses(log_odds, is_true).mean() + (penalties * weights**2).sum() / 2
        return loss, inputs.T @ (special.expit(log_odds) - is_true) / len(inputs) + penalties * weights

    from scipy import optimize  # a quarter of a second to import, and only English text needs it

    start = np.zeros(inputs.shape[1])
    return np.asarray(optimize.minimize(loss_and_gradient, start, jac=True, method="L-BFGS-B").x)
