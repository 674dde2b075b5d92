"""Event files of eval.py (replaced by report/tensorboard.py)."""

import tempfile
from pathlib import Path
from typing import Any

from torch.utils.tensorboard import SummaryWriter

PROBE_SCORES = ("Sel@1", "F4", "T")


def probe_scores(run: Path, step: int, scores: dict[str, float]) -> tuple[str, bytes]:
    """Returns an event file with the scores of a probe: name and content."""
    with tempfile.TemporaryDirectory() as folder:
        with SummaryWriter(folder, filename_suffix=".probe") as writer:
            for name, value in scores.items():
                writer.add_scalar(f"probe/{name}", value, step)
        [path] = Path(folder).iterdir()
        return path.name, path.read_bytes()


def earlier_scores(run: Path) -> list[str]:
    """Returns the names of the event files of earlier probes."""
    return sorted(path.name for path in (run / "tb").glob("*.probe"))


def hparams_files(runs: dict[str, tuple[dict[str, Any], dict[str, float]]]) -> dict[str, bytes]:
    """Returns event files for TensorBoard's table of hyperparameters."""
    with tempfile.TemporaryDirectory() as folder:
        for name, (settings, values) in runs.items():
            with SummaryWriter(str(Path(folder) / name)) as writer:
                plain = {
                    key: value if isinstance(value, int | float | str) else str(value)
                    for key, value in settings.items()
                }
                writer.add_hparams(plain, values, run_name=".")
        return {str(p.relative_to(folder)): p.read_bytes() for p in Path(folder).rglob("*") if p.is_file()}
