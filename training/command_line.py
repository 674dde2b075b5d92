"""What a door is told on its command line: checked before Hydra sees it, and written so that Hydra takes it."""

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path

from omegaconf.errors import OmegaConfBaseException

from data.config import SCHEMAS
from training.settings import ENTRIES, MODEL_NAME, hint, hung_up, one_line_errors
from training.sweeps import of_sweep

_FOLDER = Path(__file__).parent.parent / "configs"


_QUOTED = re.compile("'[^']*'|\"[^\"]*\"")  # by the user, for Hydra


# What Hydra takes besides settings, by what each asks for; of the first four, one at a time.
_FLAGS = {
    "run": ("--run", "-r"),
    "multirun": ("-m", "--multirun"),
    "cfg": ("--cfg", "-c"),
    "info": ("--info", "-i"),
    "resolve": ("--resolve",),
    "help": ("-h", "--help", "--hydra-help", "--version"),
}


_FLAG_VALUES = {
    "cfg": ("job", "hydra", "all"),
    "info": ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath"),
}


_FLAGS_WITH_VALUE = tuple(flag for kind in _FLAG_VALUES for flag in _FLAGS[kind])


# Of Hydra's own settings those of a sweep. With the others, a launcher's _target_ among them, it can be told to write,
# or to call, what it likes.
_OF_HYDRA = re.compile(
    r"hydra/launcher|hydra\.launcher\.[a-z]\w*|hydra\.sweep\.dir|hydra\.sweeper\.max_batch_size", re.ASCII
)


_WORD = re.compile(r" *([\w.+/-]*|'[\w.+/ -]*'|\"[\w.+/ -]*\") *", re.ASCII)  # a value that is no free text


_OF_SWEEPS = re.compile(r"[\w.+/,()*:=\[\]'\" -]*", re.ASCII)  # and several: 1,2 or range(1,6)


_LONGEST = 1000  # characters of a value that is no free text


_MOST_RUNS = 10_000  # of a sweep, which Hydra lists before the first begins


_FREE_TEXT = {
    *"hydra.sweep.dir out run runs compare text path sample_prompt cache_dir".split(),
    *"data.path data.validation_path data.tokenizer_path data.column data.files".split(),
    *"data.revision data.split data.validation_split".split(),
}


def _free_text(entry: str) -> set[str]:
    """Return the settings of a door that may hold any text; of train.py's, model is a choice."""
    return _FREE_TEXT | ({"model"} if entry == "eval" else set())


def check_overrides(arguments: list[str], entry: str) -> None:
    """Raise ValueError, with the nearest name that exists, for a setting or a choice that does not.

    Done by ourselves because it needs neither Hydra nor torch: a typo is answered at once. What Hydra's grammar
    offers beyond NAME=VALUE is left to Hydra.
    """
    own, schemas = ENTRIES[entry]
    known = {field.name for field in fields(own)}
    known |= {f"{group}.{field.name}" for group, some in schemas.items() for schema in some for field in fields(schema)}
    of_stories = {f"data.{field.name}" for field in fields(SCHEMAS["stories"])}
    for argument in arguments:
        argument.encode()  # what is no text raises ValueError here
    flags, settings = _parted(arguments)
    _check_flags(flags)
    several = any(flag in _FLAGS["multirun"] for flag, _ in flags)
    if several and entry != "train":
        raise ValueError(f"{entry}.py has no sweeps: runs=DIR and compare=DIR read several runs")
    names = {setting.partition("=")[0] for setting in settings}
    for setting in settings:
        name, equals, value = re.sub(r"^\+{1,2}", "", setting).partition("=")
        if not equals or not name or setting.startswith("~"):
            raise ValueError(f"{setting}: settings are written NAME=VALUE")
        of_hydra = name.split("/")[0].split(".")[0] == "hydra"
        if of_hydra and not _OF_HYDRA.fullmatch(name):
            raise ValueError(
                f"{name}: of Hydra's own settings only hydra/launcher, hydra.launcher.NAME, hydra.sweep.dir and "
                "hydra.sweeper.max_batch_size can be set here"
            )
        if not of_hydra and name not in (*known, *schemas):
            raise ValueError(f"{name} is not a setting{hint(name, [*known, *schemas])}")
        if name in _free_text(entry):
            _check_text(name, value)
        else:
            _check_value(name, value, several=several and not of_hydra)  # a sweep has one launcher
        if name.startswith("data.") and name in known - of_stories and not names & {"data", "experiment"}:
            if "resume" in names:
                raise ValueError(f"{name} alone is not enough: give data= too, and all that the run began with of it")
            raise ValueError(f"{name} is not a setting of the stories: choose data=text or another")
        if name == "experiment" and "," in value and "lab/" in value:
            raise ValueError(f"{setting}: an experiment of the lab is a sweep itself: one at a time")
        for choice in value.split(",") if name in schemas and "(" not in value else ():
            choices = _choices(name)
            if choice.strip() not in choices:  # null too: Hydra cannot unset a group
                raise ValueError(f"{name}={choice} is not one of {', '.join(choices)}{hint(choice, choices)}")


def _parted(arguments: list[str]) -> tuple[list[tuple[str, str | None]], list[str]]:
    """Return the flags, each with the value that it takes, and the other arguments."""
    flags: list[tuple[str, str | None]] = []
    settings: list[str] = []
    rest = iter(arguments)
    for argument in rest:
        if argument.startswith("-"):
            flags.append((argument, next(rest, None) if argument in _FLAGS_WITH_VALUE else None))
        else:
            settings.append(argument)
    return flags, settings


def _check_flags(flags: list[tuple[str, str | None]]) -> None:
    """Raise ValueError for a flag, or flags together, that Hydra does not have, which says it in many lines."""
    kinds = {flag: kind for kind, spellings in _FLAGS.items() for flag in spellings}
    for flag, value in flags:
        if flag not in kinds:
            raise ValueError(f"{flag} is not a flag{hint(flag, list(kinds))}")
        choices = _FLAG_VALUES.get(kinds[flag])
        if choices and value not in choices:
            raise ValueError(f"{flag} needs a value, one of {', '.join(choices)}")
    given = {kinds[flag] for flag, _ in flags}
    alone = [_FLAGS[kind][0] for kind in ("run", "multirun", "cfg", "info") if kind in given]
    if len(alone) > 1:
        raise ValueError(f"{alone[0]} and {alone[1]} cannot go together")
    if "resolve" in given and "cfg" not in given:
        raise ValueError("--resolve says how --cfg shows settings: it needs --cfg job")


def _check_text(name: str, value: str) -> None:
    """Raise ValueError for a path or a name that steers a terminal."""
    if name not in ("text", "sample_prompt") and re.search(r"[\x00-\x1f\x7f-\x9f]", value):
        raise ValueError(f"{name}={value}: a control character is in it")


def _check_value(name: str, value: str, *, several: bool) -> None:
    """Raise ValueError for a value that nothing here can have: what is no free text is one word or number."""
    if len(value) > _LONGEST:
        raise ValueError(f"{name}: a value of {len(value):,} characters is too long")
    if several and _OF_SWEEPS.fullmatch(value):
        _check_ranges(name, value)
        return
    if re.fullmatch(r"[\w.+/-]+(,[\w.+/-]+)+", value):
        raise ValueError(f"{name}={value}: several values are several runs, asked for by -m")
    if not _WORD.fullmatch(value):
        raise ValueError(f"{name}={value}: a value here is one word or number")
    if name == "hydra.launcher.n_jobs" and not re.fullmatch(r"-?[1-9]\d*", value):
        raise ValueError(f"{name}={value} is not a number of runs at a time")
    if name == "hydra.sweeper.max_batch_size" and not re.fullmatch(r"[1-9]\d*", value):
        raise ValueError(f"{name}={value} is not a number of runs at a time")


def _check_ranges(name: str, value: str) -> None:
    """Raise ValueError for a range of more runs than can be meant: Hydra lists all of them before the first begins."""
    for inside in re.findall(r"\brange *\(([^)]*)", value):
        try:
            first, end, step = [*map(float, inside.split(",")), 1.0][:3]
            n_runs = (end - first) / step
        except (ValueError, ZeroDivisionError):
            raise ValueError(f"{name}={value}: write range(FIRST,END) or range(FIRST,END,STEP)") from None
        if not abs(n_runs) <= _MOST_RUNS:
            raise ValueError(f"{name}={value} asks for more than {_MOST_RUNS:,} runs")


def _choices(group: str) -> list[str]:
    """Return what can be chosen of a group, files of a folder as folder/name; what begins with _ is for other files."""
    folder = _FOLDER / group
    files = [path.relative_to(folder) for path in folder.rglob("*.yaml") if not path.name.startswith("_")]
    return sorted(path.with_suffix("").as_posix() for path in files)


def flags_first(arguments: list[str]) -> list[str]:
    """Return the arguments with flags, and the values that they take, in front: Hydra stops at the first setting."""
    flags: list[str] = []
    settings: list[str] = []
    for argument in arguments:
        takes = flags and flags[-1] in _FLAGS_WITH_VALUE
        (flags if takes or argument.startswith("-") else settings).append(argument)
    return [*flags, *settings]


def quoted(argument: str, entry: str = "train") -> str:
    """Write NAME=VALUE of a door so that Hydra takes free text as it stands, whatever commas or signs are in it."""
    name, equals, value = argument.partition("=")
    if entry == "eval" and name == "model" and equals:
        # There is a folder of choices of that name, train.py's: Hydra takes a value for it in this form alone.
        return f"{name}={{{MODEL_NAME}:{quoted(f'run={value}').removeprefix('run=')}}}"
    if not equals or name.lstrip("+") not in _free_text(entry) or value == "null" or _QUOTED.fullmatch(value):
        return argument
    # Backslashes count only before a quote, before an interpolation and at the end; there each is written twice.
    escaped = re.sub(r"(\\*)('|\$\{|$)", lambda m: m[1] * 2 + ("\\" if m[2] else "") + m[2], value)
    return f"{name}='{escaped}'"


@contextmanager
def door(entry: str, *kinds: type[Exception]) -> Iterator[None]:
    """Run a Hydra entry point so that a mistake on its command line, or one of `kinds`, is one line and status 2.

    So is a place where Hydra can make no folder for a sweep.
    """
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra's own account of an error is many lines and exit status 1
    with one_line_errors():
        check_overrides(sys.argv[1:], entry)
    arguments = flags_first(sys.argv[1:])
    sys.argv[1:] = [quoted(one, entry) for one in (of_sweep(arguments) if entry == "train" else arguments)]
    with hung_up(), one_line_errors(*kinds, OmegaConfBaseException, OSError):
        yield
