"""The files of a run, changed as a broken disk, another program or an enemy would: read, or refused in one line."""

import json
import random
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.reliability.calls import Called, call
from tests.reliability.counts import counted
from tests.reliability.doors import Doors

pytestmark = pytest.mark.slow

_RUN = (
    "data.n_train_stories=6000", "data.n_validation_stories=40", "data.n_test_templates=3", "data.n_test_pairs=2",
    "threads=1", "max_steps=4", "eval_every_steps=2", "tokens_per_batch=256", "validation_tokens=200",
    "probe_sequences=8", "sample_tokens=2", "model=nano",
)  # fmt: skip
_PROBE = ("probe.n_bootstrap=100", "probe.n_untrained=2", "probe.n_controls=10", "threads=1", "cache_dir=cache")
# Each file, and the calls that read it; of the first and last lines of a .jsonl file each is a JSON of its own.
FILES = {
    "config.json": ("text", "generate", "runs", "resume"),
    "tokenizer.json": ("text", "generate"),
    "environment.json": ("text", "resume"),
    "metrics.jsonl": ("text", "runs"),
    "attention.jsonl": ("text",),
    "probe/probe.json": ("text", "runs"),
    "probe/claims.json": ("text",),
    "probe/items.jsonl": ("text",),
    "probe/sentences.json": ("text",),
    "checkpoints/manifest.json": ("text", "generate", "resume"),
}
CALLS = {
    "text": ("eval.py", "run=sweep/0", 'text="The cat saw the dogs. It ran."', *_PROBE),
    "runs": ("eval.py", "runs=sweep", *_PROBE),
    "generate": ("model/generate.py", "run=sweep/0", "n_tokens=3"),
    "resume": ("train.py", "resume=true", "out=sweep/0", "cache_dir=cache"),
}
_OTHERS: list[Any] = [
    None, True, 0, -1, 3, 1e308, -1e308, 10**400, 0.5, "", "x", "<b>", "\x1b[31m", "../../x", [], {}, [[]], [None],
    {"": {}}, [1, 2, 3], {"a": 1}, "9" * 5000, float("nan"), float("inf"), "\ud800",
]  # fmt: skip


def places(value: Any, found: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """Return every (container, key) in a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in list(items)[:50]:
        found.append((value, key))
        places(inner, found)
    return found


def mutated(text: str, is_lines: bool, draw: random.Random) -> tuple[str, str]:
    """Return what is done to a file, and the file then."""
    kind = draw.choice(["delete", "another", "another", "swap", "truncate", "deep", "bytes", "empty", "twice"])
    if kind == "truncate":
        return kind, text[: draw.randrange(len(text))]
    if kind == "deep":
        return kind, draw.choice(["[" * 10_000 + "]" * 10_000, '{"a":' * 10_000 + "1" + "}" * 10_000])
    if kind == "bytes":
        at = draw.randrange(len(text))
        return kind, text[:at] + draw.choice(["\x00", "\x1b", "é", "}", '"', "\\", "\n\n"]) + text[at + 1 :]
    if kind == "empty":
        return kind, draw.choice(["", "\n", "null", "[]", "{}", "3", '"x"'])
    if kind == "twice":
        return kind, text + text
    lines = text.splitlines() if is_lines else [text]
    number = draw.choice([0, len(lines) - 1, draw.randrange(len(lines))])
    value = json.loads(lines[number])
    container, key = draw.choice(places(value, []) or [([value], 0)])
    if kind == "delete":
        del container[key]
    elif kind == "swap" and isinstance(container[key], dict):
        container[key] = list(container[key].values())
    elif kind == "swap" and isinstance(container[key], list):
        container[key] = {str(i): one for i, one in enumerate(container[key])}
    else:
        container[key] = draw.choice(_OTHERS)
    lines[number] = json.dumps(value)
    return f"{kind} {str(key)[:40]}", "\n".join(lines) + ("\n" if is_lines else "")


@pytest.fixture(scope="module")
def place(doors: Doors, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a sweep of two small runs that have been probed."""
    here = tmp_path_factory.mktemp("mutations")
    for seed in (0, 1):
        called = call(doors, here, "train.py", *_RUN, f"seed={seed}", f"out=sound/{seed}", "cache_dir=cache")
        assert called.status == 0, called.err
    shutil.copytree(here / "sound", here / "sweep")
    for name in ("runs", "text"):
        called = call(doors, here, *CALLS[name])
        assert called.status == 0, called.err
    shutil.rmtree(here / "sound")
    (here / "sweep").rename(here / "sound")
    return here


def asked(doors: Doors, place: Path, how: str, file: str, content: str) -> Called:
    shutil.rmtree(place / "sweep", ignore_errors=True)
    shutil.copytree(place / "sound", place / "sweep")
    (place / "sweep" / "0" / file).write_bytes(content.encode(errors="surrogatepass"))
    return call(doors, place, *CALLS[how], seconds=30)


def test_a_run_whose_files_were_changed_is_read_or_refused_in_one_line(
    doors: Doors, place: Path, full: bool, figure: Callable[[str, str, str, bool], None]
) -> None:
    draw, ended, wrong = random.Random(11), Counter[int](), []
    n = 300 if full else 30
    for _ in range(n):
        file = draw.choice(list(FILES))
        text = (place / "sound" / "0" / file).read_text()
        what, content = mutated(text, file.endswith(".jsonl"), draw)
        how = draw.choice(FILES[file])
        called = asked(doors, place, how, file, content)
        ended[called.status] += 1
        lines = [line for line in called.err.splitlines() if not line.startswith("warning: ")]
        refused = len(lines) == 1 and lines[0].startswith("error: ")
        if (called.status == 2) != refused or called.status not in (0, 2, 143):
            wrong.append(f"{file} ({what}) by {how}: {called.status} {called.err[-1500:]}")
    counts = ", ".join(f"{n} x {status}" for status, n in sorted(ended.items()))
    print("\n\n".join(wrong))
    figure(
        "run files mutated: config, tokenizer, metrics, attention, probe, manifest",
        f"{counted(n, 300)} mutations, each read or one line",
        f"{ended.total()} mutations, exit status {counts}; {len(wrong)} not read and not refused in one line",
        not wrong,
    )


def test_a_run_that_nobody_changed_is_read(doors: Doors, place: Path) -> None:
    for how in CALLS:
        text = (place / "sound" / "0" / "config.json").read_text()
        called = asked(doors, place, how, "config.json", text)
        assert called.status == 0, (how, called.err)
