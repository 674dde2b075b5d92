"""The verdict about heads: their measures are compared with the bars of a question (`probe.questions`).

- The bars are data, fixed before the published runs; where no source is named they are conventions.
- A measure that is missing or not finite does not pass.
- A level of evidence needs all lower levels.
- An exclusion, such as a previous-token head, refuses every claim, whatever the measures are.
- A criterion that is not met has its reason in words, with the numbers.
"""

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

from probe.outcome import Measured
from probe.questions import ABOUT_ANSWER, Bar, Question
from probe.results import MEASURES, NOT_ESTABLISHED, NOT_KNOWN, SUGGESTIVE, SUPPORTED, Criterion, Head, Tested, show

_COMPARE: dict[str, Callable[[Any, float], bool]] = {
    "above": operator.gt,
    "at least": operator.ge,
    "below": operator.lt,
}


def judged(heads: Sequence[Head], measured: Measured, question: Question) -> Tested:
    """Return the measures of heads with criteria, verdict, level and reasons. Missing values do not pass."""
    criteria = []
    passed = set()
    missed_levels = set()
    reasons = [*measured.exclusions]
    for name in question.criteria:
        bars = [bar for bar in question.bars if bar.criterion == name]
        criterion = _criterion(name, bars, measured)
        criteria.append(criterion)
        if criterion.passed:
            passed.add(name)
        else:
            missed_levels.add(criterion.level)
            reasons.append(criterion.reason)

    level = "E0"
    for higher in ("E1", "E2", "E3"):
        if measured.exclusions or higher in missed_levels:
            break
        level = higher

    verdict = NOT_ESTABLISHED
    if not reasons:
        verdict = SUPPORTED
    elif level == "E0" and question.verdict_at_e0 != NOT_ESTABLISHED:
        verdict = question.verdict_at_e0
    # `suggestive` names criteria that must pass: once a head with a corrected p of 1.0 was suggestive without.
    # Where a head looks does not follow from what the answer does.
    elif (
        not measured.exclusions
        and set(question.suggestive) <= passed
        and len(passed - ABOUT_ANSWER) >= question.least_criteria
    ):
        verdict = SUGGESTIVE
    return Tested(list(heads), measured.values, criteria, verdict, level, reasons)


def _criterion(name: str, bars: Sequence[Bar], found: Measured) -> Criterion:
    values = found.values
    measured: dict[str, float | None] = {}
    limits = {}
    missing = []
    passes = True
    for bar in bars:
        value = getattr(values.get(bar.measure, NOT_KNOWN), bar.end)
        measured[bar.key] = None
        limits[bar.key] = f"{bar.needed} {bar.limit:g}"
        if value is None or not math.isfinite(value):
            missing.append(MEASURES[bar.measure].label)
        else:
            measured[bar.key] = value
            passes &= _COMPARE[bar.needed](value, bar.limit)
    outcome = "not met"
    if name in found.instead:
        reason = found.instead[name]
    elif missing:
        outcome = "not measured"
        reason = f"not measured: {' and '.join(dict.fromkeys(missing))}"
    elif passes:
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
        if name in found.remarks:
            reason = f"{reason}; {found.remarks[name]}"
    return Criterion(name, bars[0].level, measured, limits, outcome, reason)
