"""The probe/ folder of a run or an external model: locked, read, and written as a whole."""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path

from probe.config import ProbeConfig
from probe.opened_model import OpenedModel
from probe.results import SCHEMA_VERSION, ProbeResults
from settings.command_line import program_command
from settings.errors import UserError, damaged_file_error
from settings.files import lock
from training.metrics import Metrics, load_metrics
from training.run_dir import RUNS, first_unwritable

PAGE = "report.html"
EXTERNAL_RESULTS = Path("probes")  # results about external models, next to runs/
MAX_FOLDER_NAME = 120  # bytes


def folder_name(text: str) -> str:
    """Return the name of a folder for any text: the end of its letters and digits in any script, joined by "_"."""
    name = re.sub(r"\W+", "_", text).strip("_").encode()[-MAX_FOLDER_NAME:]
    return name.decode(errors="ignore") or "model"


@contextmanager
def results_folder(root: Path, folder: Path, log: Callable[[str], None] = print) -> Iterator[Path | None]:
    """Yield the locked `folder` for results in `root`; None, after a note, if a run of another user cannot be written.

    Raises BlockingIOError if another process writes there.
    """
    root.mkdir(parents=True, exist_ok=True)
    blocked = first_unwritable(root)  # a run of another user can be read, not written
    if blocked is not None:
        log(f"note: {blocked} cannot be written, so the results are only printed")
        yield None
        return
    folder.mkdir(parents=True, exist_ok=True)
    with closing(lock(folder)):
        yield folder


def read_results(opened: OpenedModel) -> tuple[ProbeResults | None, list[str]]:
    """Return the probe.json of this checkpoint, and a note for the page if there is none; UserError if damaged."""
    path = opened.results_folder / "probe.json"
    command = eval_command(opened)
    if not path.exists():
        return None, [f"The heads have not been tested yet: {command}"]
    with damaged_file_error(path, f"write it again: {command}"):
        content = json.loads(path.read_text())
        if content["schema_version"] == SCHEMA_VERSION:
            results = ProbeResults.from_json(content)
            model = results.model
            tested = (model.step, results.data.get("fingerprint"), model.shape.get("sha256"))
            if tested == (opened.step, opened.data_fingerprint, opened.shape.get("sha256")):
                return results, []
    problem = "The last probe tested another checkpoint or is of another version"
    return None, [f"{problem}; probe again: {command}"]


def read_metrics(opened: OpenedModel) -> Metrics:
    """Return the records of a run's training, none of an external model; UserError names a damaged file."""
    path = opened.folder / "metrics.jsonl"
    if not path.exists():
        return Metrics([], [], [])
    with damaged_file_error(path, "delete it"):
        return load_metrics(opened.folder)


def check_results_folder(folder: Path) -> None:
    """Raise UserError if `folder` is one of a run or a model, whose results would be lost."""
    if (folder / "config.json").exists() or folder.resolve() == RUNS.resolve():
        raise UserError(f"out={folder}: holds a run or a model; choose another folder")


def training_command(opened: OpenedModel) -> list[str]:
    """Return the command that trained a run; none for another model, or one whose arguments are unknown."""
    return [] if opened.arguments is None else [program_command("train", *opened.arguments)]


def eval_command(opened: OpenedModel, results: ProbeResults | None = None, *arguments: str) -> str:
    """Return the command that makes the results of a model, with further `arguments`; None: that tests it."""
    settings = [f"run={opened.source}"]
    if opened.checkpoint != "best":
        settings.append(f"checkpoint={opened.step}")
    if opened.is_external:
        settings = [f"model={opened.source}", f"out={opened.folder}"]
    if opened.is_external and opened.has_stories:
        settings.append("items=stories")
    if tokenizer := opened.shape.get("tokenizer"):
        settings.append(f"tokenizer={tokenizer}")
    settings += arguments

    # The question, and settings of the probe that are not the default
    if results:
        if path := results.data.get("path"):
            settings.append(f"path={path}")
        own_file = results.findings[0].file if results.findings else None
        if own_file and not (opened.settings and own_file == str(opened.settings.run.items)):  # else asked anyway
            settings.append(f"items={own_file}")
        for name, value in asdict(results.settings).items():
            if value != getattr(ProbeConfig(), name):
                settings.append(f"probe.{name}={value}")
    return program_command("eval", *settings)
