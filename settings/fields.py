"""Fields of the dataclasses of settings: each has its meaning, its limits, and its effect on a run."""

import operator
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

from settings.errors import UserError

# The limits that a setting can have: in words that follow "must be", and whether a value keeps to one.
_LIMITS = {
    "low": ("at least", operator.ge),
    "above": ("above", operator.gt),
    "high": ("at most", operator.le),
    "below": ("below", operator.lt),
}


@dataclass(frozen=True)
class SettingInfo:
    """The meaning and the limits of a setting."""

    meaning: str  # one line, for --help
    limits: dict[str, float]  # by their names in _LIMITS
    affects_result: bool  # False: without influence on what a model learns
    orders_batches: bool  # True: runs with one seed and different values of it read different batches

    def allows(self, value: float) -> bool:
        """Return True if `value` is within the limits; nan is not."""
        return all(_LIMITS[name][1](value, limit) for name, limit in self.limits.items())

    def limits_in_words(self) -> str:
        """Return the limits, to follow "must be"."""
        if [*self.limits] == ["low"]:
            return f"{self.limits['low']:,} or more"
        return " and ".join(f"{_LIMITS[name][0]} {limit:,}" for name, limit in self.limits.items())


def setting(
    meaning: str, *, default: Any = MISSING, affects_result: bool = True, orders_batches: bool = False, **limits: float
) -> Any:
    """Return the field of a setting, for a dataclass; the arguments are as in `SettingInfo`."""
    assert limits.keys() <= _LIMITS.keys()
    info = SettingInfo(meaning, limits, affects_result, orders_batches)
    return field(default=default, metadata={"setting": info})


def check_limits(settings: Any, prefix: str = "") -> None:
    """Raise UserError unless every number is within its limits; `prefix` precedes the names on the command line."""
    for setting in fields(settings):
        info: SettingInfo = setting.metadata["setting"]
        value = getattr(settings, setting.name)
        if isinstance(value, int | float) and not info.allows(value):
            raise UserError(f"{prefix}{setting.name}={value}: must be {info.limits_in_words()}")
