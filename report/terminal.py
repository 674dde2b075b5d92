"""A map of the heads in characters, for a terminal that has colour."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from probe.verdict import MAX_P
from report.colours import Colour, ink, score_colour

_CELL = 7  # characters to a head: "[0.87*]"


_BOUNDS = (0.0, 0.5, 1.0)  # Sel@1 of full orange, white and full blue


_STEPS = (0, 95, 135, 175, 215, 255)  # how much red, green or blue the colours 16 to 231 of a terminal have


_PLAIN = "\033[0m"


class Stream(Protocol):
    """What may be a terminal."""

    def isatty(self) -> bool:
        """Whether it is one."""
        ...


def has_colour(stream: Stream, environ: Mapping[str, str]) -> bool:
    """Whether colours may be written to `stream`: a terminal, which is not dumb, and nobody has set NO_COLOR.

    Args:
        stream: as sys.stdout.
        environ: as os.environ. NO_COLOR counts whatever it is set to, but not empty (https://no-color.org).

    """
    return stream.isatty() and not environ.get("NO_COLOR") and environ.get("TERM", "dumb") not in ("", "dumb")


def has_every_colour(environ: Mapping[str, str]) -> bool:
    """Whether the terminal says that it has 24-bit colour and not just the usual 256."""
    return environ.get("COLORTERM") in ("truecolor", "24bit")


def heat_map(
    scores: Sequence[Sequence[float | None]],
    significant: Sequence[Sequence[bool]],
    *,
    title: str,
    chosen: tuple[int, int] | None = None,
    width: int = 80,
    every_colour: bool = False,
) -> list[str]:
    """Draw Sel@1 of every head, layers down and heads across, as lines with colours in them.

    The number stands in every cell, a star beside it where it is significant and brackets around the chosen head, so
    that nothing is said by colour alone. Heads that do not fit into `width` follow further down.

    Args:
        scores: [L][H], 0 to 1; None where not known.
        significant: [L][H].
        title: what the score is of; characters that would steer a terminal are taken out.
        chosen: layer and head.
        width: of the terminal, in characters.
        every_colour: 24-bit colour; else the nearest of 256.

    """
    margin = len(f"L{len(scores) - 1} ")
    across = max(1, (width - margin) // _CELL)
    lines = [printable(title)]
    for first in range(0, len(scores[0]), across):
        heads = range(first, min(first + across, len(scores[0])))
        lines.append(" " * margin + "".join(f"H{head}".center(_CELL) for head in heads).rstrip())
        for layer, row in enumerate(scores):
            cells = [
                _cell(row[head], significant[layer][head], (layer, head) == chosen, every_colour) for head in heads
            ]
            lines.append(f"L{layer}".ljust(margin) + "".join(cells))
    return [*lines, *_legend(margin, every_colour)]


def _cell(score: float | None, significant: bool, chosen: bool, every_colour: bool) -> str:
    text = "-".center(_CELL - 2) if score is None else f"{score:.2f}".rjust(4) + ("*" if significant else " ")
    text = f"[{text}]" if chosen else f" {text} "
    return text if score is None else _painted(text, score_colour(score, *_BOUNDS), every_colour)


def _legend(margin: int, every_colour: bool) -> list[str]:
    named = zip(_BOUNDS, ("the other word", "chance", "the antecedent"), strict=True)
    patches = [
        f"{_painted(f' {value:g} ', score_colour(value, *_BOUNDS), every_colour)} {name}" for value, name in named
    ]
    return [
        " " * margin + "  ".join(patches),
        " " * margin + f"*  p < {f'{MAX_P:.2f}'[1:]}, corrected for all heads   [ ]  the head chosen on dev",
    ]


def _painted(text: str, paper: Colour, every_colour: bool) -> str:
    """Return `text` on `paper`, in black or white: the terminal's own colours may be dark or light."""
    if not every_colour:
        paper = _nearest(paper)
    return f"{_code(48, paper, every_colour)}{_code(38, ink(paper), every_colour)}{text}{_PLAIN}"


def _code(place: int, colour: Colour, every_colour: bool) -> str:
    red, green, blue = colour
    if every_colour:
        return f"\033[{place};2;{red};{green};{blue}m"
    index = 16 + 36 * _STEPS.index(red) + 6 * _STEPS.index(green) + _STEPS.index(blue)
    return f"\033[{place};5;{index}m"


def _nearest(colour: Colour) -> Colour:
    """Return the nearest of the 216 colours that every terminal of 256 mixes alike."""
    red, green, blue = (min(_STEPS, key=lambda step: abs(step - part)) for part in colour)
    return red, green, blue


def printable(text: str) -> str:
    """Return `text` in which nothing steers a terminal, whatever it holds."""
    return "".join(character if character.isprintable() else "\ufffd" for character in text)
