"""Fields of the dataclasses of settings: each has its meaning, its limits, and its effect on a run."""

from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any

from settings.errors import UserError


@dataclass(frozen=True)
class SettingInfo:
    """The meaning and the limits of a setting."""

    meaning: str  # one line, for --help
    low: float | None = None  # low <= value
    above: float | None = None  # above < value
    high: float | None = None  # value <= high
    below: float | None = None  # value < below
    affects_result: bool = True  # False: without influence on what a model learns
    orders_batches: bool = False  # True: runs with one seed and different values of it read different batches

    def allows(self, value: float) -> bool:
        """Return True if `value` is within the limits; nan is not."""
        return (
            (self.low is None or value >= self.low)
            and (self.above is None or value > self.above)
            and (self.high is None or value <= self.high)
            and (self.below is None or value < self.below)
        )

    def limits_in_words(self) -> str:
        """Return the limits, to follow "must be"."""
        limits = {"at least": self.low, "above": self.above, "at most": self.high, "below": self.below}
        phrases = [f"{words} {limit:,}" for words, limit in limits.items() if limit is not None]
        return " and ".join(phrases) if len(phrases) > 1 or self.low is None else f"{self.low:,} or more"


def setting(meaning: str, *, default: Any = MISSING, **info: Any) -> Any:
    """Return the field of a setting, for a dataclass; `info` are fields of `SettingInfo`."""
    return field(default=default, metadata={"setting": SettingInfo(meaning, **info)})


def setting_info(field: Field[Any]) -> SettingInfo | None:
    """Return what a setting says about itself; None for an ordinary field of a dataclass."""
    return field.metadata.get("setting")


def check_limits(settings: Any, prefix: str = "") -> None:
    """Raise UserError unless every number is within its limits; `prefix` precedes the names on the command line."""
    for setting in fields(settings):
        info = setting_info(setting)
        value = getattr(settings, setting.name)
        if info is not None and isinstance(value, int | float) and not info.allows(value):
            raise UserError(f"{prefix}{setting.name}={value}: must be {info.limits_in_words()}")
