"""A run that somebody else has made cannot make us run anything: its checkpoints are data, and nothing else."""

import hashlib
import io
import json
import os
import pickle
import shutil
import struct
import subprocess
import time
import warnings
import zipfile
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.reliability.calls import call, told
from tests.reliability.doors import Doors
from training.checkpoint import save_checkpoint

_MARK = "executed"  # the file that a gadget would make


class Calls:
    """Pickled, it is a call."""

    def __init__(self, function: Callable, *arguments: Any) -> None:
        self.function, self.arguments = function, arguments

    def __reduce__(self) -> tuple:
        return self.function, self.arguments


def saved(content: Any, **how: Any) -> bytes:
    stream = io.BytesIO()
    torch.save(content, stream, **how)
    return stream.getvalue()


def doubled(payload: bytes) -> bytes:
    """Return a whole checkpoint whose archive holds another data.pkl before and behind its own."""
    source, stream = zipfile.ZipFile(io.BytesIO(saved({"w": torch.zeros(3)}))), io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive, warnings.catch_warnings(action="ignore"):
        archive.writestr("archive/data.pkl", payload)
        for name in source.namelist():
            archive.writestr(name, source.read(name))
        archive.writestr("archive/data.pkl", payload)
    return stream.getvalue()


def rewritten(payload: bytes) -> bytes:
    """Return a checkpoint whose tensors are whole and whose pickle is another."""
    source, stream = zipfile.ZipFile(io.BytesIO(saved({"w": torch.zeros(3)}))), io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name in source.namelist():
            archive.writestr(name, payload if name.endswith("data.pkl") else source.read(name))
    return stream.getvalue()


class State:
    """Unpickled, it calls what it holds."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __setstate__(self, state: dict) -> None:
        Path(state["mark"]).touch()


def scripted(mark: Path) -> bytes:
    """Return an archive as TorchScript writes them, with a call among its constants."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("archive/constants.pkl", pickle.dumps(Calls(Path.touch, mark)))
        archive.writestr("archive/data.pkl", pickle.dumps(Calls(Path.touch, mark)))
        archive.writestr("archive/version", "3")
        archive.writestr("archive/code/__torch__.py", "class M(Module):\n  def forward(self):\n    return 1\n")
    return stream.getvalue()


def gadgets(mark: Path) -> dict[str, bytes]:
    """Return files that make `mark` when they are unpickled, by what they use."""
    shell, python = f"touch {mark}", f"__import__('os').mkfifo({str(mark)!r})"
    state = {"model": {"w": torch.zeros(3)}, "step": 1}
    system, nested = Calls(os.system, shell), [Calls(os.system, shell)]
    for _ in range(100):
        nested = [nested]
    array = io.BytesIO()
    np.save(array, np.array([system], dtype=object), allow_pickle=True)
    inner = b"B" + struct.pack("<I", len(saved(system))) + saved(system)
    return {
        "os.system": saved(state | {"best_loss": system}),
        "eval": saved(state | {"best_loss": Calls(eval, python)}),
        "exec": saved(Calls(exec, python)),
        "subprocess": saved({"optimizers": [Calls(subprocess.check_call, ["touch", str(mark)])]}),
        "Path.touch": saved({"step": Calls(Path.touch, mark)}),
        "functools.partial": saved({"random": Calls(partial(os.system, shell))}),
        "__setstate__": rewritten(pickle.dumps(State(mark))),
        "a storage of code": rewritten(b"\x80\x02ctorch.storage\n_load_from_bytes\n" + inner + b"\x85R."),
        "data.pkl three times": doubled(pickle.dumps(system)),
        "data.pkl alone replaced": rewritten(pickle.dumps(system)),
        "the format before zip": saved(system, _use_new_zipfile_serialization=False),
        "a bare pickle": pickle.dumps(system),
        "TorchScript": scripted(mark),
        "an array of objects": array.getvalue(),
        "a hundred lists deep": saved(nested),
    }


NAMES = list(gadgets(Path("/nowhere/at/all")))
_TEXT = (
    "data=text", "data.path=here.txt", "data.tokenizer=characters", "model=nano", "model.context_length=8",
    "threads=1", "max_steps=2", "tokens_per_batch=64", "validation_tokens=50", "sample_tokens=2", "cache_dir=cache",
)  # fmt: skip


@pytest.fixture(scope="module")
def place(doors: Doors, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working directory with a small run of a text."""
    folder = tmp_path_factory.mktemp("gadgets")
    (folder / "here.txt").write_text("Tom ran. He sat.\n" * 60)
    made = call(doors, folder, "train.py", *_TEXT, "out=sound")
    assert made.status == 0, made.err
    return folder


def planted(place: Path, name: str, mark: Path) -> Path:
    """Return a copy of the run whose only checkpoint is a gadget, under a hash that matches."""
    run = place / "planted"
    shutil.rmtree(run, ignore_errors=True)
    shutil.copytree(place / "sound", run)
    shutil.rmtree(run / "checkpoints")
    save_checkpoint(run / "checkpoints", {}, 1, best=True)
    (file,) = (run / "checkpoints").glob("*.pt")
    content = gadgets(mark)[name]
    file.write_bytes(content)
    for path in (run / "checkpoints").glob("manifest*.json"):
        said = json.loads(path.read_text())
        said["checkpoints"][0]["sha256"] = hashlib.sha256(content).hexdigest()
        canonical = json.dumps(said["checkpoints"], sort_keys=True).encode()
        path.write_text(json.dumps(said | {"sha256": hashlib.sha256(canonical).hexdigest()}))
    return run


def test_gadgets_are_live_where_pickle_may_read_them(tmp_path: Path) -> None:
    """Were they harmless, the next test would pass by planting nothing."""
    mark, live = tmp_path / _MARK, []
    for name, content in gadgets(mark).items():
        with suppress(Exception):
            torch.load(io.BytesIO(content), weights_only=False)
        with suppress(Exception):
            np.load(io.BytesIO(content), allow_pickle=True)
        end = time.monotonic() + 2
        while not mark.exists() and time.monotonic() < end:
            time.sleep(0.01)
        live += [name] if mark.exists() else []
        mark.unlink(missing_ok=True)
    assert set(live) >= set(NAMES) - {"TorchScript"}, set(NAMES) - set(live)


def test_no_gadget_in_a_checkpoint_is_run(
    doors: Doors, place: Path, figure: Callable[[str, str, str, bool], None]
) -> None:
    n_calls, executed, mark = 0, [], place / _MARK
    for name in NAMES:
        run = planted(place, name, mark)
        resumed = ("train.py", "resume=true", f"out={run}", *_TEXT)
        for door, *arguments in (resumed, ("eval.py", f"run={run}"), ("model/generate.py", f"run={run}")):
            called = call(doors, place, door, *arguments)
            n_calls += 1
            if mark.exists():
                executed.append(f"{name} by {door}")
                mark.unlink()
            line = told(called)
            assert "checkpoint" in line, (name, door, line)
    measured = f"{len(executed)} of {n_calls} calls on {len(NAMES)} gadgets {' '.join(executed)}".rstrip()
    figure("pickle gadgets as checkpoints, through resume, eval and generate", "0 executed", measured, not executed)
