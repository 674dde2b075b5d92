"""What may be claimed of a head: the criteria of both kinds of questions, and the verdicts that follow from them.

The bars were fixed before anything was measured against them. They are our conventions where no source is named. The
rule for sets of heads was added after seeds 121 to 140, in which two heads shared the work in several failures.

    question             supported               suggestive
    link (stories)       all five criteria       the first and at least one other
                         (a head, or a set of heads that share the work)
    next pronoun         all of E1, E2 and E3    all of E1 and E2
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from probe.results import (
    Clusters,
    Criterion,
    Estimate,
    Grid,
    HeadSet,
    HeadTable,
    Interval,
    LevelCriterion,
    QuestionResult,
)
from probe.statistics import MIN_SEEDS

SUPPORTED = "supported"
SUGGESTIVE = "suggestive"
NOT_ESTABLISHED = "not established"
UNKNOWN_TO_MODEL = "the model does not know"  # next pronoun only: the model's choice does not follow the entities
MAX_P = 0.01  # max-T tests, already corrected for the search over heads
MIN_SHARE_OF_SEEDS = 0.8  # four of five

# Links.
LEVELS = {
    "E0": "an attention pattern only",
    "E1": "beats every simple rule",
    "E2": "follows the pronoun on held-out items",
    "E3": "the model's answer depends on this attention edge",
    "E4": "the head alone restores the answer, its values carry it, and other seeds have such a head",
}
MIN_SELECTIVITY = 0.15  # a pure link head has 1/2; Hewitt & Liang 2019 give no bar
MIN_ATTENTION_SWAP = 0.2  # a fifth of the answer depends on which of the two mentions this head attends to
MAX_UNLINKED_MASS = 0.5  # weight on nouns without an antecedent, as a share of the weight with one
MAX_OTHER_TYPE = 0.4  # mean weight of a previous-token or induction head on its own target, on random tokens
MIN_SHARE_OF_ALL = 0.8  # attention swap of a set on dev, as a share of that of all heads together
MIN_DENOISING = 0.5  # at least half of the answer is restored
_MIN_CRITERIA = 2  # for "suggestive"

# The next pronoun.
DECISION_LEVELS = {
    "E0": "the model's pronoun does not follow the entities",
    "E1": "the model's pronoun follows the entities",
    "E2": "cutting the head's edges moves the pronoun, on held-out documents",
    "E3": "this head's link decides the pronoun",
    "E4": "the choice is more than recency, and other seeds have such a head",
}
MIN_CUT = 0.10  # share of the margin that cutting the meant edge takes
MIN_CUT_LOW = 0.02  # lower end of its interval
MIN_EXCHANGE = 0.2  # share of the margin that changes sides when the weights change places


def is_replicated(n_supported: int, n_seeds: int) -> bool:
    """Return whether enough training seeds have a supported head, for E4."""
    return n_seeds >= MIN_SEEDS and n_supported >= MIN_SHARE_OF_SEEDS * n_seeds


def _word(is_supported: bool, is_suggestive: bool) -> str:
    if is_supported:
        return SUPPORTED
    return SUGGESTIVE if is_suggestive else NOT_ESTABLISHED


# Links


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Measurements of one head for one question on the headline hold-out; None: not measured."""

    p_pair_accuracy: float | None = None  # max-T, pair accuracy above 1/2
    p_pronoun_contrast: float | None = None  # max-T, pronoun contrast above 0
    smallest_p: float = 1.0  # that is possible with so few clusters
    n_clusters: int = 0  # the clustering with the fewest clusters
    lead: Interval | None = None  # interval of accuracy minus that of the best baseline
    selectivity: float | None = None
    attention_swap: float | None = None
    edge_specificity: Interval | None = None
    answer_is_constant: bool = False  # the same for both pronouns, so nothing is a share of its change
    linked_mass: float | None = None  # weight on all mentions at a pronoun with an antecedent
    unlinked_mass: float | None = None  # weight on all mentions at a pronoun without one
    must_rest: bool = True  # at a pronoun without antecedent; a question of the user's own may switch this off
    previous: float | None = None  # weight on the previous token, on random tokens
    induction: float | None = None  # weight on the token after an earlier copy of the query's token
    pronoun_contrast: float | None = None
    value_weighted_contrast: float | None = None  # the same for value-weighted attention
    denoising_patch: float | None = None  # share of the answer restored by patching this head alone
    ov_auc: Interval | None = None  # interval of the AUC that a mention raises its own continuations
    n_seeds: int = 1
    n_seeds_supported: int = 0


@dataclass(frozen=True, slots=True)
class _Verdict:
    """What may be claimed of a head, and why no more."""

    word: str  # SUPPORTED, SUGGESTIVE or NOT_ESTABLISHED
    level: str  # one of LEVELS
    criteria: tuple[Criterion, ...]
    reasons: tuple[str, ...]  # exclusions, then the reason of each criterion that is not met


def judged(result: QuestionResult) -> QuestionResult:
    """Return a result with its unit, verdict, evidence level, criteria and reasons.

    The unit is the chosen head. It is the set of heads if the head is not supported, the set is, and the set's
    attention swap on dev is at least MIN_SHARE_OF_ALL of that of all heads.
    """
    verdict = judge(evidence_of(result))
    head_set = result.head_set
    if verdict.word != SUPPORTED and head_set is not None and head_set.verdict == SUPPORTED and _carries_most(head_set):
        return replace(
            result,
            unit="set",
            verdict=head_set.verdict,
            evidence_level=head_set.evidence_level,
            reasons=head_set.reasons,
            criteria=head_set.criteria,
        )
    return replace(
        result,
        unit="head",
        verdict=verdict.word,
        evidence_level=verdict.level,
        reasons=list(verdict.reasons),
        criteria=list(verdict.criteria),
    )


def _carries_most(head_set: HeadSet) -> bool:
    return head_set.curve[-1].dev >= MIN_SHARE_OF_ALL * head_set.all_heads_dev


def judged_set(
    head_set: HeadSet,
    members: Sequence[Evidence],
    clusters: Clusters,
    *,
    answer_is_constant: bool = False,
    must_rest: bool = True,
) -> HeadSet:
    """Return a set of two heads or more with its verdict, by the same criteria and bars as one head.

    `members` are what can exclude each head: an excluded head excludes the set. The level is at most E3, because E4 is
    about one head.
    """
    scores = head_set.scores
    assert scores is not None
    evidence = Evidence(
        p_pair_accuracy=scores.p_pair_accuracy,
        p_pronoun_contrast=scores.p_pronoun_contrast,
        smallest_p=scores.smallest_p,
        n_clusters=_n_clusters(clusters),
        lead=scores.lead_interval,
        selectivity=scores.selectivity,
        attention_swap=None if answer_is_constant else head_set.attention_swap,
        edge_specificity=None if answer_is_constant else scores.edge_specificity_interval,
        answer_is_constant=answer_is_constant,
        linked_mass=1.0,  # unlinked_share is relative to it already
        unlinked_mass=scores.unlinked_share,
        must_rest=must_rest,
    )
    exclusions: list[str] = []
    for head, member in zip(head_set.heads, members, strict=True):
        exclusions += [f"{head}: {reason}" for reason in _exclusions(member)]
    verdict = judge(evidence, tuple(exclusions))
    return replace(
        head_set,
        verdict=verdict.word,
        evidence_level=verdict.level,
        reasons=list(verdict.reasons),
        criteria=list(verdict.criteria),
    )


def _n_clusters(clusters: Clusters) -> int:
    return min(clusters.frames, clusters.first_words, clusters.second_words, clusters.pairs)


def evidence_of(result: QuestionResult, n_seeds: int = 1, n_seeds_supported: int = 0) -> Evidence:
    """Return the evidence on the headline hold-out, and over training seeds if there are several."""
    test = result.headline
    causal = result.causal
    off = result.own.guards_off if result.own else []
    return Evidence(
        p_pair_accuracy=test.p_pair_accuracy,
        p_pronoun_contrast=test.p_pronoun_contrast,
        smallest_p=test.smallest_p,
        n_clusters=_n_clusters(test.clusters),
        lead=test.best_baseline.difference_interval,
        selectivity=result.selectivity,
        attention_swap=causal.attention_swap if causal else None,
        edge_specificity=causal.edge_specificity_interval if causal else None,
        answer_is_constant=causal is not None and causal.attention_swap is None,
        linked_mass=result.mass.linked,
        unlinked_mass=result.mass.unlinked,
        previous=None if "previous" in off else result.head_type.previous,
        induction=None if "induction" in off else result.head_type.induction,
        pronoun_contrast=test.pronoun_contrast,
        value_weighted_contrast=test.value_weighted_contrast,
        denoising_patch=causal.denoising_patch if causal else None,
        ov_auc=result.weights.ov_auc_interval,
        n_seeds=n_seeds,
        n_seeds_supported=n_seeds_supported,
        must_rest="rests_without_antecedent" not in off,
    )


def judge(evidence: Evidence, exclusions: tuple[str, ...] = ()) -> _Verdict:
    """Return the verdict on a link; `exclusions` are further reasons why nothing may be claimed.

    The first criterion, a small p, is required because random weights can meet two of the others. A previous-token or
    induction head, or one whose value-weighted attention contradicts its attention, gets no claim. Missing values do
    not pass.
    """
    criteria = _link_criteria(evidence)
    exclusions += _exclusions(evidence)
    passed = {criterion.name for criterion in criteria if criterion.passed}
    is_shown = not exclusions
    is_supported = is_shown and len(passed) == len(criteria)
    is_suggestive = is_shown and "pronoun_flip" in passed and len(passed) >= _MIN_CRITERIA
    reasons = exclusions + tuple(criterion.reason for criterion in criteria if not criterion.passed)
    level = "E0" if exclusions else _link_level(evidence, passed)
    return _Verdict(_word(is_supported, is_suggestive), level, criteria, reasons)


def _link_criteria(evidence: Evidence) -> tuple[Criterion, ...]:
    criteria = (
        _follows_pronoun(evidence),
        _beats_baselines(evidence),
        _is_selective(evidence),
        _has_causal_edge(evidence),
    )
    return (*criteria, _rests_without_antecedent(evidence)) if evidence.must_rest else criteria


def _follows_pronoun(evidence: Evidence) -> Criterion:
    values = {
        "p_pair_accuracy": (evidence.p_pair_accuracy, MAX_P),
        "p_pronoun_contrast": (evidence.p_pronoun_contrast, MAX_P),
    }
    reason = (
        f"following the pronoun may be chance: corrected p {_show(evidence.p_pair_accuracy)} "
        f"(pair accuracy) and {_show(evidence.p_pronoun_contrast)} (pronoun contrast); "
        f"needed: below {MAX_P}"
    )
    if evidence.smallest_p >= MAX_P:
        smallest = _show(evidence.smallest_p)
        reason += f"; with {evidence.n_clusters} different frames or words no p can be below {smallest}"
    return _criterion("pronoun_flip", values, reason, upper=True)


def _beats_baselines(evidence: Evidence) -> Criterion:
    lead = _low(evidence.lead)
    reason = f"it does not beat the best baseline: its lead in accuracy may be as low as {_show(lead)}"
    return _criterion("beats_baselines", {"lead_low": (lead, 0.0)}, reason)


def _is_selective(evidence: Evidence) -> Criterion:
    selectivity = evidence.selectivity
    reason = (
        f"preferences for single words fit it too: selectivity {_show(selectivity)}; needed: above {MIN_SELECTIVITY}"
    )
    return _criterion("selective", {"selectivity": (selectivity, MIN_SELECTIVITY)}, reason)


def _has_causal_edge(evidence: Evidence) -> Criterion:
    swap = evidence.attention_swap
    specificity = _low(evidence.edge_specificity)
    values = {"attention_swap": (swap, MIN_ATTENTION_SWAP), "edge_specificity_low": (specificity, 0.0)}
    reason = (
        "the model's answer is not shown to depend on this edge: "
        f"attention swap {_show(swap)}, edge specificity from {_show(specificity)}; "
        f"needed: above {MIN_ATTENTION_SWAP} and above 0"
    )
    if evidence.answer_is_constant:
        reason = "the model's answer does not follow the pronoun, so it cannot depend on this edge"
    return _criterion("causal_edge", values, reason, missing_counts_as_failed=evidence.answer_is_constant)


def _rests_without_antecedent(evidence: Evidence) -> Criterion:
    share = None
    if evidence.linked_mass and evidence.unlinked_mass is not None:
        share = evidence.unlinked_mass / evidence.linked_mass
    reason = (
        f"it attends to nouns at a pronoun without antecedent: {_show(share)} of the weight they "
        f"get otherwise; needed: below {MAX_UNLINKED_MASS}"
    )
    values = {"unlinked_mass": (share, MAX_UNLINKED_MASS)}
    return _criterion("rests_without_antecedent", values, reason, upper=True)


def _criterion(
    name: str,
    values_and_bars: Mapping[str, tuple[float | None, float]],
    reason: str,
    *,
    upper: bool = False,
    missing_counts_as_failed: bool = False,
) -> Criterion:
    """Return the criterion that every measured value exceeds its bar, or with `upper` stays below it.

    A missing value is "not measured", or with `missing_counts_as_failed` "not met".
    """
    measured = {key: value for key, (value, _) in values_and_bars.items()}
    bars = {key: bar for key, (_, bar) in values_and_bars.items()}

    # Is something missing?
    missing = []
    for key, value in measured.items():
        if value is None or not math.isfinite(value):
            missing.append(key.replace("_", " "))
    if missing and not missing_counts_as_failed:
        names = " and ".join(missing)
        reason = f"{names} not measured, so the criterion {name.replace('_', ' ')!r} is not met"
        return Criterion(name, measured, bars, False, "not measured", reason)

    # Is every value on the right side of its bar? nan is on neither.
    sign = -1 if upper else 1
    passed = all(value is not None and sign * value > sign * bar for value, bar in values_and_bars.values())
    if passed:
        return Criterion(name, measured, bars, True, "met", "")
    return Criterion(name, measured, bars, False, "not met", reason)


def _exclusions(evidence: Evidence) -> tuple[str, ...]:
    """Return the reasons why nothing may be claimed of this head, whatever else it does."""
    reasons = []
    for name, weight in (("previous-token", evidence.previous), ("induction", evidence.induction)):
        if _above(weight, MAX_OTHER_TYPE):
            reasons.append(f"no claim: it is a {name} head (weight {_show(weight)}; at most {MAX_OTHER_TYPE})")
    attention = evidence.pronoun_contrast
    weighted = evidence.value_weighted_contrast
    if attention is not None and weighted is not None and attention * weighted < 0:
        contrasts = f"contrasts {_show(attention)} and {_show(weighted)}"
        reasons.append(f"no claim: attention and value-weighted attention disagree ({contrasts})")
    return tuple(reasons)


def _link_level(evidence: Evidence, passed: set[str]) -> str:
    """Return the highest level for which it and all lower levels have evidence."""
    is_sufficient = _above(evidence.denoising_patch, MIN_DENOISING) and _above(_low(evidence.ov_auc), 0.5)
    has_seeds = is_replicated(evidence.n_seeds_supported, evidence.n_seeds)
    steps = [name in passed for name in ("beats_baselines", "pronoun_flip", "causal_edge")]
    steps.append(is_sufficient and has_seeds)
    return f"E{steps.index(False) if False in steps else len(steps)}"


def corrected_p(heads: HeadTable) -> Grid:
    """Return the corrected p of every head: the larger of its two tests, because a link must pass both."""
    p: Grid = np.maximum(heads.p_pair_accuracy, heads.p_pronoun_contrast).tolist()
    return p


# Decisions about the next pronoun


def decision_criteria(
    follows_twin: Estimate,
    p: float,
    t: float,
    untrained_t: float,
    *,
    meant_cut: Estimate,
    other_cut: Estimate,
    content_cut: Estimate,
    share: Estimate,
) -> list[LevelCriterion]:
    """Return the criteria of E1 to E3; arguments as the fields of `SetResult`, `untrained_t` the largest of all."""
    takes_enough = meant_cut.value >= MIN_CUT and meant_cut.low > MIN_CUT_LOW
    return [
        LevelCriterion("the pronoun follows the twin", "E1", follows_twin.low > 0.5, f"from {follows_twin.low:.3f}"),
        LevelCriterion(f"corrected p below {MAX_P}", "E2", t > 0 and p < MAX_P, f"{p:.4f}"),
        LevelCriterion("t above every untrained model", "E2", t > untrained_t, f"{t:.1f}, untrained {untrained_t:.1f}"),
        LevelCriterion(
            f"cutting the meant edge takes {MIN_CUT:.0%} of the margin",
            "E3",
            takes_enough,
            f"{meant_cut.value:.3f}, from {meant_cut.low:.3f}",
        ),
        LevelCriterion("cutting the other edge raises it", "E3", other_cut.high < 0, f"up to {other_cut.high:.3f}"),
        LevelCriterion(
            "more than a random content word's edge", "E3", content_cut.low > 0, f"from {content_cut.low:.3f}"
        ),
        LevelCriterion(
            f"share exchanged of {MIN_EXCHANGE} or more", "E3", share.value >= MIN_EXCHANGE, f"{share.value:.3f}"
        ),
    ]


def decision_verdict(criteria: Sequence[LevelCriterion]) -> tuple[str, str]:
    """Return the highest level whose criteria, and those of all lower ones, are met, and the verdict."""
    level = "E0"
    for name in ("E1", "E2", "E3"):
        if not all(criterion.is_met for criterion in criteria if criterion.level == name):
            break
        level = name
    verdict = _word(level == "E3", level == "E2")
    return level, UNKNOWN_TO_MODEL if level == "E0" else verdict


# Helpers


def _above(value: float | None, bar: float) -> bool:
    return value is not None and value > bar  # False for nan


def _low(interval: Interval | None) -> float | None:
    return interval[0] if interval else None


def _show(value: float | None) -> str:
    if value is None:
        return "unknown"
    return f"{value:.2g}" if 0 < abs(value) < 0.01 else f"{value:.3f}".rstrip("0").rstrip(".")
