"""A model that a reader has trained in a page and saved: one .safetensors, as a run."""

import json
from hashlib import sha256
from pathlib import Path

import numpy as np
import torch

from settings.errors import UserError
from settings.files import write_files
from training.checkpoint import save_checkpoint
from training.run_dir import RUNS, locked_run


def run_of(path: Path) -> Path:
    """Return the run in runs/ that has the name and the model of a file that a page has saved; it is written once.

    UserError if the file is none, or if another model has the name.
    """
    content = path.read_bytes()
    try:
        begin = 8 + int.from_bytes(content[:8], "little")
        header = json.loads(content[8:begin])
        saved = json.loads(header.pop("__metadata__")["antecedent"])
        config, step, tokenizer = saved["config"], int(saved["step"]), str(saved["tokenizer"])
        weights = {}
        for name, entry in header.items():
            first, end = entry["data_offsets"]
            numbers = np.frombuffer(content[begin + first : begin + end], dtype="<f4")
            weights[name] = torch.from_numpy(numbers.reshape(entry["shape"]).copy())
        note = f"It was trained in a page, on the first {saved['n_stories']:,} of its stories."
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{path}: is not a model that a page of eval.py has saved") from None

    run = RUNS / path.stem
    origin = {"saved_sha256": sha256(content).hexdigest(), "began": [note]}
    environment = run / "environment.json"
    if (run / "checkpoints").is_dir():
        known = json.loads(environment.read_text()) if environment.exists() else {}
        if known.get("saved_sha256") != origin["saved_sha256"]:
            raise UserError(f"{path}: {run} is another model; rename the file")
        return run
    with locked_run(str(run)):
        write_files(
            run,
            {
                "config.json": json.dumps(config, indent=2),
                "tokenizer.json": tokenizer,
                environment.name: json.dumps(origin),
            },
        )
        save_checkpoint(run / "checkpoints", {"model": weights, "step": step, "config": config}, best=True, keep=1)
    return run
