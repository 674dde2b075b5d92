"""Command lines: arguments are checked before Hydra reads them, and a user's error is one line with exit status 2."""

import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import fields
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import hydra
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from settings.errors import UserError, extra, printable
from settings.train import CONFIGS, did_you_mean, full_name

FLAGS = ("-m", "--multirun", "-h", "--help", "--version")
CONFIG_FLAGS = re.compile(r"(-c|--cfg) (job|hydra|all)( --resolve)?")  # Hydra prints the configuration
DEFAULT_CACHE = ".cache"  # cache_dir in configs/train.yaml and configs/eval/eval.yaml
# Hydra calls the `_target_` of its launcher and sweeper with their settings. Only these may be set, to plain values, so
# that no command line copied from somewhere can make it call another function.
HYDRA_SETTINGS = re.compile(
    r"(hydra/launcher|hydra\.launcher\.[a-z]\w*|hydra\.sweep\.dir)=[^{}$]*|hydra\.sweeper\.max_batch_size=[1-9]\d*"
)

# Config group -> dataclasses of its settings; "" has those outside all groups.
Groups = Mapping[str, Sequence[type]]


def run_cli(program: Callable[[DictConfig], int], groups: Groups, config_path: Path, config_name: str) -> None:
    """Call `program` with Hydra's config for sys.argv, under -m once per run, and exit with the status it returns."""

    @hydra.main(version_base="1.3", config_path=str(config_path), config_name=config_name)
    def main(config: DictConfig) -> None:
        # Hydra raises the error of a run again after the last run of a sweep, and adds which run it was.
        is_sweep = HydraConfig.get().mode is RunMode.MULTIRUN
        with nullcontext() if is_sweep else one_line_errors():
            status = program(config)
        if status:
            sys.exit(status)

    with one_line_errors():
        check_arguments(sys.argv[1:], groups)
        os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra raises its errors instead of printing a report
        # Idle OpenMP threads sleep soon: on a busy CPU their spinning slows training many times.
        os.environ.setdefault("GOMP_SPINCOUNT", "30000")
        sys.argv[1:] = hydra_arguments(sys.argv[1:], groups)
        if "--version" in sys.argv:
            print(version_line())
        elif {"-h", "--help"} & set(sys.argv):
            print(_help_text(sys.argv[1:], groups, config_path, config_name))
        else:
            main()
        sys.stdout.flush()


def version_line() -> str:
    """Return name and version of the package, as CITATION.cff has it in the checkout and in the wheel."""
    facts: Any = OmegaConf.load(CONFIGS.parent / "CITATION.cff")
    return f"antecedent-lab {facts.version}"


def _help_text(arguments: Sequence[str], groups: Groups, config_path: Path, config_name: str) -> str:
    """Return the help of a program, with the value of every setting under these arguments and its meaning."""
    overrides = [argument for argument in arguments if "=" in argument]
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(config_path), version_base="1.3"):
        config = compose(config_name, overrides, return_hydra_config=True)
    template: str = config.hydra.help.template
    values: Any = OmegaConf.to_container(config)

    # One line for each setting; data have a schema for each source, of which the largest that fits counts.
    lines = []
    for group, schemas in groups.items():
        group_values = values.get(group, {}) if group else values
        fitting = []
        for schema in schemas:
            if all(field.name in group_values for field in fields(schema)):
                fitting.append(fields(schema))
        for field in max(fitting, key=len, default=()):
            value = group_values[field.name]
            text = value if isinstance(value, str) else json.dumps(value)
            line = f"  {f'{full_name(group, field.name)}={text}':38}  {field.metadata['setting'].meaning}"
            if choices := getattr(field.type, "__members__", None):
                line += f" ({', '.join(choices)})"
            lines.append(line)
    return template.replace("$CONFIG", "\n".join(lines))


def check_arguments(arguments: Sequence[str], groups: Groups) -> None:
    """Raise UserError for an unknown flag, setting or choice, with the most similar name that exists."""
    names = [*filter(None, groups), *setting_names(groups)]
    shows_config = CONFIG_FLAGS.fullmatch(" ".join(argument for argument in arguments if "=" not in argument))
    for argument in arguments:
        try:
            argument.encode()
        except UnicodeEncodeError as error:
            raise UserError(str(error)) from None
        name, equals, value = argument.partition("=")
        if shows_config and not equals:
            continue
        if argument.startswith("-"):
            if argument in ("-m", "--multirun") and "variant" not in groups:
                raise UserError(f"{argument}: only train.py has sweeps; eval.py reads them by runs=DIR")
            if argument not in FLAGS:
                remedy = ", or not used so; --help lists the settings, --cfg job [--resolve] prints the configuration"
                raise UserError(f"{argument}: no such flag{did_you_mean(argument, FLAGS) or remedy}")
        elif not equals:
            raise UserError(f"{argument}: settings are written NAME=VALUE")
        elif re.match(r"hydra\b", name):
            if not HYDRA_SETTINGS.fullmatch(argument):
                raise UserError(
                    f"{argument}: of Hydra's own settings only hydra/launcher, hydra.launcher.NAME, hydra.sweep.dir "
                    "and hydra.sweeper.max_batch_size (1 or more) can be set, to plain values"
                )
            if argument == "hydra/launcher=joblib" and not [*distributions(name="hydra-joblib-launcher")]:
                raise UserError(f"{argument}: needs the extra sweep: {sys.executable} -m pip install {extra('sweep')}")
        elif name not in names:
            raise UserError(f"{name}={value}: no such setting{did_you_mean(name, names)}")
        elif "${" in value:  # text is data: it must not become an interpolation
            raise UserError(f"{argument}: may not contain ${{")
        elif name in groups and "(" not in value:
            _check_choices(name, value)


def _check_choices(group: str, value: str) -> None:
    """Raise UserError unless each of the comma-separated choices is a file in configs/GROUP."""
    folder = CONFIGS / group
    files = folder.rglob("[!_]*.yaml")  # not _base.yaml
    choices = sorted(file.relative_to(folder).with_suffix("").as_posix() for file in files)
    for choice in value.split(","):
        if choice.strip() not in choices:
            expected = f"{', '.join(choices)}{did_you_mean(choice, choices)}"
            raise UserError(f"{group}={choice}: must be one of {expected}")


def setting_names(groups: Groups, *types: object) -> list[str]:
    """Return the names of all settings, or of those whose annotation is in `types`, as the command line has them."""
    names = []
    for group, schemas in groups.items():
        for schema in schemas:
            for field in fields(schema):
                if not types or field.type in types:
                    names.append(full_name(group, field.name))
    return names


def hydra_arguments(arguments: Sequence[str], groups: Groups) -> list[str]:
    """Return the arguments in Hydra's grammar: flags first, texts in quotes, `out` as the directory of a sweep.

    Raises UserError for a value that Hydra cannot read, and for several values of one run or equal ones of a sweep.
    """
    texts = setting_names(groups, str, str | None)
    # The experiments of the lab are sweeps also without -m.
    is_lab = any(re.match(r"\+*experiment=['\"]?lab/", argument) for argument in arguments)
    is_sweep = is_lab or bool({"-m", "--multirun"} & set(arguments))
    flags = []
    settings = []
    for argument in arguments:
        if "=" not in argument:
            flags.append(argument)
            continue
        quoted = _quoted(argument, texts)
        _check_values(quoted, is_sweep)
        # Data have settings of their kind, which are checked when it is known; that of a resumed run is not named here.
        settings.append(re.sub(r"^(?=data\.)", "++", quoted))
        if is_sweep and quoted.startswith("out="):
            settings.append(f"hydra.sweep.dir={quoted[4:]}")
    return flags + settings


def _check_values(argument: str, is_sweep: bool) -> None:
    try:
        override = OverridesParser.create().parse_override(argument)
    except HydraException:
        raise UserError(f"{argument}: cannot be read; write text with brackets or commas as NAME='VALUE'") from None
    if override.is_sweep_override() and not is_sweep:
        raise UserError(f"{argument}: has several values; train.py -m trains one run for each")
    if override.is_choice_sweep():
        values = list(map(str, override.value().list))  # type: ignore[union-attr]
        if len(set(values)) < len(values):
            raise UserError(f"{argument}: has a value twice; the same run would be trained again")


def _quoted(argument: str, texts: Sequence[str]) -> str:
    """Return NAME=VALUE with VALUE in Hydra's quotes if NAME is in `texts`, so that commas and brackets stay text."""
    name, _, value = argument.partition("=")
    if name not in texts or value == "null" or re.fullmatch(r"'[^']*'|\"[^\"]*\"", value):
        return argument
    # Inside quotes a backslash is special only before a quote and at the end.
    escaped = re.sub(r"(\\*)('|$)", lambda match: match[1] * 2 + ("\\'" if match[2] else ""), value)
    return f"{name}='{escaped}'"


def given_arguments(overrides: Sequence[str]) -> list[str]:
    """Return overrides in Hydra's grammar as they are typed, without those that name directories of the run."""
    arguments = []
    for override in overrides:
        if override.partition("=")[0] not in ("out", "cache_dir", "resume"):
            arguments.append(re.sub(r"='([^'\\]*)'$", r"=\1", override.lstrip("+")))
    return arguments


def program_command(program: str, *settings: str) -> str:
    """Return the line to paste into a shell in this folder that runs train.py or eval.py (`program` without .py)."""
    if __name__.startswith("antecedent_lab."):  # the installed package
        return shlex.join(["antecedent-lab", program, *settings])
    folder = f"{Path.cwd()}{os.sep}"
    python = "python" if shutil.which("python") == sys.executable else sys.executable.removeprefix(folder)
    return shlex.join([python, str(CONFIGS.parent / f"{program}.py").removeprefix(folder), *settings])


def next_command(program: str, directory: str, cache_dir: str, *settings: str) -> str:
    """Return the command for the next program on a run; `directory` is run=DIR or out=DIR."""
    cache = [f"cache_dir={cache_dir}"] if cache_dir != DEFAULT_CACHE else []
    return program_command(program, directory, *cache, *settings)


@contextmanager
def one_line_errors() -> Iterator[None]:
    """End the program with one line on stderr and exit status 2 if the body raises an error that a user can cause.

    Ctrl-C exits with 130 and a closed output pipe with 141. With ANTECEDENT_TRACEBACK=1 the traceback is printed.
    """
    try:
        yield
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        # Or Python's last flush would fail as well.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except Exception as error:
        message = error_message(error)
        if message is None or os.environ.get("ANTECEDENT_TRACEBACK") == "1":
            raise
        rank = os.environ.get("RANK", "0")
        origin = f"[rank {rank}] " if rank != "0" else ""
        print(f"error: {origin}{message}", file=sys.stderr)
        sys.exit(2)


def error_message(error: Exception) -> str | None:
    """Return one printable line for an error that a user can cause, None for other errors."""
    user_errors = (
        UserError, OSError, FloatingPointError, MemoryError, ModuleNotFoundError, OmegaConfBaseException, HydraException
    )  # fmt: skip
    message = str(error) or type(error).__name__
    if isinstance(error, RuntimeError) and re.search(r"out of memory|can't allocate memory", message):
        message = f"out of memory; lower tokens_per_batch or the settings of model.*: {message}"
    elif not isinstance(error, user_errors):
        return None
    elif isinstance(error, OSError) and error.strerror and error.filename:
        message = f"{error.filename}: {error.strerror}"
    return printable(" ".join(message.split()))
