"""Train here: the page of a model of the stories trains a new one in the reader's browser.

The page carries the scripts of the workers as one string: from a file, a worker can only be started from a blob.
"""

import json
import re
from pathlib import Path

FOLDER = Path(__file__).parent
_MADD = re.compile(r"\(f32x4\.relaxed_madd (\S+ \S+) (\S+ \S+) (\S+ \S+)\)")
WORKER = ("trainer", "optimizer", "batches", "watch", "worker")


def kernel_texts() -> list[str]:
    """Return kernel.wat, and the same with a product and a sum in place of relaxed_madd, for older browsers.

    kernel.txt has what wasmtime assembles from each, in base64.
    """
    text = (FOLDER / "kernel.wat").read_text(encoding="utf-8")
    return [text, _MADD.sub(r"(f32x4.add (f32x4.mul \1 \2) \3)", text)]


def training_script() -> str:
    """Return the constants and the controls of the page's script."""
    worker = "\n".join((FOLDER / f"{name}.js").read_text(encoding="utf-8") for name in WORKER)
    kernels = (FOLDER / "kernel.txt").read_text(encoding="utf-8").split()
    controls = (FOLDER / "controls.js").read_text(encoding="utf-8")
    return f"const KERNELS = {json.dumps(kernels)};\nconst WORKER = {json.dumps(worker)};\n{controls}"
