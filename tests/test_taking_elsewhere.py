"""model.export from outside: what a user types, what is written, and what is refused in one line."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.reliability import calls
from tests.reliability.calls import Called, bounded, call, told
from tests.reliability.doors import ROOT, Doors
from training.checkpoint import load_checkpoint, save_checkpoint

DOOR = "model/export.py"
HF = [
    "README.md",
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
]
TRAIN = (
    "data=text", "data.path=text.txt", "data.tokenizer=characters", "data.validation_fraction=0.3", "model=nano",
    "threads=1", "max_steps=2", "tokens_per_batch=64", "validation_tokens=50", "sample_tokens=0", "cache_dir=cache",
)  # fmt: skip


@pytest.fixture(scope="module")
def place(doors: Doors, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small run of a text, called sound."""
    pytest.importorskip("safetensors")
    pytest.importorskip("gguf")
    here = tmp_path_factory.mktemp("export")
    (here / "text.txt").write_text("Tom ran. He sat.\n" * 60)
    made = call(doors, here, "train.py", *TRAIN, "out=sound")
    assert made.status == 0, made.err
    return here


def files_of(folder: Path) -> list[str]:
    return sorted(str(one.relative_to(folder)) for one in folder.rglob("*"))


def test_a_run_becomes_a_folder_and_a_file_that_others_open(place: Path) -> None:
    """In a process of its own, as it is typed; what readers make of it tests/model/test_export.py asks."""
    for to, made in (("hf", "sound/export/hf"), ("gguf", "sound/export/model.gguf")):
        command = [sys.executable, "-m", "model.export", f"run={place / 'sound'}", f"to={to}"]
        ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert ran.returncode == 0 and ran.stderr == "", ran.stderr
        assert ran.stdout.splitlines()[0] == f"wrote    {place / made}"
        # Of characters llama.cpp has no tokenizer, which is said; transformers has.
        assert ("can neither read nor write text" in ran.stdout) == (to == "gguf")
    assert files_of(place / "sound" / "export") == ["hf", *(f"hf/{name}" for name in HF), "model.gguf"]
    card = (place / "sound" / "export" / "hf" / "README.md").read_text()
    assert "Nobody has probed this run" in card and "step 2 of 2" in card
    config = json.loads((place / "sound" / "export" / "hf" / "config.json").read_text())
    assert (config["model_type"], config["hidden_size"], config["num_hidden_layers"]) == ("llama", 32, 1)
    assert (place / "sound" / "export" / "hf").stat().st_mode & 0o777 == 0o755


def test_what_is_there_is_not_written_over(doors: Doors, place: Path) -> None:
    for to, name in (("hf", "folder"), ("gguf", "file")):
        assert call(doors, place, DOOR, "run=sound", f"to={to}", f"out=deep/er/{name}").status == 0
        before = {path: path.read_bytes() for path in (place / "deep").rglob("*") if path.is_file()}
        line = told(call(doors, place, DOOR, "run=sound", f"to={to}", f"out=deep/er/{name}"))
        assert line == f"error: deep/er/{name} is there already: give another out=, or move it"
        assert before == {path: path.read_bytes() for path in (place / "deep").rglob("*") if path.is_file()}


def test_a_file_in_the_way_is_named(doors: Doors, place: Path) -> None:
    for to in ("hf", "gguf"):
        line = told(call(doors, place, DOOR, "run=sound", f"to={to}", "out=sound/config.json/new"))
        assert line == "error: out=sound/config.json/new: sound/config.json is a file and no folder"


def without(package: str, memory: int, home: str, door: str) -> None:
    """Be a door where a package is not installed."""
    sys.modules[package] = None  # type: ignore[assignment]  # so that nobody finds it
    bounded(memory, home, door)


@pytest.mark.parametrize(("to", "package"), [("hf", "safetensors"), ("gguf", "gguf")])
def test_a_package_that_is_missing_is_named_with_what_installs_it(
    doors: Doors, place: Path, to: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "bounded", partial(without, package))
    line = told(call(doors, place, DOOR, "run=sound", f"to={to}", "out=new"))
    assert line == f"error: to={to} takes {package}: pip install '.[export]'" and not (place / "new").exists()


def changed(place: Path, change: Callable[[Path], None]) -> None:
    shutil.rmtree(place / "changed", ignore_errors=True)
    shutil.copytree(place / "sound", place / "changed", ignore=shutil.ignore_patterns("export"))
    change(place / "changed")


def damaged(run: Path) -> None:
    (run / "tokenizer.json").write_text((run / "tokenizer.json").read_text() + "\n")


def unfinished(run: Path) -> None:
    """Be a run that has begun and saved nothing yet."""
    shutil.rmtree(run / "checkpoints")


def not_finite(run: Path) -> None:
    state, _ = load_checkpoint(run / "checkpoints", best=True)
    next(iter(state["model"].values())).view(-1)[0] = float("nan")
    save_checkpoint(run / "checkpoints", state, state["step"], best=True)


def nothing(_: Path) -> None:
    pass


@pytest.mark.parametrize(
    ("change", "arguments", "said"),
    [
        (damaged, ["run=changed", "to=hf"], "tokenizer.json is damaged"),
        (unfinished, ["run=changed", "to=gguf"], "checkpoint"),
        (not_finite, ["run=changed", "to=hf"], "has weights that are not finite"),
        (nothing, ["run=changed"], "to= is missing: one of hf, gguf"),
        (nothing, ["run=changed", "to=onnx"], "to=onnx: onnx is not one of hf, gguf"),
        (nothing, ["run=changed", "too=hf"], "did you mean to?"),
        (nothing, ["run=nowhere", "to=hf"], "nowhere is not a run's directory"),
        (nothing, ["run=changed", "to=hf", "out=text.txt/new"], "text.txt"),
    ],
)
def test_what_cannot_be_exported_is_one_line_and_leaves_nothing(
    doors: Doors, place: Path, change: Callable[[Path], None], arguments: list[str], said: str
) -> None:
    changed(place, change)
    before = files_of(place)
    assert said in told(call(doors, place, DOOR, *arguments))
    assert files_of(place) == before


@pytest.fixture(scope="module")
def switched(doors: Doors, place: Path) -> Callable[[str], Called]:
    """Train a run with one switch turned."""
    return lambda switch: call(doors, place, "train.py", *TRAIN, switch, f"out={switch}")


@pytest.mark.parametrize(
    "switch",
    ["model.position=alibi", "model.scale=none", "model.weighting=sum", "model.mask=none", "model.token_shift=true"],
)
def test_each_switch_that_no_llama_has_is_refused_by_name(
    doors: Doors, place: Path, switched: Callable[[str], Called], switch: str
) -> None:
    assert switched(switch).status == 0
    before = files_of(place)
    for to in ("hf", "gguf"):
        line = told(call(doors, place, DOOR, f"run={switch}", f"to={to}"))
        assert line == f"error: {switch}: no Llama has that, and so neither format could hold this model"
    assert files_of(place) == before


def test_a_full_disk_is_one_line_and_leaves_nothing(doors: Doors, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "bounded", small_files)
    before = files_of(place)
    for to in ("hf", "gguf"):
        told(call(doors, place, DOOR, "run=sound", f"to={to}", "out=new/it"))
    assert files_of(place) == before


def small_files(memory: int, home: str, door: str) -> None:
    """Be a door that may write 4 kB a file, which stands for a disk that is full."""
    import resource

    set_limit = resource.setrlimit
    resource.setrlimit = lambda what, limits: set_limit(  # type: ignore[assignment]
        what, (4096, 4096) if what == resource.RLIMIT_FSIZE else limits
    )
    bounded(memory, home, door)
