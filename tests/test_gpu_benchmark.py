"""The benchmark of a GPU, rehearsed on the CPU: every part writes its rows."""

import json
import signal
import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest

import benchmarks.gpu
from data.config import TextConfig, TokenizerKind
from data.corpus import load_corpus
from data.english import FEMININE_NAMES, MASCULINE_NAMES

NAMES = [*product(sorted(FEMININE_NAMES)[:20], sorted(MASCULINE_NAMES)[:20])]


Call = Callable[..., tuple[int, list[str], str]]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """Calls the benchmark as a rehearsal; returns the exit status, the lines of stdout and stderr."""

    def call_main(*arguments: str) -> tuple[int, list[str], str]:
        monkeypatch.setattr(sys, "argv", ["benchmarks.gpu", "device=cpu", "quick=true", *arguments])
        try:
            status = benchmarks.gpu.main()
        except SystemExit as stop:
            status = int(stop.code or 0)
        captured = capsys.readouterr()
        return status, captured.out.splitlines(), captured.err

    return call_main


@pytest.mark.slow
def test_a_rehearsal_writes_a_row_of_every_part_and_the_next_call_measures_what_is_missing(
    tmp_path: Path, call: Call
) -> None:
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
    status, _, errors = call(*arguments)
    assert status == 0, errors
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
    _, lines, _ = call(*arguments)
    assert [line.partition(",")[0] for line in lines] == ["speed"]
    rerun = json.loads((out / "gpu.json").read_text())["results"]
    assert rerun["ladder"] == content["results"]["ladder"] and "problem" not in str(rerun["speed"])


def test_a_failed_measurement_is_a_row_with_the_error_and_its_log_and_status_1(tmp_path: Path, call: Call) -> None:
    (tmp_path / "nanogpt" / "config").mkdir(parents=True)
    (tmp_path / "nanogpt" / "config" / "train_shakespeare_char.py").touch()
    (tmp_path / "nanogpt" / "train.py").write_text(
        "print('step 0: train loss 4.1, val loss 4.2')\nraise MemoryError('full')\n"
    )
    (tmp_path / "text.txt").write_text("abc\n")
    arguments = [f"text={tmp_path / 'text.txt'}", f"nanogpt={tmp_path / 'nanogpt'}"]
    status, _, _ = call(f"out={tmp_path / 'out'}", "part=shakespeare", *arguments)
    assert status == 1
    rows = json.loads((tmp_path / "out" / "gpu.json").read_text())["results"]["shakespeare"]
    ours, theirs = rows.values()
    assert "model.context_length" in ours["problem"] and "MemoryError: full" in theirs["problem"]
    assert "val loss 4.2" in (tmp_path / "out" / "logs" / "shakespeare_nanogpt.log").read_text()


def test_a_program_that_runs_at_the_deadline_is_stopped_and_its_row_has_a_problem(tmp_path: Path) -> None:
    options = {"quick": "true", "device": "cpu", "out": str(tmp_path), "runs": "", "minutes": "0"}
    output = benchmarks.gpu.Call(options).run("sleep", sys.executable, "-c", "import time; time.sleep(60)")
    assert output.status == -signal.SIGTERM and "problem" in output.problem()


@pytest.mark.parametrize(
    ("argument", "name"),
    [
        ("part=nonsense", "part"), ("part=ladder", "tokens"), ("part=shakespeare", "text"), ("minutes=nan", "minutes"),
        ("minutes=0", "minutes"), ("quick=yes", "quick"), ("device=tpu", "device"), ("nanogpt=/nowhere", "nanogpt"),
    ],
)  # fmt: skip
def test_a_wrong_argument_is_one_line_and_nothing_is_written(
    tmp_path: Path, argument: str, name: str, call: Call
) -> None:
    status, _, error = call(f"out={tmp_path / 'out'}", "part=tests", argument)
    assert status == 2 and error.startswith(f"error: {name}=") and error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_rehearsal_is_not_mixed_with_measurements(tmp_path: Path, call: Call) -> None:
    content = {"title": "Measured with device=cuda", "calls": [], "results": {}}
    (tmp_path / "gpu.json").write_text(json.dumps(content))
    status, _, error = call(f"out={tmp_path}", "part=tests")
    assert status == 2 and "device=cuda" in error
    assert json.loads((tmp_path / "gpu.json").read_text()) == content
