"""The probe/ folder of a run or an external model: locked, read, and written as a whole."""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from probe.opened_model import OpenedModel
from probe.results import SCHEMA_VERSION, ProbeResults
from report.content import eval_command
from report.live import MAX_WEIGHTS_BY_DEFAULT
from settings.errors import damaged_file_error
from settings.files import lock
from training.metrics import Metrics, load_metrics
from training.run_dir import first_unwritable
from training.weight_history import HISTORY_FILE, WeightHistory, kept_weights, load_weight_history

PAGE = "report.html"
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


def read_history(opened: OpenedModel) -> WeightHistory | None:
    """Return the weights of a run during training; None if it has none, or is too large to have them in the page."""
    recorded = load_weight_history(opened.folder / HISTORY_FILE, opened.n_parameters)
    model = opened.transformer
    if recorded is not None or model is None or opened.n_parameters > MAX_WEIGHTS_BY_DEFAULT:
        return recorded
    names = [name for name, _ in model.named_parameters()]
    return kept_weights(opened.folder / "checkpoints", names, model.config.d_model, opened.step)
