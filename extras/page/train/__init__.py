"""Train here: the page of a model of the stories trains a new one in the reader's browser.

The page carries the scripts of the workers as one string: from a file, a worker can only be started from a blob.
"""

import json
from pathlib import Path

FOLDER = Path(__file__).parent
WORKER = ("trainer", "optimizer", "batches", "watch", "worker")


def training_script() -> str:
    """Return the constants and the controls of the page's script."""
    worker = "\n".join((FOLDER / f"{name}.js").read_text(encoding="utf-8") for name in WORKER)
    kernel = (FOLDER / "kernel.txt").read_text(encoding="utf-8").strip()
    controls = (FOLDER / "controls.js").read_text(encoding="utf-8")
    return f"const KERNEL = {json.dumps(kernel)};\nconst WORKER = {json.dumps(worker)};\n{controls}"
