"""A model from the hub, asked of a stand-in on loopback: which files come, and what is said if none does."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.data.hub_stand_in import COMMIT, Faults, Hub

ROOT = Path(__file__).parents[2]
WANTED = {"config.json": b"{}", "tokenizer.json": b"[]", "merges.txt": b"a b", "model.safetensors": b"weights"}
OTHERS = {
    "pytorch_model.bin": b"the same as a pickle", "consolidated.safetensors": b"the same again", "README.md": b"card",
    "onnx/config.json": b"{}", "mine.py": b"print(1)",
}  # fmt: skip
_ASK = """
import sys
from data.hub_model import hub_model
try:
    folder, commit = hub_model(sys.argv[1])
except (ValueError, OSError) as error:
    sys.exit(f"error: {error}")
print(commit, *sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()))
"""


@pytest.fixture
def hub() -> Iterator[Hub]:
    with Hub({}, {"own/model": WANTED | OTHERS, "own/old": {"config.json": b"{}", "pytorch_model.bin": b"x"}}) as found:
        yield found


def ask(hub: Hub, home: Path, name: str, **variables: str) -> subprocess.CompletedProcess[str]:
    plain = {one: value for one, value in os.environ.items() if not one.startswith("HF_")}
    environment = plain | {"HF_ENDPOINT": hub.url, "HF_HOME": str(home), "PYTHONPATH": str(ROOT)} | variables
    return subprocess.run([sys.executable, "-c", _ASK, name], env=environment, capture_output=True, text=True)


def test_only_the_files_that_a_model_is_opened_from_are_fetched_and_then_nothing_is_asked(
    hub: Hub, tmp_path: Path
) -> None:
    done = ask(hub, tmp_path, "own/model")
    assert done.stdout.split() == [COMMIT, *sorted(WANTED)] and done.stderr == ""
    assert ask(hub, tmp_path, "own/old").stdout.split() == [COMMIT, "config.json", "pytorch_model.bin"]
    hub.forget()
    offline = ask(hub, tmp_path, "own/model", HF_HUB_OFFLINE="1")
    assert offline.stdout == done.stdout and hub.asked == []


def test_what_cannot_be_had_is_said_in_one_line_within_seconds(hub: Hub, tmp_path: Path) -> None:
    said = {
        "own/none": f"model=own/none is neither a folder nor a model of {hub.url}",
        "a/b/c": "model=a/b/c is neither a folder nor the name of a model on the hub",
    }
    for name, line in said.items():
        done = ask(hub, tmp_path, name)
        assert done.returncode == 1 and line in done.stderr and done.stderr.count("\n") == 1
    hub.faults = Faults(gated=True)
    assert "own/model is gated: accept its terms at " + hub.url + "/own/model" in ask(hub, tmp_path, "own/model").stderr
    hub.faults = Faults(silent=True)
    began = time.monotonic()
    done = ask(hub, tmp_path, "own/model")
    assert "cannot be asked (no answer came in time). Without it: a folder (model=FOLDER)" in done.stderr
    assert time.monotonic() - began < 30
