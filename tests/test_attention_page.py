"""The code blocks of docs/attention.md run in order, and each prints the block below it."""

import contextlib
import io
import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[1] / "docs" / "attention.md"
_BLOCKS = re.compile(r"```python\n(.*?)```\n```text\n(.*?)```", re.DOTALL)
_NUMBER = re.compile(r"-?\d+\.?\d*(?:e-?\d+)?")


def outputs(page: str) -> list[str]:
    """Run the code blocks of a page in one namespace and return what each prints."""
    namespace: dict = {}
    printed = []
    for code, _ in _BLOCKS.findall(page):
        with contextlib.redirect_stdout(io.StringIO()) as stream:
            exec(code, namespace)
        printed.append(stream.getvalue())
    return printed


def test_the_page_shows_the_output_of_its_code() -> None:
    page = PAGE.read_text()
    blocks = _BLOCKS.findall(page)
    assert len(blocks) == page.count("```python") >= 12
    for (code, shown), printed in zip(blocks, outputs(page), strict=True):
        assert _NUMBER.sub("#", printed).split() == _NUMBER.sub("#", shown).split(), code
        numbers, expected = ([float(number) for number in _NUMBER.findall(text)] for text in (printed, shown))
        assert numbers == pytest.approx(expected, rel=0.02, abs=0.002), code  # CPUs round sums differently
