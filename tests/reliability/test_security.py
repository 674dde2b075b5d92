"""Files of a run are data: none of our code can execute them, and a checkpoint with code in it executes nothing."""

import hashlib
import io
import json
import os
import pickle
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from data.typed_json import to_json
from tests.program import run_program
from training.checkpoint import load_checkpoint, read_manifest


class Call:
    """Becomes a call of `function` when it is unpickled."""

    def __init__(self, function: Callable, *arguments: Any) -> None:
        self.function, self.arguments = function, arguments

    def __reduce__(self) -> tuple:
        return self.function, self.arguments


def torch_file(content: Any, **options: Any) -> bytes:
    stream = io.BytesIO()
    torch.save(content, stream, **options)
    return stream.getvalue()


def gadgets(mark: Path) -> dict[str, bytes]:
    """Returns files that create `mark` when they are unpickled."""
    system = Call(os.system, f"touch '{mark}'")
    nested: Any = system
    for _ in range(50):
        nested = [nested]
    return {
        "os.system": torch_file({"step": 1, "model": system}),
        "exec": torch_file(Call(exec, f"__import__('os').mkfifo({str(mark)!r})")),
        "eval": torch_file({"optimizers": [Call(eval, f"__import__('os').mkfifo({str(mark)!r})")]}),
        "nested": torch_file(nested),
        "old format": torch_file(system, _use_new_zipfile_serialization=False),
        "bare pickle": pickle.dumps(system),
    }


def replace_newest_checkpoint(run: Path, content: bytes, **entry: Any) -> None:
    """Overwrites the newest checkpoint, with checksums that match; `entry` changes its entry in the manifest."""
    folder = run / "checkpoints"
    entries = to_json(read_manifest(folder))
    (folder / entries[-1]["file"]).write_bytes(content)
    entries[-1] |= {"sha256": hashlib.sha256(content).hexdigest(), **entry}
    checksum = hashlib.sha256(json.dumps(entries, sort_keys=True).encode()).hexdigest()
    for path in folder.glob("manifest*.json"):
        path.write_text(json.dumps({"sha256": checksum, "checkpoints": entries}))


@pytest.mark.parametrize("name", gadgets(Path()))
def test_a_checkpoint_executes_nothing(name: str, run: Path, cache: str, tmp_path: Path) -> None:
    mark = tmp_path / "executed"
    content = gadgets(mark)[name]
    with suppress(Exception):
        torch.load(io.BytesIO(content), weights_only=False)
    assert mark.exists(), "the file would execute nothing, so the test would show nothing"
    mark.unlink()
    for entry in read_manifest(run / "checkpoints")[:-1]:
        (run / "checkpoints" / entry.file).unlink()
    replace_newest_checkpoint(run, content)
    for script, argument in (("train.py", f"out={run}"), ("eval.py", f"run={run}")):
        arguments = ["resume=true", "max_steps=6"] if script == "train.py" else []
        assert run_program(script, argument, cache, *arguments).error
        assert not mark.exists()


@pytest.mark.parametrize("file", ["../../outside.pt", "/tmp/outside.pt", "step_\0.pt", 3, None])
def test_a_manifest_with_a_file_outside_is_refused(file: Any, run: Path, cache: str) -> None:
    content = torch_file(load_checkpoint(run / "checkpoints"))
    (run.parent / "outside.pt").write_bytes(content)
    replace_newest_checkpoint(run, content, file=file)
    assert run_program("train.py", f"out={run}", "resume=true", "max_steps=6", cache).error
    assert (run.parent / "outside.pt").read_bytes() == content
