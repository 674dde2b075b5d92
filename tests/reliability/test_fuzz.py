"""Any command line gives valid settings, or one line of error with exit status 2."""

import io
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
from hypothesis import example, given, settings

from data.errors import printable
from tests.program import process_state
from tests.reliability.strategies import command_lines
from train import GROUPS
from training.command_line import run_cli
from training.settings import CONFIGS, train_settings


def status_and_error(arguments: list[str]) -> tuple[int, str]:
    """Returns how train.py would end if training itself were empty: all of the command line, none of the steps."""
    err = io.StringIO()
    with process_state(), redirect_stdout(io.StringIO()), redirect_stderr(err):
        sys.argv = ["train.py", *arguments]
        try:
            run_cli(lambda config: int(train_settings(config) is None), GROUPS, CONFIGS, "train")
        except SystemExit as exit_:
            return int(exit_.code or 0), err.getvalue()
    return 0, err.getvalue()


@pytest.fixture(autouse=True)
def working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.slow
@settings(max_examples=100)
@given(command_lines())
@example(["-m", "seed=1,2"])
@example(["data=text", "experiment=lab/heads"])
@example(["-m", "hydra.sweeper.max_batch_size=0", "model=nano"])
@example(["out='"])
@example(["sample_prompt=${oc.env:HOME}"])
def test_any_command_line_ends_with_status_0_or_with_one_line_of_error_and_status_2(arguments: list[str]) -> None:
    status, err = status_and_error(arguments)
    assert status in (0, 2), (arguments, err)
    # A sweep prints one line for each of its runs; the experiments of the lab are sweeps.
    is_sweep = {"-m", "--multirun"} & set(arguments) or any(name in str(arguments) for name in ("MULTIRUN", "lab/"))
    if status == 2 and not is_sweep:
        assert err.startswith("error: ") and err.count("\n") == 1, (arguments, err)
    assert printable(err) == err and "Traceback" not in err, (arguments, err)
