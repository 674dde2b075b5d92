"""The commands of docs/data.md use settings that exist."""

import re
import shlex
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir

from train import GROUPS
from training.command_line import hydra_arguments

ROOT = Path(__file__).parents[2]
COMMANDS = re.findall(r"^    python train\.py (.*)$", (ROOT / "docs" / "data.md").read_text(), re.MULTILINE)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_docs_composes(command: str) -> None:
    with initialize_config_dir(str(ROOT / "configs"), version_base="1.3"):
        settings = compose("train", hydra_arguments(shlex.split(command), GROUPS))
    assert settings.data.source in ("text", "hub")
