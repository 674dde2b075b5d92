"""TensorBoard: the event file of a run while it trains, and what is written beside it once it has."""

from __future__ import annotations

import json
import os
import re
import socket
import tempfile
import time
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from training.checkpoint import Stream, write_atomically

if TYPE_CHECKING:
    import numpy as np


PROBE_SCORES = ("Sel@1", "F4", "T")  # of each question, as `probe_scores` is to name them


_OF_PROBE = ".probe"  # how the event file ends that eval.py writes beside training's


class EventFile:
    """What TensorBoard shows of a run, written by hand and at once.

    torch's SummaryWriter writes in a thread of its own, whose errors come up at a later call, nameless and after a
    traceback, and takes the file's name from the clock.
    """

    def __init__(self, folder: Path, *, purge: int | None = None, suffix: str = "") -> None:
        """Begin a file in `folder`, made if need be, that TensorBoard reads after all that are there.

        Args:
            folder: of the event files.
            purge: what the others hold of this step and later ones is hidden; None: nothing is.
            suffix: how the file's name ends.

        """
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.summary.writer.record_writer import RecordWriter

        folder.mkdir(parents=True, exist_ok=True)
        self._event, self._stream = Event, Stream(folder / _last_name(folder, suffix))
        self._records = RecordWriter(self._stream)
        self._add(file_version="brain.Event:2")
        if purge is not None:
            self._add(purge, session_log=SessionLog(status=SessionLog.START))
        self.flush()

    def _add(self, step: int = 0, **content: Any) -> None:
        self._records.write(self._event(wall_time=time.time(), step=step, **content).SerializeToString())

    def scalar(self, step: int, tag: str, value: float) -> None:
        """Add a point to a curve."""
        from torch.utils.tensorboard.summary import scalar

        self._add(step, summary=scalar(tag, value))

    def settings(self, values: dict[str, Any], measures: list[str]) -> None:
        """Enter the run in TensorBoard's HParams table, as under way.

        Args:
            values: settings; what is neither number nor text is written as text.
            measures: tags of the run's own scalars, some of them yet to come; the last value of each stands there.

        """
        from torch.utils.tensorboard.summary import hparams

        experiment, started, _ = hparams(_plain(values), dict.fromkeys(measures, 0.0))
        for summary in (experiment, started):
            self._add(summary=summary)

    def ended(self, step: int) -> None:
        """Mark the run as ended in the HParams table."""
        from torch.utils.tensorboard.summary import hparams

        self._add(step, summary=hparams({}, {})[-1])

    def overlay(self, charts: dict[str, dict[str, list[str]]]) -> None:
        """Lay several curves over each other in TensorBoard's custom scalars: tags by chart title, by category."""
        from torch.utils.tensorboard.summary import custom_scalars

        layout = {
            category: {title: ["Multiline", [f"^{re.escape(tag)}$" for tag in tags]] for title, tags in some.items()}
            for category, some in charts.items()
        }
        self._add(summary=custom_scalars(layout))

    def text(self, step: int, tag: str, text: str) -> None:
        """Show `text` in TensorBoard, as it is: fenced, so that none of it becomes markup."""
        from torch.utils.tensorboard.summary import text as summary

        indented = "\n".join(f"    {line}" for line in text.splitlines())
        self._add(step, summary=summary(tag, indented))

    def image(self, step: int, tag: str, pixels: np.ndarray) -> None:
        """Show `pixels` [height, width, 3] uint8 in TensorBoard."""
        from torch.utils.tensorboard.summary import image

        self._add(step, summary=image(tag, pixels, dataformats="HWC"))

    def flush(self) -> None:
        """Let who reads along see everything said so far."""
        self._stream.flush()

    def sync(self) -> None:
        """Bring everything said so far to the disk."""
        self._stream.sync()

    def close(self) -> None:
        """Flush and close."""
        self._stream.close()


def _last_name(folder: Path, suffix: str) -> str:
    """Return a name for an event file that sorts after all in `folder`, whatever the clock says.

    TensorBoard reads files in the order of their names, which begin with a time in seconds, and hides what a later one
    says is written again: on a clock that was set back, or within one second, it would hide the wrong ones.
    """
    names = (re.search(r"tfevents\.(\d+)", path.name) for path in folder.glob("*tfevents*"))
    latest = max((int(found[1]) for found in names if found), default=0)
    stamp = max(int(time.time()), latest + 1)
    return f"events.out.tfevents.{stamp:010d}.{socket.gethostname()}.{os.getpid()}{suffix}"


def probe_scores(run: Path, step: int, scores: dict[str, float]) -> tuple[str, bytes]:
    """Return what a probe has measured as scalars probe/<name> of the run itself: an event file for its tb/.

    Training's own event files are left as they are.

    Args:
        run: its directory.
        step: of the checkpoint that was probed.
        scores: by name, as in "Sel@1 number".

    Returns:
        The file's name, by which TensorBoard reads it after all that are there, and its content.

    """
    with tempfile.TemporaryDirectory() as beside:
        with closing(EventFile(Path(beside))) as events:
            for name, value in scores.items():
                events.scalar(step, f"probe/{name}", value)
        [content] = _content(Path(beside)).values()
    return _last_name(run / "tb", _OF_PROBE), content


def earlier_scores(run: Path) -> list[str]:
    """Return the names of the event files that earlier probes have put into a run's tb/."""
    return sorted(path.name for path in (run / "tb").glob(f"events.out.tfevents.*{_OF_PROBE}"))


def hparams_files(runs: dict[str, tuple[dict[str, Any], dict[str, float]]]) -> dict[str, bytes]:
    """Return runs for TensorBoard's HParams table: event files by their paths, in one folder for each run.

    Args:
        runs: settings (what is neither number, text nor bool is written as text) and measured values, by run.

    """
    with tempfile.TemporaryDirectory() as beside:
        for name, (settings, values) in runs.items():
            with closing(EventFile(Path(beside) / name)) as events:
                events.settings(settings, list(values))
                for measure, value in values.items():
                    events.scalar(0, measure, value)
                events.ended(0)
        return _content(Path(beside))


def _content(folder: Path) -> dict[str, bytes]:
    """Return every file in `folder`, by its path there."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def _plain(settings: dict[str, Any]) -> dict[str, int | float | str]:
    """Return settings as the HParams table takes them: it would show true as 1, and nothing for null."""
    numbers = {name: value for name, value in settings.items() if type(value) in (int, float)}
    texts = {name: str(value) for name, value in settings.items()}
    texts |= {name: json.dumps(value) for name, value in settings.items() if value is None or isinstance(value, bool)}
    return texts | numbers


def write_embedding(run: Path, rows: np.ndarray, about: dict[str, list[str]]) -> None:
    """Show vectors in TensorBoard's projector, with what can be said of each, in place of those shown before.

    Args:
        run: its directory.
        rows: [N, D], written to four digits: the picture shows no more, and a word takes half a kilobyte.
        about: columns of N entries, the first the label; any of them can colour the points.

    Raises:
        OSError: it cannot be written.

    """
    from google.protobuf import text_format
    from tensorboard.plugins.projector.projector_config_pb2 import ProjectorConfig

    folder, vectors, labels = run / "tb", "embedding.tsv", "embedding_labels.tsv"
    table = [list(about), *zip(*about.values(), strict=True)]
    lines = ["\t".join(re.sub(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]", "?", one) for one in row) for row in table]
    config = ProjectorConfig()
    config.embeddings.add(tensor_name="token_embedding", tensor_path=vectors, metadata_path=labels)
    numbers = "\n".join("\t".join(f"{value:.4g}" for value in row) for row in rows.tolist())
    write_atomically(folder / vectors, f"{numbers}\n".encode())
    write_atomically(folder / labels, ("\n".join(lines) + "\n").encode())
    write_atomically(folder / "projector_config.pbtxt", text_format.MessageToString(config).encode())


def charts(
    classes: Iterable[str], names: list[str], oracles: Iterable[str], *, floor: bool
) -> dict[str, dict[str, list[str]]]:
    """Return which curves TensorBoard lays over each other: tags by the chart's title, by category.

    Args:
        classes: of tokens, by which the loss is recorded.
        names: what the small probe watches, as in "number".
        oracles: whose payoff losses stand beside the model's where they are known.
        floor: whether the least possible loss is known.

    """
    floors = ["floor"] if floor else []
    gap = {"loss": ["loss/train", "loss/validation", *(f"{kind}/validation" for kind in floors)]}
    if classes:
        kinds = [f"{kind}_by_class" for kind in ("loss", *floors)]
        gap["loss by class and floor" if floor else "loss by class"] = [
            f"{kind}/{name}" for name in classes for kind in kinds
        ]
    if floor:
        gap["gap to the floor"] = ["gap/validation", *(f"gap_by_class/{name}" for name in classes)]
    if floor and names:
        gap["gap to the floor at every probe"] = [f"probe_gap/{name}" for name in classes]
    head = {f"{name}: best head and luck": [f"{name}/accuracy", f"{name}/luck"] for name in names}
    behaviour = {
        f"{name}: payoff loss and oracles": [f"{name}_payoff/{reader}" for reader in ("model", *oracles)]
        for name in names
    }
    behaviour |= {"rho": [f"{name}/rho" for name in names]} if names else {}
    return {title: some for title, some in (("head", head), ("behaviour", behaviour), ("loss gap", gap)) if some}


_FEW = 3  # questions; of more, one score each is enough for a table


def measures(questions: dict[str, str], *, floor: bool) -> list[str]:
    """Return the scalars that the HParams table shows of a run: its losses, then of each question its scores.

    Args:
        questions: the names of the probe's questions by that of their curves, as in {"number": "number"}.
        floor: whether the least possible loss is known.

    """
    few = len(questions) <= _FEW
    curves = [
        f"{curve}/{name}"
        for curve in questions
        for name in (("accuracy", "block_accuracy", "pronoun_contrast", "rho") if few else ("accuracy",))
    ]
    scores = [
        f"probe/{name} {question}" for question in questions.values() for name in PROBE_SCORES[: None if few else 1]
    ]
    return ["loss/validation", *(["gap/validation"] if floor else ["bits_per_byte/validation"]), *curves, *scores]
