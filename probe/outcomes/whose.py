"""Whose gender does a head copy? Whether its edges predict whom the author means beyond a fitted rule of place.

A head that copies the gender of the last name decides "she" or "he" as well as one that finds the antecedent. So the
head's edges must predict whom the author means among passages in which a place rule (`data.tested.place`) says the
same:

    D   decision of the model towards the person named last, in nats: the mean of a passage and its twin
    E   the part of D that the head's edges carry: (D - D with its weights on the two people exchanged) / 2
    y   the author means the person named last;  L  the log odds of the place rule for that
    c   the coefficient of z(E) in the logistic regression of y on 1, L, the rules first and subject, and z(E)
    p   the share of permutations of y within strata of L whose c is at least as large

And it must be causal: with the head's weights split as in the mean passage of a stratum, D must depend less on y.
Axes: N passages, B resamplings, S strata.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from scipy import special

from data.tested.pairs import Items
from probe.config import ProbeConfig
from probe.edits import Sites
from probe.outcomes.outcome import Case, Column, Job, Measured, Outcome
from probe.questions import TESTED, Question
from probe.results import (
    NOT_KNOWN,
    SUGGESTIVE,
    SUPPORTED,
    Estimate,
    Finding,
    Head,
    Tested,
    TestedModel,
    Values,
    percent,
    show,
)
from probe.rules import preferred
from probe.statistics import resampling_counts, sample_of

N_PERMUTATIONS = 2000  # whatever the settings: p must be able to be far below the bar
UNSURE = 1.1  # log odds of the place rule up to which it is unsure: a probability from .25 to .75
N_STRATA = 20  # of the log odds of the place rule; half of them with less than FEW passages
FEW = 500
_NEWTON_STEPS = 8
_ROWS_AT_ONCE = 200


class WhoseOutcome(Outcome):
    """Heads that copy: whose gender?"""

    name = "whose"
    verbs = ("copies", "copy")
    levels = {
        "E1": "it copies, but what it copies is not shown to predict whom the author means",
        "E2": "what it copies predicts whom the author means, beyond a fitted rule of place",
        "E3": "the model's choice between the two people depends on it too",
    }
    columns = {
        "beyond place": Column("beyond_place", ".3f"),
        "p": Column("p_beyond_place", ".4f"),
        "choice [95 %]": Column("choice_share", ".2f", has_interval=True),
        "looks at it": Column("looks", ".2f"),
        "author's person": Column("author", ".2f", rule="best"),
        "AUC": Column("author_auc", ".2f"),
        "n": Column("passages", ",.0f"),
    }
    over_seeds = ("beyond_place", "choice_share", "author", "author_auc", "place rule")
    legend = """\
beyond place: the edges predict the author's person beyond a fitted rule of place; choice: share of it lost; looks at
it: attends more to the author's person."""

    def problem(self, question: Question, items: Items) -> str:
        return ""  # without items it is not asked, and a warning says why

    def cases(self, job: Job, questions: Sequence[Question]) -> Iterator[Case]:
        for question in questions:
            copied = [finding for finding in job.findings if finding.question == question.heads_of]
            if copied and copied[0].verdict == SUPPORTED:
                job.progress("whose gender it copies", 0.9)
                yield _WhoseCase(question, copied[0], job)
            else:
                job.missing.append(f"{question.name}: asked of a head that is supported for {question.heads_of}")

    def opening(self, finding: Finding) -> str:
        heads = " and ".join(map(str, finding.judged.heads))
        if finding.verdict == SUPPORTED:
            return super().opening(finding)
        several = len(finding.judged.heads) > 1
        shown = f"{'are' if several else 'is'} not shown to"
        if finding.verdict == SUGGESTIVE:
            shown = "may"
        return f"Attention {'heads' if several else 'head'} {heads} {shown} copy {finding.link}"

    def sentences(self, finding: Finding, model: TestedModel) -> list[str]:
        values = finding.judged.values
        share = values["choice_share"]
        return [
            f"In {finding.n:,} passages with a woman and a man, names drawn anew, the part of the decision that the "
            f"edges carry has a coefficient of {values['beyond_place'].value:.2f} for whom the author means, beyond "
            f"the place rule; p {values['p_beyond_place'].value:.4f}, the author's choice permuted where that rule "
            "says the same.",
            f"It looks more at the author's person in {percent(values['looks'])}; where the place rule is unsure, in "
            f"{percent(values.get('looks_where_unsure', NOT_KNOWN))}.",
            "If it splits its weights as in passages that look alike to the rule, "
            f"{share.value:.2f} [{show(share.low)}, {show(share.high)}] of the model's choice between them is lost.",
            f"The person that the model picks is the author's in {percent(values['author'])} (area under the ROC "
            f"curve {values['author_auc'].value:.2f}); {finding.best_rule_sentence}.",
        ]

    def limits(self, finding: Finding) -> list[str]:
        return ["that the head finds the person whom the author means: what other rules of place tell is not excluded"]


class _WhoseCase(Case):
    """Whether the heads of a finding, which are shown to copy, also predict whose gender to copy.

    They were chosen without the author's pronouns, so that all passages of both halves are tested.
    """

    def __init__(self, question: Question, copied: Finding, job: Job) -> None:
        self.question = question
        self.copied = copied
        self.config = job.config
        self.sites = Sites(job.model, job.items.of(question.name, TESTED), job.config.tokens_per_batch)

    def choose(self) -> list[Head]:
        return self.copied.judged.heads

    def measure(self, heads: Sequence[Head]) -> Measured:
        return Measured(whose_values(self.sites, list(heads), self.config))

    def facts(self, judged: Tested) -> dict[str, Any]:
        # Rules that do not know the model.
        items = self.sites.items
        is_nearest = preferred("nearest", items) > 0
        is_subject = preferred("subject", items) > 0
        place = _place_of(items)
        is_right = {"nearest": is_nearest, "subject": is_subject, "place rule": (place > 0) == is_nearest}
        return {
            "n": len(items),
            "clusters": items.n_clusters(),
            "smallest_p": 1 / (N_PERMUTATIONS + 1),
            "rules": {name: float(of_rule.mean()) for name, of_rule in is_right.items()},
        }


def whose_values(sites: Sites, heads: list[Head], config: ProbeConfig) -> Values:
    """Return what the edges of heads predict of the author's choice, on passages with two people."""
    items = sites.items
    is_nearest = preferred("nearest", items) > 0  # the author means the person who is named last
    to_nearest = np.where(is_nearest, 1.0, -1.0)  # from "towards the author's person" to "towards the nearest"
    strata = strata_of(_place_of(items))

    # The decision, and the part of it that the edges carry.
    margins = sites.margins([heads], ["swap"])
    decision = margins.decision * to_nearest
    edges = margins.lost("swap")[:, 0] * to_nearest / 2

    # Beyond the place rule.
    rng = np.random.default_rng(config.seed)
    labels = np.vstack([is_nearest, permuted_within(is_nearest, strata, N_PERMUTATIONS, rng)])
    coefficients = edge_coefficients(labels, covariates_of(items), edges)
    p_beyond = float((coefficients >= coefficients[0] - 1e-9).mean())

    # Where the heads look, and what the choice loses if their weights are split as in the mean of the stratum.
    towards_author = np.stack([sites.log_odds(head) for head in heads])
    looks = np.heaviside(towards_author.sum(axis=0), 0.5)
    is_unsure = np.abs(_place_of(items)) < UNSURE
    of_strata = [np.bincount(strata, log_odds) / np.bincount(strata) for log_odds in towards_author * to_nearest]
    means = [of_head[strata] * to_nearest for of_head in of_strata]
    edited = sites.split_margins(heads, means).mean(axis=1)
    decisions = np.stack([decision, edited * to_nearest])
    drawn = resampling_counts(items.clusterings()[0], config.n_bootstrap, np.random.default_rng(config.seed))  # [B, N]
    values = {
        "beyond_place": Estimate(float(coefficients[0])),
        "p_beyond_place": Estimate(p_beyond),
        "choice_share": share_of_choice(decisions, is_nearest, strata, np.vstack([np.ones(len(items)), drawn])),
        "looks": sample_of(items, looks).mean(config),
        "author": sample_of(items, np.heaviside(margins.decision, 0.5)).mean(config),
        "author_auc": Estimate(area_under_curve(decision, is_nearest)),
        "passages": Estimate(float(len(items))),
    }
    if is_unsure.any():
        unsure = sample_of(items.take(np.flatnonzero(is_unsure)), looks[is_unsure])
        values["looks_where_unsure"] = unsure.mean(config)
    return values


def _place_of(items: Items) -> np.ndarray:
    """Return the log odds of the place rule of each passage, [N]."""
    return np.array([pair.place for pair in items.pairs])


def strata_of(place: np.ndarray) -> np.ndarray:
    """Return the stratum [N] of each passage: quantiles of the log odds of the place rule."""
    n_strata = N_STRATA if len(place) >= FEW else N_STRATA // 2
    ranks = np.empty(len(place), dtype=int)
    ranks[np.argsort(place, kind="stable")] = np.arange(len(place))
    return ranks * n_strata // len(place)


def permuted_within(labels: np.ndarray, strata: np.ndarray, n: int, rng: np.random.Generator) -> np.ndarray:
    """Return `labels` [N] permuted at random within each stratum, [n, N]."""
    permuted = np.empty((n, len(labels)), dtype=labels.dtype)
    for stratum in np.unique(strata):
        members = np.flatnonzero(strata == stratum)
        permuted[:, members] = rng.permuted(np.tile(labels[members], (n, 1)), axis=1)
    return permuted


def covariates_of(items: Items) -> np.ndarray:
    """Return what else the regression has, [N, 3]: the log odds of the place rule, and what two simple rules prefer.

    A fitted rule leaves some of the subject rule, which a head that copies the subject would pass by.
    """
    to_nearest = np.where(preferred("nearest", items) > 0, 1.0, -1.0)
    rules = [preferred(name, items) * to_nearest for name in ("first", "subject")]
    return np.stack([_place_of(items), *rules], axis=1)


def edge_coefficients(labels: np.ndarray, covariates: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Return the coefficient of the standardised `edges` [N] in a logistic regression of each of the labels [B, N].

    The others are a constant and the `covariates` [N, K]. Fitted by Newton's method; a ridge of 1e-6 keeps separable
    labels finite.
    """
    standardised = (edges - edges.mean()) / (edges.std() or 1.0)
    inputs = np.column_stack([np.ones(len(edges)), covariates, standardised])  # [N, K + 2]
    found = []
    for first in range(0, len(labels), _ROWS_AT_ONCE):
        rows = labels[first : first + _ROWS_AT_ONCE].astype(float)
        weights = np.zeros((len(rows), inputs.shape[1]))
        for _ in range(_NEWTON_STEPS):
            chance = special.expit(weights @ inputs.T)  # [B, N]
            gradient = (rows - chance) @ inputs - 1e-6 * weights
            curvature = np.einsum("bn,ni,nj->bij", chance * (1 - chance), inputs, inputs, optimize=True)
            weights += np.linalg.solve(curvature + 1e-6 * np.eye(inputs.shape[1]), gradient[..., None])[..., 0]
        found.append(weights[:, -1])
    return np.concatenate(found)


def share_of_choice(decisions: np.ndarray, is_nearest: np.ndarray, strata: np.ndarray, counts: np.ndarray) -> Estimate:
    """Return the share of the choice gap that is lost; `decisions` [2, N]: D, and D edited.

    `counts` [B + 1, N] as in `choice_gap`, those of the sample itself first. 0 without a gap towards the author.
    """
    gaps = np.stack([choice_gap(decision, is_nearest, strata, counts) for decision in decisions])  # [2, B + 1]
    if not gaps[0, 0] > 0:
        return Estimate(0.0, 0.0, 0.0)
    shares = 1 - gaps[1] / gaps[0]
    low, high = np.nanquantile(shares[1:], (0.025, 0.975))
    return Estimate(float(shares[0]), float(low), float(high))


def choice_gap(decision: np.ndarray, is_nearest: np.ndarray, strata: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return the difference of the mean decision between passages whose nearest person is meant and is not, [B].

    Within strata, weighted by the smaller number of passages; `counts` [B, N] is how often each passage is drawn.
    """
    one_hot = strata[:, None] == np.unique(strata)  # [N, S]
    sizes, means = [], []
    for is_member in (is_nearest, ~is_nearest):
        members = counts * is_member
        sizes.append(members @ one_hot)  # [B, S]
        means.append((members * decision) @ one_hot / np.maximum(sizes[-1], 1))
    weights = np.minimum(*sizes)
    return np.asarray(((means[0] - means[1]) * weights).sum(axis=1) / weights.sum(axis=1))


def area_under_curve(scores: np.ndarray, is_true: np.ndarray) -> float:
    """Return the probability that a true case has a higher score than a false one (ties: 1/2)."""
    below, above = (np.searchsorted(np.sort(scores[~is_true]), scores[is_true], side) for side in ("left", "right"))
    return float((below + above).mean() / 2 / (~is_true).sum())
