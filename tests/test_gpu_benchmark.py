"""The benchmark of a GPU, rehearsed on the CPU: every part writes its rows."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from data.config import TextConfig, TokenizerKind
from data.corpus import load_corpus
from tests.program import ROOT

NAMES = (("Lily", "Tom"), ("Mary", "Ben"), ("Sue", "Max"), ("Anna", "Tim"))


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.gpu", "device=cpu", "quick=true", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


@pytest.mark.slow
def test_a_rehearsal_writes_rows_of_every_part(tmp_path: Path) -> None:
    sentences = [f"{a} met {b} in the park. {'She' if i % 2 else 'He'} ran home. " for i in range(99) for a, b in NAMES]
    text = tmp_path / "text.txt"
    text.write_text("".join(sentences))
    config = TextConfig(
        source="text", path=str(text), validation_path=None, validation_fraction=0.3, column="text", max_bytes=None,
        tokenizer=TokenizerKind.bpe, vocab_size=300, tokenizer_path=None,
    )  # fmt: skip
    tokens = load_corpus(config, tmp_path / "cache").folder
    out = tmp_path / "out"
    process = run(f"out={out}", "part=speed,shakespeare,ladder", f"text={text}", f"tokens={tokens}")
    assert process.returncode == 0, process.stderr
    results = json.loads((out / "gpu.json").read_text())
    ((speed,), (shakespeare,), (ladder,)) = results.values()
    assert speed["tokens_per_second"] > 0 and shakespeare["loss"] > 0 and ladder["bits_per_byte"] > 0
    page = (out / "gpu.md").read_text()
    assert all(f"## {part}" in page for part in ("speed", "shakespeare", "ladder"))


@pytest.mark.parametrize(
    ("argument", "name"), [("part=nonsense", "part"), ("part=ladder", "tokens"), ("part=shakespeare", "text")]
)
def test_a_part_that_is_unknown_or_lacks_its_text_is_refused(tmp_path: Path, argument: str, name: str) -> None:
    process = run(f"out={tmp_path / 'out'}", argument)
    assert process.returncode == 2 and process.stderr.startswith(f"error: {name}=")
    assert not (tmp_path / "out").exists()
