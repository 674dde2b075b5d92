"""The verdict on a head: supported, suggestive or not established, with an evidence level and the reasons.

The bars were fixed before anything was measured against them. They are our conventions where no source is named.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from probe.items import HEADLINE
from probe.statistics import MIN_SEEDS

SUPPORTED, SUGGESTIVE, NOT_ESTABLISHED = "supported", "suggestive", "not established"
LEVELS = {
    "E0": "an attention pattern only",
    "E1": "beats every simple rule",
    "E2": "follows the pronoun on held-out items",
    "E3": "the model's answer depends on this attention edge",
    "E4": "the head alone restores the answer, its values carry it, and other seeds have such a head",
}
MAX_P = 0.01  # max-T tests, already corrected for the search over heads
MIN_SELECTIVITY = 0.15  # a pure link head has 1/2; Hewitt & Liang 2019 give no bar
MIN_ATTENTION_SWAP = 0.2  # a fifth of the answer depends on which of the two mentions this head attends to
MAX_UNLINKED_MASS = 0.5  # weight on nouns without an antecedent, as a share of the weight with one
MAX_OTHER_TYPE = 0.4  # mean weight of a previous-token or induction head on its own target, on random tokens
MIN_DENOISING = 0.5  # at least half of the answer is restored
MIN_SHARE_OF_SEEDS = 0.8  # four of five
_MIN_CRITERIA = 2  # for "suggestive"
Interval = Sequence[float]


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
    previous: float | None = None  # weight on the previous token, on random tokens
    induction: float | None = None  # weight on the token after an earlier copy of the query's token
    pronoun_contrast: float | None = None
    value_weighted_contrast: float | None = None  # the same for value-weighted attention
    denoising_patch: float | None = None  # share of the answer restored by patching this head alone
    ov_auc: Interval | None = None  # interval of the AUC that a mention raises its own continuations
    n_seeds: int = 1
    n_seeds_supported: int = 0


@dataclass(frozen=True, slots=True)
class Criterion:
    """One of the five criteria of "supported"."""

    name: str
    measured: dict[str, float | None]
    bars: dict[str, float]  # by the names in `measured`
    passed: bool
    outcome: str  # "met", "not met" or "not measured"
    reason: str  # why it is not met; empty if it is


@dataclass(frozen=True, slots=True)
class Verdict:
    """What may be claimed of a head, and why no more."""

    word: str  # SUPPORTED, SUGGESTIVE or NOT_ESTABLISHED
    level: str  # one of LEVELS
    criteria: tuple[Criterion, ...]
    reasons: tuple[str, ...]  # exclusions, then the reason of each criterion that is not met

    def entry(self) -> dict[str, Any]:
        """Return the fields of probe.json."""
        fields = {"verdict": self.word, "evidence_level": self.level, "reasons": list(self.reasons)}
        return fields | {"criteria": [asdict(criterion) for criterion in self.criteria]}


def judge(evidence: Evidence) -> Verdict:
    """Return the verdict: all five criteria: supported; two to four, including one of the first two: suggestive.

    One of the first two is required because random weights can meet two of the others. A previous-token or induction
    head, or one whose value-weighted attention contradicts its attention, gets no claim. Missing values do not pass.
    """
    criteria, exclusions = _criteria(evidence), _exclusions(evidence)
    passed = {criterion.name for criterion in criteria if criterion.passed}
    word = NOT_ESTABLISHED
    if not exclusions and len(passed) == len(criteria):
        word = SUPPORTED
    elif not exclusions and len(passed) >= _MIN_CRITERIA and passed & {"pronoun_flip", "beats_baselines"}:
        word = SUGGESTIVE
    level = "E0" if exclusions else _level(evidence, passed)
    return Verdict(word, level, criteria, exclusions + tuple(c.reason for c in criteria if not c.passed))


def _criteria(evidence: Evidence) -> tuple[Criterion, ...]:
    """Return the five criteria; the reasons say why each is not met."""
    flip = {
        "p_pair_accuracy": (evidence.p_pair_accuracy, MAX_P),
        "p_pronoun_contrast": (evidence.p_pronoun_contrast, MAX_P),
    }
    flip_reason = (
        f"following the pronoun may be chance: corrected p {_show(evidence.p_pair_accuracy)} (pair accuracy) and "
        f"{_show(evidence.p_pronoun_contrast)} (pronoun contrast); needed: below {MAX_P}"
    )
    if evidence.smallest_p >= MAX_P:
        flip_reason += f"; impossible with {evidence.n_clusters} clusters (smallest p {_show(evidence.smallest_p)})"
    lead, selectivity = _low(evidence.lead), evidence.selectivity
    lead_reason = f"it does not beat the best baseline: its lead in accuracy may be as low as {_show(lead)}"
    selective_reason = (
        f"preferences for single words fit it too: selectivity {_show(selectivity)}; needed: above {MIN_SELECTIVITY}"
    )
    swap, specificity = evidence.attention_swap, _low(evidence.edge_specificity)
    edge = {"attention_swap": (swap, MIN_ATTENTION_SWAP), "edge_specificity_low": (specificity, 0.0)}
    edge_reason = (
        f"the model's answer is not shown to depend on this edge: attention swap {_show(swap)}, edge specificity from "
        f"{_show(specificity)}; needed: above {MIN_ATTENTION_SWAP} and above 0"
    )
    if evidence.answer_is_constant:
        edge_reason = "the model's answer does not follow the pronoun, so it cannot depend on this edge"
    share = None
    if evidence.linked_mass and evidence.unlinked_mass is not None:
        share = evidence.unlinked_mass / evidence.linked_mass
    rest_reason = (
        f"it attends to nouns at a pronoun without antecedent: {_show(share)} of the weight they get otherwise; "
        f"needed: below {MAX_UNLINKED_MASS}"
    )
    rest = {"unlinked_mass": (share, MAX_UNLINKED_MASS)}
    return (
        _criterion("pronoun_flip", flip, flip_reason, upper=True),
        _criterion("beats_baselines", {"lead_low": (lead, 0.0)}, lead_reason),
        _criterion("selective", {"selectivity": (selectivity, MIN_SELECTIVITY)}, selective_reason),
        _criterion("causal_edge", edge, edge_reason, is_measured=evidence.answer_is_constant),
        _criterion("rests_without_antecedent", rest, rest_reason, upper=True),
    )


def _criterion(
    name: str,
    values_and_bars: Mapping[str, tuple[float | None, float]],
    reason: str,
    *,
    upper: bool = False,
    is_measured: bool = False,
) -> Criterion:
    """Returns the criterion that every measured value exceeds its bar, or with `upper` stays below it.

    `is_measured`: missing values mean that the criterion is not met.
    """
    measured = {key: value for key, (value, _) in values_and_bars.items()}
    bars = {key: bar for key, (_, bar) in values_and_bars.items()}
    missing = [key.replace("_", " ") for key, value in measured.items() if value is None or not math.isfinite(value)]
    if missing and not is_measured:
        reason = f"{' and '.join(missing)} not measured, so the criterion {name.replace('_', ' ')!r} is not met"
        return Criterion(name, measured, bars, False, "not measured", reason)
    sign = -1 if upper else 1
    passed = all(value is not None and sign * value > sign * bar for value, bar in values_and_bars.values())
    return Criterion(name, measured, bars, passed, "met" if passed else "not met", "" if passed else reason)


def _exclusions(evidence: Evidence) -> tuple[str, ...]:
    """Return the reasons why nothing may be claimed of this head, whatever else it does."""
    reasons = []
    for name, weight in (("previous-token", evidence.previous), ("induction", evidence.induction)):
        if _above(weight, MAX_OTHER_TYPE):
            reasons.append(f"no claim: it is a {name} head (weight {_show(weight)}; at most {MAX_OTHER_TYPE})")
    attention, weighted = evidence.pronoun_contrast, evidence.value_weighted_contrast
    if attention is not None and weighted is not None and attention * weighted < 0:
        contrasts = f"contrasts {_show(attention)} and {_show(weighted)}"
        reasons.append(f"no claim: attention and value-weighted attention disagree ({contrasts})")
    return tuple(reasons)


def _level(evidence: Evidence, passed: set[str]) -> str:
    """Return the highest level for which it and all lower levels have evidence."""
    n_seeds, n_supported = evidence.n_seeds, evidence.n_seeds_supported
    is_replicated = n_seeds >= MIN_SEEDS and n_supported >= MIN_SHARE_OF_SEEDS * n_seeds
    is_sufficient = _above(evidence.denoising_patch, MIN_DENOISING) and _above(_low(evidence.ov_auc), 0.5)
    steps = [name in passed for name in ("beats_baselines", "pronoun_flip", "causal_edge")]
    steps.append(is_sufficient and is_replicated)
    return f"E{steps.index(False) if False in steps else len(steps)}"


def evidence_of(entry: Mapping[str, Any], seeds: Mapping[str, Any] | None = None) -> Evidence:
    """Return the headline evidence in an entry of probe.json's `selected`; missing values count as not measured.

    `seeds` are {"n", "n_supported"} over training seeds, if there are several.
    """
    test = entry["test"].get(HEADLINE, {})
    types, mass, causal, weights = (entry.get(name) or {} for name in ("head_type", "mass", "causal", "weights"))
    of_test = ("p_pair_accuracy", "p_pronoun_contrast", "pronoun_contrast", "value_weighted_contrast")
    return Evidence(
        **{name: test.get(name) for name in of_test},
        **{name: types.get(name) for name in ("previous", "induction")},
        **{name: causal.get(name) for name in ("attention_swap", "denoising_patch")},
        smallest_p=test.get("smallest_p", 1.0),
        n_clusters=min(test.get("clusters", {"none": 0}).values()),
        lead=(test.get("best_baseline") or {}).get("difference_interval"),
        selectivity=entry.get("selectivity"),
        edge_specificity=causal.get("edge_specificity_interval"),
        answer_is_constant="attention_swap" in causal and causal["attention_swap"] is None,
        linked_mass=mass.get("linked"),
        unlinked_mass=mass.get("unlinked"),
        ov_auc=weights.get("ov_auc_interval"),
        n_seeds=seeds["n"] if seeds else 1,
        n_seeds_supported=seeds["n_supported"] if seeds else 0,
    )


def corrected_p(heads: Mapping[str, Any]) -> list[list[float]]:
    """Return the corrected p of every head [L][H]: the larger of its two tests, because a link must pass both."""
    p: list[list[float]] = np.maximum(heads["p_pair_accuracy"], heads["p_pronoun_contrast"]).tolist()
    return p


def _above(value: float | None, bar: float) -> bool:
    return value is not None and value > bar  # False for nan


def _low(interval: Interval | None) -> float | None:
    return interval[0] if interval else None


def _show(value: float | None) -> str:
    if value is None:
        return "unknown"
    return f"{value:.2g}" if 0 < abs(value) < 0.01 else f"{value:.3f}".rstrip("0").rstrip(".")
