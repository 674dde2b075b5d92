"""Command lines: arguments that are refused, and a user's errors on one line."""

import shlex
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from antecedent_lab.eval_settings import EvalSettings
from data.config import HubConfig, StoriesConfig, TextConfig
from data.errors import UserError
from data.setting_fields import setting_info
from probe.config import ProbeConfig
from tests.program import ROOT, run_program
from train import GROUPS
from training.command_line import Groups, check_arguments, hydra_arguments, next_command, one_line_errors


@pytest.mark.parametrize(
    "argument",
    [
        "+typo=1", "max_steps", "~model", "~model=tiny", "=3", "--foo", "model=null", "model=../../x", "model=tiny,x",
        "experiment=lab/_base", "data@model=text", "+max_steps=3", "sample_prompt=\udcff", "--config-dir=/", "--cfg",
        "sample_prompt=${oc.env:HOME}",
        # Hydra must not be made to call a function, or to write into another folder.
        "hydra.launcher._target_=os.system", "+hydra.launcher._target_=os.system", "hydra.sweeper._target_=x",
        "hydra.launcher.additional_parameters={_target_:os.system}", "hydra.launcher.x=${seed}", "hydra.launcher.a.b=1",
        "hydra.callbacks.x._target_=os.getcwd", "hydra.searchpath=[file:///]", "hydra=null",
        "hydra.run.dir=x", "hydra.sweep.subdir=../..", "hydra/launcher={_target_:os.system}",
    ],
)  # fmt: skip
def test_an_argument_that_is_no_setting_or_a_setting_of_hydra_that_could_do_harm_is_refused(argument: str) -> None:
    with pytest.raises(ValueError):
        check_arguments([argument], GROUPS)


def test_sweeps_and_launchers_are_allowed() -> None:
    check_arguments(["-m", "seed=range(1,6)", "model=tiny,nano", "variant=glob(*)"], GROUPS)
    check_arguments(["hydra/launcher=joblib", "hydra.launcher.n_jobs=2", "hydra.sweep.dir=x"], GROUPS)


def test_hydra_reads_free_text_as_it_was_written() -> None:
    texts = [
        "plain", "a, b", "it's", 'say "it"', "[1,2]", "{a: 1}", "a=b", "back\\slash", "end\\", "\\'", "end\\\\", "$x",
        "(", "=", "~", "tab\there", "line\nbreak", "é 日本 🙂", " spaces ", "key: value", "#", "null ", "@", "",
    ]  # fmt: skip
    for text in texts:
        (argument,) = hydra_arguments([f"sample_prompt={text}"], GROUPS)
        assert OverridesParser.create().parse_override(argument).value() == text


@pytest.mark.parametrize(
    "error",
    [
        UserError("a\nb"), FileNotFoundError(2, "No such file", "x"), FloatingPointError("a"), MemoryError(),
        ModuleNotFoundError("a"), RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"),
        RuntimeError("CUDA out of memory. Tried"),
    ],
)  # fmt: skip
def test_an_error_that_a_user_can_cause_is_one_line_and_status_2(
    error: Exception, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_, one_line_errors():
        raise error
    text = capsys.readouterr().err
    assert exit_.value.code == 2 and text.count("\n") == 1
    assert text.startswith("error: ") and len(text) > len("error: \n")
    with pytest.raises(KeyError), one_line_errors():  # an error of the program keeps its traceback
        raise KeyError("x")


def test_a_printed_command_works_in_a_shell_and_names_the_cache_only_if_it_is_another() -> None:
    assert shlex.split(next_command("eval", "run=a b", ".cache"))[1:] == ["eval.py", "run=a b"]
    assert shlex.split(next_command("eval", "run=a", "x", "live=true"))[2:] == ["run=a", "cache_dir=x", "live=true"]


# The programs


@pytest.mark.parametrize(
    ("arguments", "groups"),
    [
        ("train.py", {**GROUPS, "data": [StoriesConfig]}),
        ("train.py data=hub data.name=x", {"data": [HubConfig]}),
        ("train.py data=text data.path=x", {"data": [TextConfig]}),
        ("eval.py", {"": [EvalSettings], "probe": [ProbeConfig]}),
    ],
)
def test_help_has_a_line_with_the_meaning_of_every_setting(arguments: str, groups: Groups) -> None:
    lines = run_program(*arguments.split(), "--help").out.splitlines()
    for group, schemas in groups.items():
        for field in fields(schemas[0]) if schemas else ():
            info = setting_info(field)
            assert info is not None and len(info.meaning) > 5 and "\n" not in info.meaning
            start = f"  {group}.{field.name}=" if group else f"  {field.name}="
            (line,) = [line for line in lines if line.startswith(start)]
            assert info.meaning in line


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ("train.py max_steps=0", "max_steps=0: must be 1 or more"), ("eval.py probe.n=1", "probe.n=1: no such setting"),
        ("train.py -sc", "-sc: no such flag"), ("train.py sed=1", "did you mean seed?"),
        ("train.py seed=[1", "seed=[1: cannot be read"), ("train.py seed=1,2", "seed=1,2: has several values"),
        ("train.py data=stories data.vocab_size=300", "data.vocab_size=300: not a setting of these data; choose"),
        ("train.py hydra/launcher=nowhere", "nowhere"), ("eval.py probe.n_untrained=0", "must be 2 or more"),
        (f"train.py cache_dir={__file__}", "is a file; choose a folder"), ("train.py --hlep", "did you mean --help?"),
        ("train.py model.n_haed=3", "did you mean model.n_head?"),
        ("train.py optim.lr=1", "optim has name, learning_rate"),
        (f"eval.py run={Path(__file__).parent}", "is not the directory of a run: it has no config.json"),
        ("train.py modle=tiny", "did you mean model?"),
        ("train.py model=tinny", "did you mean tiny?"), ("train.py experiment=lab/head", "did you mean lab/heads?"),
        ("eval.py -m", "-m: only train.py has"), ("eval.py run=nowhere", "run=nowhere: does not exist"),
    ],
)  # fmt: skip
def test_a_bad_argument_is_one_line_and_writes_nothing(arguments: str, error: str, tmp_path: Path) -> None:
    assert error in run_program(*arguments.split(), cwd=tmp_path).error
    assert list(tmp_path.iterdir()) == []


def test_a_closed_output_pipe_ends_the_program_quietly() -> None:
    command = f"{sys.executable} train.py --help | head -c 1; exit ${{PIPESTATUS[0]}}"
    process = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert process.stderr == "" and process.returncode in (0, 141)
