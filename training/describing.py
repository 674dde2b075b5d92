"""What a run's directory says of it: config.json, environment.json, tokenizer.json, and resumes.jsonl."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from training.settings import TrainSettings, changed_settings, flat, saved_settings

if TYPE_CHECKING:
    from data.corpus import Corpus
    from training.device import Place


def described(settings: TrainSettings, corpus: Corpus) -> dict[str, Any]:
    """Return config.json of a run: its settings, and what the data make of them."""
    from hashlib import sha256

    tokenizer = sha256(tokenizer_file(corpus)).hexdigest()
    known = {"vocab_size": corpus.tokenizer.get_vocab_size(), "data_fingerprint": corpus.fingerprint}
    fresh = replace(settings, run=replace(settings.run, resume=False))
    config = asdict(fresh) | known | {"tokenizer_sha256": tokenizer}
    return json.loads(json.dumps(config, default=lambda choice: choice.value))


def tokenizer_file(corpus: Corpus) -> bytes:
    """Return the content of a run's tokenizer.json."""
    return corpus.tokenizer.to_str(pretty=True).encode()


def describe(path: Path, config: dict[str, Any], corpus: Corpus, place: Place, processes: int = 1) -> None:
    """Write into a new run's directory what is needed to read it; settings first, with which it can go on."""
    import torch

    from training.checkpoint import write_atomically
    from training.run_dir import environment, write_json

    write_json(path / "config.json", config)
    write_atomically(path / "tokenizer.json", tokenizer_file(corpus))
    write_json(path / "environment.json", environment(place.reason, torch.get_num_threads(), processes))


def describe_resume(
    path: Path, config: dict[str, Any], state: dict[str, Any], settings: TrainSettings, place: Place, processes: int = 1
) -> None:
    """Write down that a run goes on from `state`, and what is no longer as it was; say what may change its losses."""
    from datetime import UTC, datetime

    import torch

    from training.checkpoint import go_back, save_checkpoint
    from training.run_dir import add_resume, differences, environment, read_json, remove_unfinished_files, write_json

    step, folder = state["step"], path / "checkpoints"
    changes = changed_settings(flat(saved_settings(state["config"])), flat(settings))
    here = environment(place.reason, torch.get_num_threads(), processes)
    moved = differences(known_environment(path, here), here)
    remove_unfinished_files(path)
    go_back(folder, step)
    when = datetime.now(UTC).isoformat(timespec="seconds")
    add_resume(path, {"step": step, "time": when, "environment": moved, "settings": changes})
    if changes:  # a checkpoint always holds the settings that it is gone on with
        save_checkpoint(folder, state | {"config": config}, step, best=False, keep=settings.run.keep_checkpoints)
    if read_json(path / "config.json") != config:
        write_json(path / "config.json", config)
    said = [f"{name.removeprefix('packages.')} is {now}, not {before}" for name, (before, now) in moved.items()]
    if said:
        print(f"warning: losses may differ in their last bits: {'; '.join(said)}", file=sys.stderr)
    for name, (before, now) in changes.items():
        print(f"warning: from step {step} on {name} is {now}, not {before}", file=sys.stderr)


def mend_tokenizer(path: Path, corpus: Corpus) -> None:
    """Write a run's tokenizer.json anew where it is no longer what it was: nothing could read the run without it."""
    from training.checkpoint import write_atomically

    file, content = path / "tokenizer.json", tokenizer_file(corpus)
    if not file.is_file() or file.read_bytes() != content:
        write_atomically(file, content)
        print(f"warning: {file} was gone or damaged and has been written anew", file=sys.stderr)


def known_environment(path: Path, here: dict[str, Any]) -> dict[str, Any]:
    """Return what a run's environment.json says; where that is gone it is written anew, as of `here`."""
    from training.run_dir import read_json, write_json

    file = path / "environment.json"
    if not file.exists():
        write_json(file, here)
    known = read_json(file)
    if not isinstance(known, dict):
        raise ValueError(f"{file} is damaged: delete it to go on without what it says")
    return {"processes": 1} | known  # of a run that was made before there could be several
