"""Checkpoints that are whole, by their hash, and hold what no run has written: refused, and nothing is touched."""

import hashlib
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.reliability.doors import Ended
from tests.reliability.runs import differences, hashes
from tests.reliability.test_directories import is_one_line
from training.checkpoint import load_checkpoint, read_manifest

Resume = Callable[..., Ended]
_AWAY, _ELSEWHERE = "away.pt", "elsewhere.pt"  # whole checkpoints beside the run, which a manifest may name

_LOCK = "run/.lock"  # names the process that claimed the run last


def without(name: str) -> Callable[[dict[str, Any]], Any]:
    return lambda state: {key: value for key, value in state.items() if key != name}


def with_(**changed: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda state: state | changed


STATES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "no random": without("random"),
    "no optimizers": without("optimizers"),
    "random of floats": with_(random=torch.rand(5056)),
    "model={}": with_(model={}),
    "step='3'": with_(step="3"),
    "step=-3": with_(step=-3),
    "step=10**9": with_(step=10**9),
    "skipped=3": with_(skipped=3),
    "optimizers=[]": with_(optimizers=[]),
    "a list": lambda state: list(state.values()),
}
ENTRIES: dict[str, Callable[[Path], dict[str, Any]]] = {
    "entry's step 'x'": lambda _: {"step": "x"},
    "entry's step null": lambda _: {"step": None},
    "entry's file 3": lambda _: {"file": 3},
    "entry's file with NUL": lambda _: {"file": "step_\0.pt"},
    "entry's file above the run": lambda _: {"file": f"../../{_AWAY}"},
    "entry's file absolute": lambda folder: {"file": str(folder / _ELSEWHERE)},
}


def plant(run: Path, *, state: Callable[[dict[str, Any]], Any] = lambda state: state, **entry: Any) -> None:
    """Write the newest checkpoint of a run anew with another state or entry, under hashes that are right."""
    folder = run / "checkpoints"
    entries = read_manifest(folder)
    stream = io.BytesIO()
    torch.save(state(load_checkpoint(folder)[0]), stream)
    content = stream.getvalue()
    for path in (folder / entries[-1]["file"], run.parent / _AWAY, run.parent / _ELSEWHERE):
        path.write_bytes(content)
    entries[-1] |= {"sha256": hashlib.sha256(content).hexdigest()} | entry
    sha256 = hashlib.sha256(json.dumps(entries, sort_keys=True).encode()).hexdigest()
    for name in ("manifest.json", "manifest_copy.json"):
        (folder / name).write_text(json.dumps({"sha256": sha256, "checkpoints": entries}))


def test_a_planted_checkpoint_that_holds_what_was_saved_is_gone_on_with(
    unbroken: Path, broken: Callable[[str], Path], resume: Resume
) -> None:
    """Were it not, the next test would pass by planting what nobody can read."""
    run = broken("run")
    plant(run)
    ended = resume(run)
    assert ended.status == 0 and differences(run, unbroken) == [], ended.err


@pytest.mark.slow
def test_a_checkpoint_under_a_right_hash_whose_content_is_wrong_is_refused_in_one_line_and_nothing_is_touched(
    broken: Callable[[str], Path], resume: Resume, tmp_path: Path, figure: Callable[[str, str, str, bool], None]
) -> None:
    planted: dict[str, dict[str, Any]] = {name: {"state": state} for name, state in STATES.items()}
    planted |= {name: entry(tmp_path) for name, entry in ENTRIES.items()}
    wrong = {}
    for name, what in planted.items():
        run = broken("run")
        plant(run, **what)
        before = hashes(tmp_path)
        ended = resume(run)
        if not is_one_line(ended):
            wrong[name] = f"status {ended.status}, {ended.err[-300:]!r}"
        elif changed := {path for path, _ in before.items() ^ hashes(tmp_path).items()} - {_LOCK}:
            wrong[name] = f"changed {', '.join(sorted(changed))}"
        shutil.rmtree(run)
    print("\n".join(f"{name}: {how}" for name, how in wrong.items()))
    n = len(planted)
    figure(
        "checkpoints and manifests with right hashes and wrong content, gone on with",
        f"{n} of {n} refused in one line, exit 2; nothing but .lock changed or deleted",
        "; ".join([f"{n - len(wrong)} of {n}", *wrong]),
        not wrong,
    )
