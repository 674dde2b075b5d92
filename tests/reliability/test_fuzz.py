"""Any command line gives valid settings, or one line of error with exit status 2."""

import io
import os
import string
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import fields
from tempfile import gettempdir
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from settings.command_line import run_cli
from settings.data import SCHEMAS
from settings.errors import printable
from settings.model import ModelConfig
from settings.train import CONFIGS, OptimSettings, RunSettings, train_settings
from tests.program import process_state
from train import GROUPS

SCHEMA_BY_PREFIX = [("", RunSettings), ("model.", ModelConfig), ("optim.", OptimSettings)]
SCHEMA_BY_PREFIX += [("data.", schema) for schema in SCHEMAS.values()]
NAMES = [prefix + field.name for prefix, schema in SCHEMA_BY_PREFIX for field in fields(schema)]
CHOICES = [
    "model=nano", "model=nowhere", "data=text", "optim=sgd", "data=null", "experiment=lab/heads", "variant=../x",
    "hydra/launcher=nowhere", "hydra.sweeper.max_batch_size=0", "+hydra.launcher.other=x", "hydra.mode=MULTIRUN",
]  # fmt: skip
FLAGS = [
    "", "-m", "-h", "--help", "--hydra-help", "--cfg job", "-c hydra", "--resolve", "-p", "--config-name eval",
    "--config-dir=/", "--", "-", "-1", "--shell-completion", "-hm", "job", "-m -p", "--resolve -c hydra",
]  # fmt: skip
VALUES = [
    "-1", "0", "1", "0.5", "1e308", "-0.0", "nan", "-inf", "1e999", str(2**63), str(10**400), "0x10", "٣", "true",
    "null", "None", "", "[]", "{}", "[1,2]", "{a:{b:[1]}}", "[" * 5, "(", "'", '"a\\', "\\", "a,b", "glob(*)",
    "f(x)", "${oc.env:HOME}", "${seed}", "${", "$", "???", "=", "a=b", "~", "@", "🙂", "\u202ecba", "\x1b[31mred", "\r",
    "a\nb", "\x7f", "\udcff", "x" * 300, "x/" * 300, "..", "%s", "{0}", "cpu", "auto",
]  # fmt: skip


def settings_of_any_kind():
    """Existing settings with any value, misspelled names, and Hydra's grammar."""
    name = st.sampled_from(NAMES)
    text = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=30)
    value = st.one_of(st.sampled_from(VALUES), text, st.integers().map(str), st.floats().map(repr))
    setting = st.tuples(name, value).map("=".join)
    prefixed = st.tuples(st.sampled_from(["+", "++", "~", "-", " ", "'", "@"]), setting).map("".join)
    misspelled = st.tuples(name, st.integers(1, 9)).map(lambda pair: pair[0][: pair[1]] + pair[0][pair[1] + 1 :] + "=1")
    noise = st.text(st.sampled_from(string.printable + "=${}[]~+,'\"\\é\u202e"), max_size=20)
    choice = st.sampled_from(CHOICES)
    return st.lists(st.one_of(setting, setting, setting, prefixed, misspelled, noise, choice), max_size=3)


@pytest.mark.slow
@settings(max_examples=100)
@given(settings_of_any_kind(), st.sampled_from(FLAGS))
@example(["seed=1,2"], "-m")
@example(["hydra.sweeper.max_batch_size=0", "model=nano"], "-m")
@example(["cache_dir=${oc.env:HOME}"], "")
def test_any_command_line_ends_with_status_0_or_one_line_of_error(arguments, flags):
    """The program is train.py with all of its command line and no steps."""
    arguments = [*flags.split(), *arguments]
    status: Any = 0
    with process_state(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()) as stream:
        os.chdir(gettempdir())
        sys.argv = ["train.py", *arguments]
        try:
            run_cli(lambda config: int(train_settings(config) is None), GROUPS, CONFIGS, "train")
        except SystemExit as exit_:
            status = exit_.code or 0
    err = stream.getvalue()
    assert status in (0, 2), (arguments, err)
    # A sweep prints one line for each of its runs; the experiments of the lab are sweeps.
    is_sweep = {"-m", "--multirun"} & set(arguments) or any(name in str(arguments) for name in ("MULTIRUN", "lab/"))
    if status == 2 and not is_sweep:
        assert err.startswith("error: ") and err.count("\n") == 1, (arguments, err)
    assert printable(err) == err and "Traceback" not in err, (arguments, err)
