"""docs/attention.md says what the code gives."""

import json
import re
from pathlib import Path

import pytest

from benchmarks.attention import FIGURE, PAGE, draw, drawn, printed, tables
from benchmarks.link_head import RESULTS, ROOT
from lab.examples import saturation

TEXT = PAGE.read_text()


def between(marker: str) -> list[str]:
    found = re.findall(rf"^<!-- {marker} -->\n(.*?)<!-- end -->", TEXT, re.DOTALL | re.MULTILINE)
    assert len(found) == 1, f"{marker} stands {len(found)} times in the page"
    return found[0].strip("\n").split("\n")


def test_every_block_of_code_prints_what_stands_under_it() -> None:
    blocks = re.findall(r"^```python\n.*?^```\n<!-- ([\w ]+) -->$", TEXT, re.DOTALL | re.MULTILINE)
    outputs = printed(TEXT)
    assert blocks == [f"printed {place}" for place in range(1, len(outputs) + 1)]
    for marker, lines in zip(blocks, outputs, strict=True):
        assert lines and between(marker) == [f"    {line}" for line in lines]


def test_every_block_of_the_page_is_what_the_code_gives_now() -> None:
    found = tables()
    assert {*re.findall(r"^<!-- ([\w ]+) -->$", TEXT, re.MULTILINE)} == {*found, "end"}
    for marker, lines in found.items():
        assert between(marker) == lines


def test_the_head_on_the_page_is_the_one_that_was_measured() -> None:
    (first, *_) = json.loads(RESULTS.read_text())["results"][0]["showcase"]["number"]
    assert first["text"] in between("trained head")[0] and f"cat {first['weights']['cat']:.2f}" in TEXT


def test_no_number_stands_in_the_prose() -> None:
    """But for headings, years and d_k: what is a figure is printed by code."""
    prose = re.sub(r"^```python\n.*?^```$", "", TEXT, flags=re.DOTALL | re.MULTILINE)
    prose = re.sub(r"^<!-- [\w ]+ -->\n.*?<!-- end -->", "", prose, flags=re.DOTALL | re.MULTILINE)
    prose = re.sub(r"^#.*$|\]\([^)]*\)|et al\. \d{4}|& \w+ \d{4}", "", prose, flags=re.MULTILINE)
    assert re.findall(r"\S*\d\S*", prose) == []


def test_the_page_is_ten_short_steps() -> None:
    assert [int(one) for one in re.findall(r"^## (\d+)\.", TEXT, re.MULTILINE)] == list(range(1, 11))
    assert len(TEXT.splitlines()) < 250


def test_what_the_page_points_to_is_there() -> None:
    for target in re.findall(r"\]\((?!https)([\w./-]+)\)", TEXT):
        assert (PAGE.parent / target).exists(), target
    for path in re.findall(r"`([\w/]+\.py)", TEXT):
        assert (ROOT / path).exists(), path


def test_the_figure_shows_the_numbers_that_the_code_gives() -> None:
    assert drawn(list(saturation())).encode() in FIGURE.read_bytes()


def test_the_figure_can_be_drawn_again(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    found = list(saturation(widths=(4, 16), n_draws=10))
    draw(found, tmp_path / "again" / "figure.png")
    assert drawn(found).encode() in (tmp_path / "again" / "figure.png").read_bytes()
