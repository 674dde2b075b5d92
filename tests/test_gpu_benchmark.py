"""The benchmark of a GPU, rehearsed on the CPU: every part writes its rows."""

import json
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest

from benchmarks.gpu import main
from data.config import TextConfig, TokenizerKind
from data.corpus import load_corpus
from data.english import FEMININE_NAMES, MASCULINE_NAMES
from tests.program import ROOT

NAMES = [*product(sorted(FEMININE_NAMES)[:20], sorted(MASCULINE_NAMES)[:20])]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.gpu", "device=cpu", "quick=true", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


@pytest.mark.slow
def test_a_rehearsal_writes_a_row_of_every_part_and_the_next_call_measures_what_is_missing(tmp_path: Path) -> None:
    sentences = [f"{a} met {b} in the park. {'She' if i % 2 else 'He'} ran home. " for i in range(10) for a, b in NAMES]
    text = tmp_path / "text.txt"
    text.write_text("".join(sentences))
    config = TextConfig(
        source="text", path=str(text), validation_path=None, validation_fraction=0.5, column="text", max_bytes=None,
        tokenizer=TokenizerKind.bpe, vocab_size=300, tokenizer_path=None,
    )  # fmt: skip
    tokens = load_corpus(config, tmp_path / "cache").folder
    out = tmp_path / "out"
    arguments = (f"out={out}", f"text={text}", f"tokens={tokens}")
    process = run(*arguments)
    assert process.returncode == 0, process.stderr
    content = json.loads((out / "gpu.json").read_text())
    rows = {part: next(iter(rows.values())) for part, rows in content["results"].items()}
    assert list(rows) == ["tests", "speed", "shakespeare", "ladder"]
    assert rows["speed"]["tokens per second"] > 0 and rows["speed"]["tokens per step"] == 512
    assert rows["shakespeare"]["loss"] > 0 and rows["ladder"]["steps"] == 4
    assert rows["ladder"]["natural text, other entity"].endswith(("not established", "suggestive", "supported"))
    page = (out / "gpu.md").read_text()
    assert page.startswith("# Rehearsal") and all(f"## {part}" in page for part in rows)

    content["results"]["speed"] = {"model=nano compile=none": {"problem": "out of memory"}}
    (out / "gpu.json").write_text(json.dumps(content))
    process = run(*arguments)
    assert [line.partition(",")[0] for line in process.stdout.splitlines()] == ["speed"]
    rerun = json.loads((out / "gpu.json").read_text())["results"]
    assert rerun["ladder"] == content["results"]["ladder"] and "problem" not in str(rerun["speed"])


def test_a_failed_measurement_is_a_row_with_the_error_and_its_log_and_status_1(tmp_path: Path) -> None:
    (tmp_path / "nanogpt" / "config").mkdir(parents=True)
    (tmp_path / "nanogpt" / "config" / "train_shakespeare_char.py").touch()
    (tmp_path / "nanogpt" / "train.py").write_text(
        "print('step 0: train loss 4.1, val loss 4.2')\nraise MemoryError('full')\n"
    )
    (tmp_path / "text.txt").write_text("abc\n")
    arguments = [f"text={tmp_path / 'text.txt'}", f"nanogpt={tmp_path / 'nanogpt'}"]
    process = run(f"out={tmp_path / 'out'}", "part=shakespeare", *arguments)
    assert process.returncode == 1
    rows = json.loads((tmp_path / "out" / "gpu.json").read_text())["results"]["shakespeare"]
    ours, theirs = rows.values()
    assert "model.context_length" in ours["problem"] and "MemoryError: full" in theirs["problem"]
    assert "val loss 4.2" in (tmp_path / "out" / "logs" / "shakespeare_nanogpt.log").read_text()


@pytest.mark.parametrize(
    ("argument", "name"),
    [
        ("part=nonsense", "part"), ("part=ladder", "tokens"), ("part=shakespeare", "text"), ("minutes=nan", "minutes"),
        ("minutes=0", "minutes"), ("quick=yes", "quick"), ("device=tpu", "device"), ("nanogpt=/nowhere", "nanogpt"),
    ],
)  # fmt: skip
def test_a_wrong_argument_is_one_line_and_nothing_is_written(
    tmp_path: Path, argument: str, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [f"out={tmp_path / 'out'}", "device=cpu", "quick=true", "part=tests", argument]
    monkeypatch.setattr(sys, "argv", ["benchmarks.gpu", *arguments])
    with pytest.raises(SystemExit, match="2"):
        main()
    error = capsys.readouterr().err
    assert error.startswith(f"error: {name}=") and error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_rehearsal_is_not_mixed_with_measurements(tmp_path: Path) -> None:
    content = {"title": "Measured with device=cuda", "calls": [], "results": {}}
    (tmp_path / "gpu.json").write_text(json.dumps(content))
    process = run(f"out={tmp_path}", "part=tests")
    assert process.returncode == 2 and "device=cuda" in process.stderr
    assert json.loads((tmp_path / "gpu.json").read_text()) == content
