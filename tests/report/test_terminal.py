"""The map of heads on a terminal: readable without its colours, and silent where colours are not wanted."""

import io
import re

import pytest

from report.colours import AGAINST, FOR, WHITE, Colour, ink, score_colour
from report.terminal import has_colour, has_every_colour, heat_map

SCORES = [[1.0, 0.52, None], [0.0, 0.36, 0.5]]
SIGNIFICANT = [[True, False, False], [False, False, False]]
LINUX = {"TERM": "xterm-256color"}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def without_colour(line: str) -> str:
    return re.sub(r"\033\[[0-9;]*m", "", line)


def papers(line: str) -> list[str]:
    return re.findall(r"\033\[48;([0-9;]+)m", line)


def test_without_its_colours_the_map_says_the_same() -> None:
    lines = [without_colour(line) for line in heat_map(SCORES, SIGNIFICANT, title="Sel@1, number", chosen=(0, 0))]
    assert lines == [
        "Sel@1, number",
        "      H0     H1     H2",
        "L0 [1.00*] 0.52     -   ",
        "L1  0.00   0.36   0.50  ",
        "    0  the other word   0.5  chance   1  the antecedent",
        "   *  p < .01, corrected for all heads   [ ]  the head chosen on dev",
    ]


def test_cells_are_orange_below_white_at_and_blue_above_chance() -> None:
    lines = heat_map(SCORES, SIGNIFICANT, title="", every_colour=True)
    orange, white, blue = "2;213;94;0", "2;255;255;255", "2;0;114;178"
    assert papers(lines[2])[0] == blue and len(papers(lines[2])) == 2  # a head of which nothing is known has none
    assert papers(lines[3])[0] == orange and papers(lines[3])[2] == white
    nearest = heat_map(SCORES, SIGNIFICANT, title="")
    assert papers(nearest[2])[0] == f"5;{16 + 6 * 1 + 3}"  # 0, 95, 175
    mixed = 16 + 36 * 5 + 6 * 4 + 3  # 255, 215, 175
    assert papers(nearest[3]) == [f"5;{16 + 36 * 4 + 6 * 1 + 0}", f"5;{mixed}", "5;231"]  # the first 215, 95, 0


def test_every_colour_ends_with_its_cell() -> None:
    for line in heat_map(SCORES, SIGNIFICANT, title="Sel@1"):
        assert line.count("\033[0m") == len(papers(line)) and not re.search(r"\033\[[^0][^\033]*$", line)


def test_heads_that_do_not_fit_follow_further_down() -> None:
    lines = [without_colour(line) for line in heat_map([[0.5] * 16] * 2, [[False] * 16] * 2, title="", width=80)]
    assert max(map(len, lines)) <= 80
    assert [line.split() for line in lines if "H" in line] == [
        [f"H{head}" for head in range(11)],
        [f"H{head}" for head in range(11, 16)],
    ]
    assert sum(line.count("0.50") for line in lines) == 32
    assert len(heat_map([[0.5, 0.5]], [[False, False]], title="", width=1)) == 7  # one below the other, never none


def test_a_title_cannot_steer_the_terminal() -> None:
    [title, *_] = heat_map(SCORES, SIGNIFICANT, title="V\033[2J at\nS1\u202e\x07")
    assert title == "V\ufffd[2J at\ufffdS1\ufffd\ufffd"


@pytest.mark.parametrize(
    "stream, environ, wanted",
    [
        (Terminal(), LINUX, True),
        (Terminal(), LINUX | {"NO_COLOR": ""}, True),
        (Terminal(), LINUX | {"NO_COLOR": "0"}, False),
        (Terminal(), {"TERM": "dumb"}, False),
        (Terminal(), {}, False),
        (io.StringIO(), LINUX, False),
    ],
)
def test_colour_is_for_terminals_whose_owner_wants_it(
    stream: io.StringIO, environ: dict[str, str], wanted: bool
) -> None:
    assert has_colour(stream, environ) is wanted


def test_every_colour_is_used_where_the_terminal_says_it_has_them() -> None:
    assert [has_every_colour({"COLORTERM": name}) for name in ("truecolor", "24bit", "")] == [True, True, False]


def test_a_score_beyond_the_ends_has_their_colours() -> None:
    found = [score_colour(score, -2, 0, 4) for score in (-9, -2, 0, 4, 9)]
    assert found == [AGAINST, AGAINST, WHITE, FOR, FOR]
    assert score_colour(2, -2, 0, 4) == (128, 184, 216)  # half way to the end of its own side


def test_text_on_any_colour_has_the_contrast_that_reading_needs() -> None:
    colours = [score_colour(score / 100, 0, 0.5, 1) for score in range(101)]
    assert min(contrast(ink(paper), paper) for paper in colours) >= 4.5
    assert ink(FOR) == WHITE and ink(AGAINST) == ink(WHITE) == (0, 0, 0)


def contrast(one: Colour, other: Colour) -> float:
    """Return the contrast ratio of WCAG 2, 1 to 21."""

    def luminance(colour: Colour) -> float:
        parts = [part / 255 for part in colour]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    lighter, darker = sorted((luminance(one), luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)
