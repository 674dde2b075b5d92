"""What may be claimed of heads: the bars of a question (`probe.questions`) against what was measured."""

import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import replace

from probe.questions import MAX_OTHER_TYPE, MAX_P, MIN_SHARE, Bar, Question, in_words_of
from probe.results import Criterion, Curve, Tested, Values

SUPPORTED = "supported"
SUGGESTIVE = "suggestive"
NOT_ESTABLISHED = "not established"
UNKNOWN_TO_MODEL = "the model does not know"  # edge: its choice may ignore the entities
_BAR_LEVELS = ("E1", "E2", "E3")
_COMPARE = {"above": operator.gt, "at least": operator.ge, "below": operator.lt}
_TYPE_NAMES = {"previous": "previous-token", "induction": "induction"}


def judged(
    tested: Tested,
    question: Question,
    exclusions: Sequence[str] = (),
    *,
    smallest_p: float = 0.0,
    n_clusters: int = 0,
    answer_is_constant: bool = False,
) -> Tested:
    """Return what was tested with its criteria, verdict, level and reasons.

    `exclusions` are reasons why nothing may be claimed, whatever else is measured. `answer_is_constant`: the model
    answers the same in both texts of a pair, so that nothing is a share of its change. Missing values do not pass.
    """
    # Every criterion, in the order of the bars
    criteria = []
    for name in question.criteria:
        bars = [bar for bar in question.bars if bar.criterion == name]
        criterion = _criterion(name, bars, tested.values, answer_is_constant)
        if criterion.outcome == "not met" and smallest_p >= MAX_P and "p_pair_accuracy" in criterion.measured:
            smallest = f"with {n_clusters} different frames or words no p can be below {show(smallest_p)}"
            criterion = replace(criterion, reason=f"{criterion.reason}; {smallest}")
        if question.file is not None:
            criterion = replace(criterion, reason=in_words_of(question.link, criterion.reason))
        criteria.append(criterion)

    # The verdict, and the level up to which everything is met
    passed = {criterion.name for criterion in criteria if criterion.passed}
    level = "E0"
    for higher in _BAR_LEVELS:
        if exclusions or not all(criterion.passed for criterion in criteria if criterion.level == higher):
            break
        level = higher
    verdict = NOT_ESTABLISHED
    if not exclusions and len(passed) == len(criteria):
        verdict = SUPPORTED
    elif question.outcome == "edge" and level == "E0":
        verdict = UNKNOWN_TO_MODEL
    elif not exclusions and set(question.suggestive) <= passed and len(passed) >= question.least_criteria:
        verdict = SUGGESTIVE
    reasons = [*exclusions, *(criterion.reason for criterion in criteria if not criterion.passed)]
    return replace(tested, criteria=criteria, verdict=verdict, level=level, reasons=reasons)


def is_enough(head: Tested) -> bool:
    """Return whether no other head need be looked for: this one is supported, and its swap is MIN_SHARE or more."""
    return head.verdict == SUPPORTED and head.value("swap") >= MIN_SHARE


def unit_of(head: Tested, together: Tested | None, curve: Curve, least: float) -> str:
    """Return what a verdict is about: a supported set that swaps `least` on dev takes the place of a weaker head."""
    is_set = together is not None and together.verdict == SUPPORTED and curve[-1][1] >= least
    return "set" if is_set and head.verdict != SUPPORTED else "head"


def exclusions_of(question: Question, head_type: Mapping[str, float], contrast: float, weighted: float) -> list[str]:
    """Return why nothing may be claimed of a head: it is of another known type, or its values contradict its attention.

    `head_type` are its mean weights on random tokens; `weighted` is the contrast of weights times lengths of values.
    """
    reasons = []
    for name, words in _TYPE_NAMES.items():
        weight = head_type.get(name, 0.0)
        if name in question.exclusions and weight > MAX_OTHER_TYPE:
            reasons.append(f"no claim: it is a {words} head (weight {show(weight)}; at most {MAX_OTHER_TYPE})")
    if "value_contrast" in question.exclusions and contrast * weighted < 0:
        contrasts = f"contrasts {show(contrast)} and {show(weighted)}"
        reasons.append(f"no claim: attention and value-weighted attention disagree ({contrasts})")
    return reasons


def _criterion(name: str, bars: Sequence[Bar], values: Values, answer_is_constant: bool) -> Criterion:
    """Return whether all bars of a criterion are met; with a missing value it is "not measured"."""
    measured = {}
    limits = {}
    for bar in bars:
        measured[bar.key] = _value(bar, values)
        limits[bar.key] = f"{bar.needed} {bar.limit:g}"
    missing = [key.replace("_", " ") for key, value in measured.items() if value is None]
    outcome = "not met"
    if answer_is_constant and bars[0].measure == "swap":
        reason = "the model's answer does not follow the pronoun, so it cannot depend on this edge"
    elif missing:
        outcome = "not measured"
        reason = f"{' and '.join(missing)} not measured, so the criterion {name.replace('_', ' ')!r} is not met"
    elif all(_is_met(bar, values) for bar in bars):
        outcome = "met"
        reason = ""
    else:
        # The reason may name every value, end of an interval and bar.
        texts = {f"{bar.key}_bar": f"{bar.limit:g}" for bar in bars}
        for measure, estimate in values.items():
            texts[measure] = show(estimate.value)
            texts[f"{measure}_low"] = show(estimate.low)
            texts[f"{measure}_high"] = show(estimate.high)
        reason = bars[0].reason.format_map(texts)
    return Criterion(name, bars[0].level, measured, limits, outcome, reason)


def _value(bar: Bar, values: Values) -> float | None:
    value = getattr(values[bar.measure], bar.end) if bar.measure in values else None
    return value if value is not None and math.isfinite(value) else None


def _is_met(bar: Bar, values: Values) -> bool:
    value = _value(bar, values)
    return value is not None and _COMPARE[bar.needed](value, bar.limit)


def show(value: float | None) -> str:
    """Return a number as reasons have it."""
    if value is None:
        return "unknown"
    return f"{value:.2g}" if 0 < abs(value) < 0.01 else f"{value:.3f}".rstrip("0").rstrip(".")
