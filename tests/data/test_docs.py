"""docs/data.md says what is so."""

import re
import shlex
from pathlib import Path

import pytest

from training.command_line import check_overrides

TEXT = (Path(__file__).parent.parent.parent / "docs" / "data.md").read_text()
COMMANDS = re.findall(r"^    python train\.py (.*)$", TEXT, re.MULTILINE)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_settings_that_there_are(command: str) -> None:
    check_overrides(shlex.split(command, comments=True), "train")


def test_there_are_commands() -> None:
    assert len(COMMANDS) >= 8
