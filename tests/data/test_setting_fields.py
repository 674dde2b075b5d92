"""data/setting_fields.py: limits; tests/training/test_settings.py has those of the real settings."""

from dataclasses import dataclass

import pytest

from data.errors import UserError
from data.setting_fields import check_limits, setting


@dataclass
class Settings:
    share: float | None = setting("a share", above=0, below=1)


def test_a_number_at_an_excluded_limit_is_refused_with_its_prefix() -> None:
    for value in (1e-9, 0.999, None):
        check_limits(Settings(value))
    for value in (0, 1, float("nan"), float("inf")):
        with pytest.raises(UserError, match=f"^optim.share={value}: must be between 0 and 1, both excluded$"):
            check_limits(Settings(value), "optim.")
