"""Whose gender does a head copy? Whether its edges predict whom the author means beyond place and form.

A head that copies the gender of the last name decides "she" or "he" as well as one that finds the antecedent. So the
head's edges must predict whom the author means among passages that are alike in place and form (place.py):

    D   decision of the model towards the person named last, in nats: the mean of a passage and its twin
    E   the part of D that the head's edges carry: (D - D with its weights on the two people exchanged) / 2
    F   what place and form predict of E, fitted on other documents (`edges_by_form`)
    y   the author means the person named last;  L  the log odds of the place rule for that
    c   the coefficient of z(E) in the logistic regression of y on 1, L, F and z(E)
    p   the share of permutations of y within strata of L whose c is at least as large

Is it form or words? E is measured again with every content word replaced (`extras.english.replaced`). If words add
nothing, the versions and E are exchangeable, so that E predicts nothing beyond L, F and the mean of all of them.

And it must be causal: with the head's weights split as in the mean passage of a stratum, D must depend less on y.
Axes: N passages, B resamplings, S strata.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import special

from data.pairs import Items
from extras.english.edges import rule_accuracies
from extras.english.questions import REPLACED, TESTED
from probe.config import ProbeConfig
from probe.edits import EditedPairs
from probe.outcome import Case, Column, Job, Measured, Outcome
from probe.questions import MAX_P, Question
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
from probe.statistics import design_weights, sample_of

MIN_PASSAGES = 700  # with fewer, links of the size that is found in small models are missed too often
N_PERMUTATIONS = 2000  # whatever the settings: p must be able to be far below the bar
UNSURE = 1.1  # log odds of the place rule up to which it is unsure: a probability from .25 to .75
N_STRATA = 20  # bins of the log odds of the place rule; half as many with less than FEW passages
FEW = 500
_N_FOLDS = 5  # parts of the documents for cross-validation
_PENALTIES = (0.2, 0.6, 2.0, 6.0, 20.0, 60.0)  # for the regression of the edges; that with the smallest error is used
_NEWTON_STEPS = 8


class WhoseOutcome(Outcome):
    """Heads that copy: whose gender?"""

    name = "whose"
    verbs = ("copies", "copy")
    levels = {
        "E1": "it copies, but what it copies is not shown to predict whom the author means",
        "E2": "what it copies predicts whom the author means, beyond place and form as a fitted rule knows them",
        "E3": "the model's choice between the two people depends on it too",
    }
    columns = {
        "beyond place": Column("beyond_place", ".3f"),
        "p": Column("p_beyond_place", ".4f"),
        "words replaced": Column("form", ".3f"),
        "p of words": Column("p_words", ".4f"),
        "choice [95 %]": Column("choice_share", ".2f", has_interval=True),
        "author's person": Column("author", ".2f", has_rule=True),
    }
    assumes = "place and form act through the features of the place rule, and no other head makes up for the change"
    over_seeds = ("beyond_place", "form", "words", "choice_share", "author", "author_auc", "place rule")
    legend = """\
beyond place: the edges predict the author's person beyond a fitted rule of place; words replaced: the same with other
content words, and whether the true ones tell more; choice: share of it lost."""

    def problem(self, question: Question, items: Items) -> str:
        n = len(items.of(question.name, TESTED))
        few = f"{question.name}: {n} passages with a woman and a man (needed: {MIN_PASSAGES})"
        return few if n < MIN_PASSAGES else ""

    def cases(self, job: Job, questions: Sequence[Question]) -> Iterator[Case]:
        for question in questions:
            copied = next((found for found in job.findings if found.question == question.heads_of), None)
            if copied and copied.verdict == SUPPORTED:
                job.progress("whose gender it copies", 0.9)
                yield _WhoseCase(question, copied, job)
            else:
                job.missing.append(f"{question.name}: asked of a head that is supported for {question.heads_of}")

    def opening(self, finding: Finding) -> str:
        heads = " and ".join(map(str, finding.judged.heads))
        if finding.verdict == SUPPORTED:
            return super().opening(finding)
        noun, verb = ("heads", "are") if len(finding.judged.heads) > 1 else ("head", "is")
        shown = "may" if finding.verdict == SUGGESTIVE else f"{verb} not shown to"
        return f"Attention {noun} {heads} {shown} copy {finding.link}"

    def sentences(self, finding: Finding, model: TestedModel) -> list[str]:
        values = finding.judged.values
        share = values["choice_share"]
        return [
            f"In {finding.n:,} passages with a woman and a man, names drawn anew, the part of the decision that the "
            f"edges carry has a coefficient of {values['beyond_place'].value:.2f} for whom the author means, beyond "
            f"place and form; p {values['p_beyond_place'].value:.4f}, the author's choice permuted where the place "
            "rule says the same.",
            f"With every content word replaced it is {values['form'].value:.2f} (p {values['p_form'].value:.4f}); "
            f"beyond that the true words have {values['words'].value:.2f} (p {values['p_words'].value:.4f})"
            f"{_kind_of(finding)}.",
            f"It looks more at the author's person in {percent(values['looks'])}; where the place rule is unsure, in "
            f"{percent(values.get('looks_where_unsure', NOT_KNOWN))}.",
            "If it splits its weights as in passages that look alike to the rule, "
            f"{share.value:.2f} [{show(share.low)}, {show(share.high)}] of the model's choice between them is lost.",
            f"The person that the model picks is the author's in {percent(values['author'])} (area under the ROC "
            f"curve {values['author_auc'].value:.2f}); {finding.best_rule_sentence}.",
        ]

    def limits(self, finding: Finding) -> list[str]:
        return [
            "that the head finds the person whom the author means: what other rules of place tell is not excluded",
            "that the meaning of words tells it: a word in place of another may be of another part of speech",
        ]


def _kind_of(finding: Finding) -> str:
    """Return whether the edges predict whom the author means by form or by words; "" below E2, where they may not."""
    if finding.level == "E1":
        return ""
    if finding.judged.value("p_words") < MAX_P:
        return ": so words matter too, beyond the form that 51 features see"
    if finding.judged.value("p_form") < MAX_P:
        return ": so it stays with every content word replaced: by form alone, as far as is shown"
    return ": so neither form nor words are shown"


class _WhoseCase(Case):
    """Whether the heads of a finding, which are shown to copy, also predict whose gender to copy.

    They were chosen without the author's pronouns, so that all passages of both halves are tested.
    """

    def __init__(self, question: Question, copied: Finding, job: Job) -> None:
        self.question = question
        self.copied = copied
        self.config = job.config
        self.sites = EditedPairs(job.model, job.items.of(question.name, TESTED), job.config.tokens_per_batch)
        self.replaced = job.items.of(question.name, REPLACED)

    def choose(self) -> list[Head]:
        return self.copied.judged.heads

    def measure(self, heads: Sequence[Head]) -> Measured:
        return Measured(whose_values(self.sites, heads, self.config, self.replaced))

    def facts(self, judged: Tested) -> dict[str, Any]:
        items = self.sites.items
        known = Known.of(items)
        by_place = (known.place > 0) == known.is_nearest
        return {
            "n": len(items),
            "clusters": items.n_clusters(),
            "smallest_p": 1 / (N_PERMUTATIONS + 1),
            "rules": rule_accuracies(items, "nearest", "subject") | {"place rule": float(by_place.mean())},
        }


@dataclass(frozen=True)
class Known:
    """The facts about N passages that need no model."""

    is_nearest: np.ndarray  # [N] the author means the person named last
    place: np.ndarray  # [N] log odds of the place rule for that
    form: np.ndarray  # [N, F] its features
    documents: np.ndarray  # [N]

    @classmethod
    def of(cls, items: Items) -> "Known":
        place = np.array([pair.place for pair in items.pairs])
        form = np.array([pair.form for pair in items.pairs])
        return cls(preferred("nearest", items) > 0, place, form, items.clusterings()[0])

    @property
    def to_nearest(self) -> np.ndarray:
        """1 or -1 [N], from "towards the author's person" to "towards the nearest"."""
        return np.where(self.is_nearest, 1.0, -1.0)

    def covariates(self, edges: np.ndarray) -> np.ndarray:
        """Return what the regression has besides the edges [N], [N, 2]: L and F."""
        return np.stack([self.place, edges_by_form(edges[None], self.form, self.documents)[0]], axis=1)


def whose_values(sites: EditedPairs, heads: Sequence[Head], config: ProbeConfig, replaced: Items) -> Values:
    """Return what the edges of heads predict of the author's choice, on passages with two people.

    `replaced` are versions of all of them with content words replaced, to tell form from words; it may be empty.
    """
    items = sites.items
    known = Known.of(items)
    strata = strata_of(known.place)
    edges = edges_of(sites, heads)
    beyond, p_beyond = found_beyond(edges, known.covariates(edges), known.is_nearest, config.seed)

    # Where the heads look, and what the choice loses if their weights are split as in the mean of the stratum.
    looks = np.heaviside(sum(sites.log_odds(head) for head in heads), 0.5)
    is_unsure = np.abs(known.place) < UNSURE
    decision = sites.clean.mean(axis=1)
    decisions = np.stack([decision * known.to_nearest, split_as_alike(sites, heads, known)])
    drawn = design_weights([known.documents], config.n_bootstrap, config.seed)  # [B, N]
    counts = np.vstack([np.ones(len(items)), drawn])
    values = {
        "beyond_place": Estimate(beyond),
        "p_beyond_place": Estimate(p_beyond),
        "choice_share": share_of_choice(decisions, known.is_nearest, strata, counts),
        "looks": sample_of(items, looks).mean(config),
        "author": sample_of(items, np.heaviside(decision, 0.5)).mean(config),
        "author_auc": Estimate(area_under_curve(decisions[0], known.is_nearest)),
        "passages": Estimate(float(len(items))),
    }
    if replaced.pairs:
        versions = edges_of(EditedPairs(sites.model, replaced, config.tokens_per_batch), heads)
        values |= word_values(edges, versions.reshape(-1, len(items)), known, config.seed)
    if is_unsure.any():
        unsure = sample_of(items.take(np.flatnonzero(is_unsure)), looks[is_unsure])
        values["looks_where_unsure"] = unsure.mean(config)
    return values


def edges_of(sites: EditedPairs, heads: Sequence[Head]) -> np.ndarray:
    """Return the part of the decision towards the person named last that the edges of heads carry, [N] in nats."""
    lost = sites.margins([heads], ["swap"]).lost("swap")[:, 0]
    return np.asarray(lost * Known.of(sites.items).to_nearest / 2)


def split_as_alike(sites: EditedPairs, heads: Sequence[Head], known: Known) -> np.ndarray:
    """Return the decision [N] towards the person named last with weights split as in the mean passage of a stratum."""
    strata = strata_of(known.place)
    means = []
    for head in heads:
        log_odds = sites.log_odds(head) * known.to_nearest
        of_strata = np.bincount(strata, log_odds) / np.bincount(strata)
        means.append(of_strata[strata] * known.to_nearest)
    return np.asarray(sites.split_margins(heads, means).mean(axis=1) * known.to_nearest)


def word_values(edges: np.ndarray, versions: np.ndarray, known: Known, seed: int) -> Values:
    """Return coefficients and p of form and of words; `versions` [D, N]: the edges [N] with content words replaced."""
    of_form = versions.mean(axis=0)
    form, p_form = found_beyond(of_form, known.covariates(of_form), known.is_nearest, seed)

    # The mean of the versions alone would be noisier than the form in E, and leave some of it to E.
    of_all = np.vstack([versions, edges]).mean(axis=0)
    covariates = np.column_stack([known.covariates(edges), of_all])
    words, p_words = found_beyond(edges, covariates, known.is_nearest, seed)
    return {
        "form": Estimate(form),
        "p_form": Estimate(p_form),
        "words": Estimate(words),
        "p_words": Estimate(p_words),
    }


def strata_of(place: np.ndarray) -> np.ndarray:
    """Return the stratum [N] of each passage: quantiles of the log odds of the place rule."""
    n_strata = N_STRATA if len(place) >= FEW else N_STRATA // 2
    ranks = place.argsort(kind="stable").argsort()
    return ranks * n_strata // len(place)


def permuted_within(labels: np.ndarray, strata: np.ndarray, n: int, rng: np.random.Generator) -> np.ndarray:
    """Return `labels` [N] permuted at random within each stratum, [n, N]."""
    permuted = np.empty((n, len(labels)), dtype=labels.dtype)
    for stratum in np.unique(strata):
        members = np.flatnonzero(strata == stratum)
        permuted[:, members] = rng.permuted(np.tile(labels[members], (n, 1)), axis=1)
    return permuted


def edges_by_form(edges: np.ndarray, features: np.ndarray, documents: np.ndarray) -> np.ndarray:
    """Return what the features [N, F] of place and form predict of edges [B, N], each document's from the others.

    In a partially linear model (Robinson 1988) the coefficient of E is that of E minus this: a head that copies by a
    rule of these features has nothing left, whatever the author's rule is. A ridge regression on the features and their
    products, as a kernel.
    """
    scaled = (features - features.mean(axis=0)) / np.maximum(features.std(axis=0), 0.05)
    kernel = (1 + scaled @ scaled.T / features.shape[1]) ** 2  # [N, N]
    folds = np.unique(documents, return_inverse=True)[1] % _N_FOLDS
    predictions = np.empty((len(_PENALTIES), *edges.shape))
    for predicted, penalty in zip(predictions, _PENALTIES, strict=True):
        for fold in np.unique(folds):
            fitted = folds != fold
            means = edges[:, fitted].mean(axis=1, keepdims=True)
            penalised = kernel[np.ix_(fitted, fitted)] + penalty * np.eye(fitted.sum())
            weights = np.linalg.solve(penalised, (edges[:, fitted] - means).T)
            predicted[:, ~fitted] = means + (kernel[np.ix_(~fitted, fitted)] @ weights).T
    errors = np.square(predictions - edges).sum(axis=2)  # [penalties, B]
    return np.asarray(predictions[errors.argmin(axis=0), np.arange(len(edges))])


def found_beyond(
    edges: np.ndarray, covariates: np.ndarray, is_nearest: np.ndarray, seed: int, n: int = N_PERMUTATIONS
) -> tuple[float, float]:
    """Return the coefficient of the edges [N] beyond the covariates [N, K], and its p by `n` permutations.

    The author's choices `is_nearest` [N] are permuted within strata of the first covariate; nothing else depends on
    them.
    """
    rng = np.random.default_rng(seed)
    permuted = permuted_within(is_nearest, strata_of(covariates[:, 0]), n, rng)
    coefficients = edge_coefficients(np.vstack([is_nearest, permuted]), covariates, edges)
    return float(coefficients[0]), float((coefficients >= coefficients[0] - 1e-9).mean())


def edge_coefficients(labels: np.ndarray, covariates: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Return the coefficient of the standardised `edges` [N] in a logistic regression of each of the labels [B, N].

    The others are a constant and the `covariates` [N, K]. Fitted by Newton's method; a ridge of 1e-6 keeps separable
    labels finite.
    """
    standardised = (edges - edges.mean()) / (edges.std() or 1.0)
    inputs = np.column_stack([np.ones(len(edges)), covariates, standardised])  # [N, K + 2]
    weights = np.zeros((len(labels), inputs.shape[1]))
    for _ in range(_NEWTON_STEPS):
        chance = special.expit(weights @ inputs.T)  # [B, N]
        gradient = (labels - chance) @ inputs - 1e-6 * weights
        curvature = np.einsum("bn,ni,nj->bij", chance * (1 - chance), inputs, inputs, optimize=True)
        weights += np.linalg.solve(curvature + 1e-6 * np.eye(inputs.shape[1]), gradient[..., None])[..., 0]
    return weights[:, -1]


def share_of_choice(decisions: np.ndarray, is_nearest: np.ndarray, strata: np.ndarray, counts: np.ndarray) -> Estimate:
    """Return the share of the choice gap that is lost; `decisions` [2, N]: D, and D edited.

    `counts` [B + 1, N] as in `choice_gap`, those of the sample itself first. 0 without a gap towards the author.
    """
    gaps = choice_gap(decisions[:, None], is_nearest, strata, counts)  # [2, B + 1]
    if not gaps[0, 0] > 0:
        return Estimate(0.0, 0.0, 0.0)
    shares = 1 - gaps[1] / gaps[0]
    return Estimate(float(shares[0]), *np.nanquantile(shares[1:], (0.025, 0.975)).tolist())


def choice_gap(decision: np.ndarray, is_nearest: np.ndarray, strata: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return the difference of the mean decision between passages whose nearest person is meant and is not, [..., B].

    Within strata, weighted by the smaller number of passages; `counts` [B, N] is how often each passage is drawn.
    `decision` is [N], or [..., 1, N].
    """
    one_hot = strata[:, None] == np.unique(strata)  # [N, S]
    sizes, means = [], []
    for is_member in (is_nearest, ~is_nearest):
        members = counts * is_member
        sizes.append(members @ one_hot)  # [B, S]
        means.append((members * decision) @ one_hot / np.maximum(sizes[-1], 1))  # [..., B, S]
    weights = np.minimum(*sizes)
    return np.asarray(((means[0] - means[1]) * weights).sum(axis=-1) / weights.sum(axis=1))


def area_under_curve(scores: np.ndarray, is_true: np.ndarray) -> float:
    """Return the probability that a true case has a higher score than a false one (ties: 1/2)."""
    from scipy import stats  # half a second to import, and only English text needs it

    return float(stats.mannwhitneyu(scores[is_true], scores[~is_true]).statistic / is_true.sum() / (~is_true).sum())
