"""A model that a reader has trained in a page and saved: one .safetensors, as a run."""

import json
from hashlib import sha256
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer

from model.transformer import Transformer, load_weights
from settings.errors import UserError, damaged_file_error, one_line
from settings.files import write_files
from settings.train import saved_settings
from training.checkpoint import MANIFEST, save_checkpoint
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

        # What would fail when it is opened fails before anything is written.
        vocabulary = Tokenizer.from_str(tokenizer).get_vocab_size()
        load_weights(Transformer(saved_settings(config).model, vocabulary, seed=0), weights)
    except Exception as error:  # a damaged file raises anything
        raise UserError(f"{path}: is not a model that a page of eval.py has saved ({one_line(error)})") from None

    run = RUNS / path.stem
    origin = {"saved_sha256": sha256(content).hexdigest(), "began": [note]}
    environment = run / "environment.json"
    if (run / "checkpoints" / MANIFEST).exists():
        with damaged_file_error(environment, f"delete {run}"):
            known = json.loads(environment.read_text())
        if known.get("saved_sha256") != origin["saved_sha256"]:
            raise UserError(f"{path}: {run} is another model; rename the file")
        return run
    files = {"config.json": json.dumps(config, indent=2), "tokenizer.json": tokenizer}
    with locked_run(str(run)):
        write_files(run, files | {environment.name: json.dumps(origin)})
        state = {"model": weights, "step": step, "config": config}
        save_checkpoint(run / "checkpoints", state, best=True, keep=1)
    return run
