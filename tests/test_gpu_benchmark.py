"""benchmarks.gpu: the benchmark of a GPU, rehearsed on the CPU."""

import json
import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest

from benchmarks.gpu import GpuOptions, main
from benchmarks.measure import start_benchmark
from data.config import TextConfig, TokenizerKind
from data.corpus import load_corpus
from data.english import FEMININE_NAMES, MASCULINE_NAMES

NAMES = [*product(sorted(FEMININE_NAMES)[:20], sorted(MASCULINE_NAMES)[:20])]


Call = Callable[..., tuple[int, str]]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """Calls the benchmark as a rehearsal; returns the exit status and stderr."""

    def call_main(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["benchmarks.gpu", "device=cpu", "quick=true", *arguments])
        status = 0
        try:
            start_benchmark(main, GpuOptions)
        except SystemExit as stop:
            status = int(stop.code or 0)
        return status, capsys.readouterr().err

    return call_main


@pytest.mark.slow
def test_a_rehearsal_writes_a_row_of_every_part(tmp_path: Path, call: Call) -> None:
    sentences = [f"{a} met {b} in the park. {'She' if i % 2 else 'He'} ran home. " for i in range(10) for a, b in NAMES]
    text = tmp_path / "text.txt"
    text.write_text("".join(sentences))
    config = TextConfig(
        source="text", path=str(text), validation_path=None, validation_fraction=0.5, column="text", max_bytes=None,
        tokenizer=TokenizerKind.bpe, vocab_size=300, tokenizer_path=None,
    )  # fmt: skip
    tokens = load_corpus(config, tmp_path / "cache").folder
    out = tmp_path / "out"
    status, errors = call(f"out={out}", f"text={text}", f"tokens={tokens}")
    assert status == 0, errors
    rows = {row["part"]: row["cells"] for row in json.loads((out / "gpu.json").read_text())["rows"]}
    assert list(rows) == ["tests", "speed", "shakespeare", "ladder"]
    assert rows["speed"]["tokens per second"] > 0 and rows["speed"]["tokens per step"] == 512
    assert rows["shakespeare"]["loss"] > 0 and rows["ladder"]["steps"] == 4
    assert rows["ladder"]["natural text, other entity"].endswith(("not established", "suggestive", "supported"))
    page = (out / "gpu.md").read_text()
    assert page.startswith("# Rehearsal") and all(f"## {part}" in page for part in rows)


def test_a_failed_measurement_is_a_row_with_the_error_and_its_log_and_status_1(tmp_path: Path, call: Call) -> None:
    (tmp_path / "nanogpt" / "config").mkdir(parents=True)
    (tmp_path / "nanogpt" / "config" / "train_shakespeare_char.py").touch()
    (tmp_path / "nanogpt" / "train.py").write_text(
        "print('step 0: train loss 4.1, val loss 4.2')\nraise MemoryError('full')\n"
    )
    (tmp_path / "text.txt").write_text("abc\n")
    arguments = [f"text={tmp_path / 'text.txt'}", f"nanogpt={tmp_path / 'nanogpt'}"]
    status, _ = call(f"out={tmp_path / 'out'}", "part=shakespeare", *arguments)
    assert status == 1
    ours, theirs = [row["cells"] for row in json.loads((tmp_path / "out" / "gpu.json").read_text())["rows"]]
    assert "model.context_length" in ours["problem"] and "MemoryError: full" in theirs["problem"]
    assert "val loss 4.2" in (tmp_path / "out" / "logs" / "shakespeare_nanogpt.log").read_text()


@pytest.mark.parametrize(
    ("argument", "name"),
    [
        ("part=nonsense", "part"), ("part=ladder", "tokens"), ("part=shakespeare", "text"),
        ("quick=yes please", "quick"), ("device=tpu", "device"),
    ],
)  # fmt: skip
def test_a_wrong_argument_is_one_line_and_nothing_is_written(
    tmp_path: Path, argument: str, name: str, call: Call
) -> None:
    arguments = [argument] if argument.startswith("part") else [argument, "part=tests"]
    status, error = call(f"out={tmp_path / 'out'}", *arguments)
    assert status == 2 and error.startswith(f"error: {name}=") and error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_folder_with_results_is_left_alone(tmp_path: Path, call: Call) -> None:
    (tmp_path / "gpu.json").write_text("{}")
    status, error = call(f"out={tmp_path}", "part=tests")
    assert status == 2 and "holds other results" in error
    assert (tmp_path / "gpu.json").read_text() == "{}"
