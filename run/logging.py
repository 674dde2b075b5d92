"""What a run says while it goes: metrics.jsonl (the exact record), TensorBoard, and lines for a person."""

from __future__ import annotations

import json
import re
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from run.checkpoint import write_atomically

if TYPE_CHECKING:
    import numpy as np


_BELOW_FLOOR = 3  # standard errors; no luck takes a loss so far below what is possible
_NO_CURVE = {"layer", "head", "whole", "seconds"}  # for metrics.jsonl alone: a line through them says nothing

PROBE_SCORES = ("Sel@1", "F4", "T")  # of each question, as `probe_scores` is to name them
_OF_PROBE = ".probe"  # how the event file ends that eval.py writes beside training's


class Lines:
    """A file of one JSON object a line, each of a step, oldest first."""

    def __init__(self, path: Path, resumed_step: int | None) -> None:
        """Open it to go on; lines after `resumed_step` are dropped, for they will be written again."""
        if resumed_step is not None and path.exists():
            lines = path.read_text().splitlines(keepends=True)
            kept = [line for line in lines if _step_of(line) <= resumed_step]
            write_atomically(path, "".join(kept).encode())
        self._stream = path.open("a", buffering=1)
        self.is_empty = self._stream.tell() == 0

    def write(self, step: int, values: dict[str, Any]) -> None:
        """Add one object."""
        self._stream.write(json.dumps({"step": step, **values}) + "\n")

    def close(self) -> None:
        """Close the file."""
        self._stream.close()


class Recorder:
    """Writes every number of a run once, to metrics.jsonl and to TensorBoard."""

    def __init__(self, run: Path, resumed_step: int | None) -> None:
        """Open the run's records; those after `resumed_step` are dropped, for they will be written again."""
        from torch.utils.tensorboard import SummaryWriter  # not at import: it is slow and not every door needs it

        self._run, self._resumed_step = run, resumed_step
        self._lines = Lines(run / "metrics.jsonl", resumed_step)
        self._beside: dict[str, Lines] = {}
        # A fresh run too says that it starts: TensorBoard's slow loader takes the first start that it sees for none.
        purge = 0 if resumed_step is None else resumed_step + 1
        self._tensorboard = SummaryWriter(str(run / "tb"), purge_step=purge)

    def record(self, step: int, split: str, values: dict[str, Any]) -> None:
        """Write one object to metrics.jsonl and each of its numbers to TensorBoard as <name>/<split>.

        A nested dict becomes <outer>/<inner>, so that its curves stand together. What is no number has no curve.
        """
        self._lines.write(step, {"split": split, **values})
        for name, value in values.items():
            curves = value if isinstance(value, dict) else {split: value}
            for inner, number in curves.items():
                if isinstance(number, int | float) and not {name, inner} & _NO_CURVE:
                    self._tensorboard.add_scalar(f"{name}/{inner}", number, step)

    def beside(self, file: str, header: dict[str, Any]) -> None:
        """Open another record of the run, `file`, that begins with `header` as of step -1."""
        lines = self._beside[file] = Lines(self._run / file, self._resumed_step)
        if lines.is_empty:
            lines.write(-1, header)

    def keep(self, file: str, step: int, values: dict[str, Any]) -> None:
        """Write one object to a record opened by `beside`."""
        self._beside[file].write(step, values)

    def settings(self, values: dict[str, Any], measures: list[str]) -> None:
        """Enter the run in TensorBoard's HParams table, as under way.

        Args:
            values: settings; what is neither number nor text is written as text.
            measures: tags of the run's own scalars, some of them yet to come; the last value of each stands there.

        """
        from torch.utils.tensorboard.summary import hparams

        experiment, started, _ = hparams(_plain(values), dict.fromkeys(measures, 0.0))
        for summary in (experiment, started):
            self._tensorboard._get_file_writer().add_summary(summary, 0)  # add_hparams would make a second run of it

    def ended(self, step: int) -> None:
        """Mark the run as ended in the HParams table."""
        from torch.utils.tensorboard.summary import hparams

        self._tensorboard._get_file_writer().add_summary(hparams({}, {})[-1], step)

    def overlay(self, charts: dict[str, dict[str, list[str]]]) -> None:
        """Lay several curves over each other in TensorBoard's custom scalars: tags by chart title, by category."""
        layout = {
            category: {title: ["Multiline", [f"^{re.escape(tag)}$" for tag in tags]] for title, tags in some.items()}
            for category, some in charts.items()
        }
        self._tensorboard.add_custom_scalars(layout)

    def text(self, step: int, tag: str, text: str) -> None:
        """Show `text` in TensorBoard, as it is: fenced, so that none of it becomes markup."""
        indented = "\n".join(f"    {line}" for line in text.splitlines())
        self._tensorboard.add_text(tag, indented, step)

    def image(self, step: int, tag: str, pixels: np.ndarray) -> None:
        """Show `pixels` [height, width, 3] uint8 in TensorBoard."""
        self._tensorboard.add_image(tag, pixels, step, dataformats="HWC")

    def flush(self) -> None:
        """Bring everything said so far to the disk."""
        self._tensorboard.flush()

    def close(self) -> None:
        """Flush and close."""
        self._tensorboard.close()
        for lines in (self._lines, *self._beside.values()):
            lines.close()


def probe_scores(step: int, scores: dict[str, float]) -> tuple[str, bytes]:
    """Return what a probe has measured as scalars probe/<name>: an event file's name and content, to stand in tb/.

    Training's own event files are left as they are.

    Args:
        step: of the checkpoint that was probed.
        scores: by name, as in "Sel@1 V at S1".

    """
    from torch.utils.tensorboard import SummaryWriter

    with tempfile.TemporaryDirectory() as beside:
        with SummaryWriter(beside, filename_suffix=_OF_PROBE) as writer:
            for name, value in scores.items():
                writer.add_scalar(f"probe/{name}", value, step)
        ((name, content),) = _content(Path(beside)).items()
    return name, content


def earlier_scores(run: Path) -> list[str]:
    """Return the names of the event files that earlier probes have put into a run's tb/."""
    return sorted(path.name for path in (run / "tb").glob(f"events.out.tfevents.*{_OF_PROBE}"))


def hparams_files(runs: dict[str, tuple[dict[str, Any], dict[str, float]]]) -> dict[str, bytes]:
    """Return runs for TensorBoard's HParams table: event files by their paths, in one folder for each run.

    Args:
        runs: settings (what is neither number, text nor bool is written as text) and measured values, by run.

    """
    from torch.utils.tensorboard import SummaryWriter
    from torch.utils.tensorboard.summary import hparams

    with tempfile.TemporaryDirectory() as beside:
        for name, (settings, values) in runs.items():
            with SummaryWriter(str(Path(beside) / name)) as writer:  # add_hparams would leave a second file beside it
                for summary in hparams(_plain(settings), values):
                    writer._get_file_writer().add_summary(summary)
                for measure, value in values.items():
                    writer.add_scalar(measure, value)
        return _content(Path(beside))


def _content(folder: Path) -> dict[str, bytes]:
    """Return every file in `folder`, by its path there."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


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
        names: what the small probe watches, as in "V_S1".
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
    head = {f"{name}: best head and luck": [f"{name}/sel1", f"{name}/luck"] for name in names}
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
        questions: the names of the probe's questions by that of their curves, as in {"V_S1": "V at S1"}.
        floor: whether the least possible loss is known.

    """
    few = len(questions) <= _FEW
    curves = [f"{curve}/{name}" for curve in questions for name in (("sel1", "f4", "dd", "rho") if few else ("sel1",))]
    scores = [
        f"probe/{name} {question}" for question in questions.values() for name in PROBE_SCORES[: None if few else 1]
    ]
    return ["loss/validation", *(["gap/validation"] if floor else ["bits_per_byte/validation"]), *curves, *scores]


def gap_lines(measured: dict[str, Any], *, cheats: bool = False) -> list[str]:
    """Return what to say of the gap to the floor: nothing where the floor is not known.

    `cheats`: the model sees what it must predict, so it is no wonder to find it below.
    """
    note = "note: model.mask=none lets each word see the one it must predict: this model cheats, it cannot write"
    if "gap" not in measured:
        return [note] if cheats else []
    error, gaps = measured["gap_error"], {"all": measured["gap"]} | measured.get("gap_by_class", {})
    seen = "  ".join(f"{name} {gap:.3f}" for name, gap in gaps.items())
    lines = [f"gap     to the floor, nats/token: {seen} (standard error of all {error:.3f})"]
    # Only the whole is bounded: who expects pronouns too often gains on them what other words then cost.
    if cheats:
        lines.append(note)
    elif measured["gap"] < -_BELOW_FLOOR * error:
        lines.append(f"warning: below the floor by more than {_BELOW_FLOOR} standard errors: a bug or a leak")
    return lines


def read_records(run: Path) -> list[dict[str, Any]]:
    """Return what a run has recorded, oldest first; ValueError in one line where it is damaged.

    A last line that was cut off is left out: the run was killed there, or is still writing it.
    """
    path = run / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    if lines and not lines[-1].endswith("\n"):
        lines.pop()
    if not all(_step_of(line) < float("inf") for line in lines):
        raise ValueError(f"{path} is damaged")
    return [json.loads(line) for line in lines]


def _step_of(line: str) -> float:
    """Return the step of a line, or infinity for one that was cut off or damaged."""
    try:
        step = json.loads(line)["step"] if line.endswith("\n") else None
    except (ValueError, KeyError, TypeError, RecursionError):
        step = None
    return step if isinstance(step, int) else float("inf")


class Progress:
    """One line that moves, on a terminal only: a log gets none of it."""

    def __init__(self, max_steps: int, first_step: int, label: str = "") -> None:
        """Start counting at `first_step`; `label` stands before every line that stays."""
        self._label = label
        self._max_steps, self._first_step, self._began = max_steps, first_step, time.monotonic()
        self._shown, self._visible = 0.0, sys.stderr.isatty()

    def show(self, step: int) -> None:
        """Redraw the line, at most ten times a second."""
        now = time.monotonic()
        if not self._visible or now - self._shown < 0.1:
            return
        self._shown = now
        done = step - self._first_step
        left = (now - self._began) / max(1, done) * (self._max_steps - step)
        filled = 30 * step // self._max_steps
        bar = "#" * filled + "." * (30 - filled)
        sys.stderr.write(f"\r[{bar}] step {step}/{self._max_steps}  about {left:.0f} s left \033[K")
        sys.stderr.flush()

    def say(self, line: str) -> None:
        """Print a line that stays."""
        if self._visible:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()
        print(f"{self._label}{line}", flush=True)
