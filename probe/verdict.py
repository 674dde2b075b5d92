"""What may be said of a head: supported, suggestive or not established, how far the evidence goes, and why not further.

The bars are conventions, ours where no source is named, fixed before anything was measured against them.
A null result is a result and is worded as one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from probe.statistics import MIN_SEEDS

SUPPORTED, SUGGESTIVE, NOT_ESTABLISHED = "supported", "suggestive", "not established"
LEVELS = {
    "E0": "a picture",
    "E1": "beats every baseline",
    "E2": "flips with the pronoun on held-out items",
    "E3": "its edge is causal",
    "E4": "it suffices, its values carry the answer, and other seeds have one too",
}
MAX_P = 0.01  # of the max-T test, so corrected for the search over heads already
MIN_SELECTIVITY = 0.15  # ours: Hewitt & Liang 2019 give no bar; a pure link has .5, as random labels leave it 1/2
MIN_EDGE_SWAP = 0.2  # ours: a fifth of the answer hangs on which of the two this one head looks at
MAX_UNLINKED_MASS = 0.5  # ours: weight on nouns where nothing is meant, as a share of that where one is
MAX_OTHER_TYPE = 0.4  # ours: mean weight of a head of another kind on its own target, on random tokens
MIN_SUFFICIENCY = 0.5  # ours: most of the answer comes back when the head alone is put right
MIN_SHARE_OF_SEEDS = 0.8  # ours: four of five
_SUGGESTIVE_FROM = 2  # criteria met
Interval = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What was measured of one head for one question on the headline hold-out. None: not measured, so not shown."""

    p_pair_accuracy: float | None  # max-T, F2 above 1/2
    p_pronoun_contrast: float | None  # max-T, DD above 0
    smallest_p: float  # that could have been reached
    n_clusters: int  # of the clustering that has the fewest
    over_best: Interval | None  # Sel@1 minus that of the best rule that knows nothing
    selectivity: float | None
    attention_swap: float | None  # T
    edge_specificity: Interval | None  # ES
    linked_mass: float | None  # weight on all mentions where the pronoun means one
    unlinked_mass: float | None  # weight on all nouns where it means none
    previous: float | None  # weight on the previous token, on random tokens
    induction: float | None  # weight on the token after the same token's last occurrence
    preference: float | None  # mean lambda
    norm_preference: float | None  # mean lambda of the value-weighted norms
    denoising: float | None = None  # share of the answer that comes back when this head alone is put right
    ov_auc: Interval | None = None  # that a noun's path through the head raises its own verbs
    n_seeds: int = 1
    n_seeds_supported: int = 0  # by themselves, this seed among them


@dataclass(frozen=True, slots=True)
class Criterion:
    """One of the five bars."""

    name: str
    measured: dict[str, float | None]
    bars: dict[str, float]  # by the names in `measured`
    passed: bool
    reason: str  # why not, in plain English; empty where passed


@dataclass(frozen=True, slots=True)
class Verdict:
    """What may be said, and why no more."""

    word: str  # SUPPORTED, SUGGESTIVE or NOT_ESTABLISHED
    level: str  # one of LEVELS
    criteria: tuple[Criterion, ...]
    reasons: tuple[str, ...]  # what forbids a claim, then what each missed criterion missed by

    def entry(self) -> dict[str, Any]:
        """Return what probe.json keeps of it."""
        return finite(
            {
                "verdict": self.word,
                "evidence_level": self.level,
                "criteria": [asdict(one) for one in self.criteria],
                "reasons": list(self.reasons),
            }
        )


def judge(evidence: Evidence) -> Verdict:
    """Return the verdict: supported by all five criteria, suggestive by two to four, else not established.

    One of the two must say that the head tells antecedents apart: random weights were seen to meet two of the others.

    A head of another type, or one whose values tell another story than its weights, is nothing of the kind whatever
    else it does. What was not measured did not pass.
    """
    criteria = tuple(criterion(evidence) for criterion in CRITERIA)
    barred = _barred(evidence)
    n_passed = sum(one.passed for one in criteria)
    word, level = NOT_ESTABLISHED, "E0" if barred else _level(evidence, criteria)
    tells_apart = any(one.passed for one in criteria if one.name in ("flips", "beats baselines"))
    if not barred and tells_apart and n_passed >= _SUGGESTIVE_FROM:
        word = SUPPORTED if n_passed == len(criteria) else SUGGESTIVE
    missed = tuple(one.reason for one in criteria if not one.passed)
    return Verdict(word, level, criteria, barred + missed)


def _flips(evidence: Evidence) -> Criterion:
    measured = {"p_pair_accuracy": evidence.p_pair_accuracy, "p_pronoun_contrast": evidence.p_pronoun_contrast}
    reason = (
        f"that it flips may be luck: corrected p {_show(evidence.p_pair_accuracy)} on F2, {_show(evidence.p_pronoun_contrast)} on DD; "
        f"needed: below {MAX_P}"
    )
    if evidence.smallest_p >= MAX_P:
        reason += f", which cannot be reached with {evidence.n_clusters} clusters (least {_show(evidence.smallest_p)})"
    return _criterion("flips", measured, dict.fromkeys(measured, MAX_P), _below, reason)


def _beats_baselines(evidence: Evidence) -> Criterion:
    low = _low(evidence.over_best)
    reason = f"it does not beat the best baseline: the interval of Sel@1 minus that one's begins at {_show(low)}"
    return _criterion("beats baselines", {"over_best_low": low}, {"over_best_low": 0.0}, _above, reason)


def _selective(evidence: Evidence) -> Criterion:
    reason = f"random labels fit it too: selectivity {_show(evidence.selectivity)}; needed: above {MIN_SELECTIVITY}"
    measured, bars = {"selectivity": evidence.selectivity}, {"selectivity": MIN_SELECTIVITY}
    return _criterion("selective", measured, bars, _above, reason)


def _causal(evidence: Evidence) -> Criterion:
    measured = {"attention_swap": evidence.attention_swap, "edge_specificity_low": _low(evidence.edge_specificity)}
    bars = {"attention_swap": MIN_EDGE_SWAP, "edge_specificity_low": 0.0}
    reason = (
        f"the model's answer is not shown to come by this edge: T {_show(measured['attention_swap'])}, ES's interval begins "
        f"at {_show(measured['edge_specificity_low'])}; needed: above {MIN_EDGE_SWAP} and above 0"
    )
    return _criterion("causal edge", measured, bars, _above, reason)


def _rests(evidence: Evidence) -> Criterion:
    share = None
    if evidence.linked_mass and evidence.unlinked_mass is not None:
        share = evidence.unlinked_mass / evidence.linked_mass
    reason = (
        f"it looks at nouns where a pronoun means none: {_show(share)} of the weight they get where it means one; "
        f"needed: below {MAX_UNLINKED_MASS}"
    )
    return _criterion("rests", {"unlinked_mass": share}, {"unlinked_mass": MAX_UNLINKED_MASS}, _below, reason)


CRITERIA: tuple[Callable[[Evidence], Criterion], ...] = (_flips, _beats_baselines, _selective, _causal, _rests)


def _criterion(
    name: str,
    measured: dict[str, float | None],
    bars: dict[str, float],
    meets: Callable[[float | None, float], bool],
    reason: str,
) -> Criterion:
    """Return one whose values must all meet their bars, with `reason` where one does not."""
    passed = all(meets(value, bars[key]) for key, value in measured.items())
    unknown = [key.replace("_", " ") for key, value in measured.items() if value is None or not math.isfinite(value)]
    if unknown:
        reason = f"{' and '.join(unknown)} not measured, so the criterion '{name}' is not met"
    return Criterion(name, measured, bars, passed, "" if passed else reason)


def _barred(evidence: Evidence) -> tuple[str, ...]:
    reasons = []
    for name, weight in (("previous-token", evidence.previous), ("induction", evidence.induction)):
        if _above(weight, MAX_OTHER_TYPE):
            reasons.append(f"no claim: it is a {name} head (weight {_show(weight)}, barred above {MAX_OTHER_TYPE})")
    weights, norms = evidence.preference, evidence.norm_preference
    if weights is not None and norms is not None and weights * norms < 0:
        both = f"lambda {_show(weights)}, by value norm {_show(norms)}"
        reasons.append(f"no claim: its weights and what they carry disagree ({both})")
    return tuple(reasons)


def _level(evidence: Evidence, criteria: tuple[Criterion, ...]) -> str:
    """Return the highest level whose evidence, and that of every level below it, is there."""
    passed = {one.name: one.passed for one in criteria}
    replicated = evidence.n_seeds >= MIN_SEEDS and evidence.n_seeds_supported >= MIN_SHARE_OF_SEEDS * evidence.n_seeds
    mechanism = _above(evidence.denoising, MIN_SUFFICIENCY) and _above(_low(evidence.ov_auc), 0.5)
    steps = (passed["beats baselines"], passed["flips"], passed["causal edge"], mechanism and replicated)
    reached = next((i for i, step in enumerate(steps) if not step), len(steps))
    return f"E{reached}"


def evidence_of(one: dict[str, Any], holdout: str, seeds: dict[str, Any] | None = None) -> Evidence:
    """Gather the evidence from an entry of probe.json's `selected`; what is not there was not measured.

    Args:
        one: the entry, before its verdict.
        holdout: where claims are tested.
        seeds: {"n", "n_supported", ...} over training seeds, where there are several.

    """
    found = one["test"].get(holdout, {})
    kind, mass, causal, weights = (one.get(name) or {} for name in ("head_type", "mass", "causal", "weights"))
    best = found.get("best_baseline") or {}
    return Evidence(
        p_pair_accuracy=found.get("p_pair_accuracy"),
        p_pronoun_contrast=found.get("p_pronoun_contrast"),
        smallest_p=found.get("smallest_p", 1.0),
        n_clusters=min(found.get("clusters", {"none": 0}).values()),
        over_best=best.get("difference_interval"),
        selectivity=one.get("selectivity"),
        attention_swap=causal.get("attention_swap"),
        edge_specificity=causal.get("edge_specificity_interval"),
        linked_mass=mass.get("linked"),
        unlinked_mass=mass.get("unlinked"),
        previous=kind.get("previous"),
        induction=kind.get("induction"),
        preference=found.get("lambda"),
        norm_preference=found.get("value_weighted_contrast"),
        denoising=causal.get("denoising"),
        ov_auc=weights.get("ov_auc_interval"),
        n_seeds=seeds["n"] if seeds else 1,
        n_seeds_supported=seeds["n_supported"] if seeds else 0,
    )


def corrected_p(heads: Mapping[str, Any]) -> list[list[float]]:
    """Return one p of every head [L][H] from those of F2 and DD: the larger, for a link must pass both."""
    both = zip(heads["p_pair_accuracy"], heads["p_pronoun_contrast"], strict=True)
    return [[max(pair) for pair in zip(*rows, strict=True)] for rows in both]


def finite(value: Any) -> Any:
    """Return `value` as JSON can hold it: arrays and tuples as lists, NumPy's numbers as Python's, nan and inf None."""
    if isinstance(value, dict):
        return {str(key): finite(one) for key, one in value.items()}
    if hasattr(value, "tolist"):
        return finite(value.tolist())
    if isinstance(value, list | tuple):
        return [finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _above(value: float | None, bar: float) -> bool:
    return value is not None and value > bar  # never for nan


def _below(value: float | None, bar: float) -> bool:
    return value is not None and value < bar


def _low(interval: Interval | None) -> float | None:
    return interval[0] if interval else None


def _show(value: float | None) -> str:
    if value is None:
        return "unknown"
    return f"{value:.2g}" if 0 < abs(value) < 0.01 else f"{value:.3f}".rstrip("0").rstrip(".")
