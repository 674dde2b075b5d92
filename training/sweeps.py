"""Several runs of one command line, -m: checked before the first of them begins, and sent where they are to run."""

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import which

from training.settings import TrainSettings, printable, typed_train

_FOLDER = (Path(__file__).parent.parent / "configs").absolute()


def of_sweep(arguments: list[str]) -> list[str]:
    """Return the arguments with the folder of a sweep where `out` is: what Hydra and a cluster write lies there too."""
    given = dict(argument.lstrip("+").split("=", 1) for argument in arguments if "=" in argument)
    if given.get("out", "null") == "null" or "hydra.sweep.dir" in given:
        return arguments
    return [*arguments, f"hydra.sweep.dir={given['out']}"]


def check_sweep(arguments: list[str]) -> list[tuple[TrainSettings, list[str]]]:
    """Refuse a sweep that asks for a run which cannot be, before anything of it is made or sent to a cluster.

    Args:
        arguments: of the command line, as Hydra takes them.

    Returns:
        Of each run its settings and what of them the command line says; of one run alone nothing.

    Raises:
        ValueError: in one line, the first such run's number and what is wrong with its settings.
        HydraException: it cannot be composed.

    """
    if not {"-m", "--multirun"} & set(arguments):
        return []
    from hydra import compose, initialize_config_dir
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
    from hydra.core.override_parser.overrides_parser import OverridesParser

    if "hydra/launcher=submitit_slurm" in arguments and which("srun") is None:
        raise ValueError("hydra/launcher=submitit_slurm needs a machine that can send jobs to SLURM: here is no srun")
    asked = OverridesParser.create().parse_overrides([one for one in arguments if not one.startswith("-")])
    with initialize_config_dir(str(_FOLDER), version_base="1.3"):
        found = []
        for number, own in enumerate(BasicSweeper.split_arguments(asked, None)[0]):
            try:
                found.append((typed_train(compose("train", own)), list(own)))
            except ValueError as error:
                raise ValueError(f"[{number}] {error}") from None
    return found


@contextmanager
def jobs() -> Iterator[None]:
    """Let jobs that submitit starts find the program, and say in one line, with status 2, that one did not end well.

    That is the last line of what the job has said: of a run that was refused, why.
    """
    before = os.environ.get("PYTHONPATH")
    if any("submitit" in argument for argument in sys.argv):  # whose jobs begin elsewhere
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(_FOLDER.parent), before)))
    try:
        yield
    except RuntimeError as error:
        if type(error).__module__.partition(".")[0] != "submitit":
            raise
        said = [part for part in re.split("^-{20,}$", str(error), flags=re.MULTILINE) if part.strip()]
        last = said[:2][-1].strip().splitlines()[-1]  # between two such lines, or after one, is what the job has said
        print(f"error: {printable(last.removeprefix('error: '))}", file=sys.stderr)
        sys.exit(2)
    finally:
        if before is None:
            os.environ.pop("PYTHONPATH", None)
        else:
            os.environ["PYTHONPATH"] = before
