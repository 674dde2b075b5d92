"""Attention as pixels, for TensorBoard: the map of heads, and what one head looks at in the four cells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from probe.sentences import Asked, Layout, by_word
from report.colours import AGAINST, FOR, WHITE, Colour, ink, mixed, score_colour

_INK: Colour = (32, 32, 32)


_PALE: Colour = (110, 110, 110)


_OTHER: Colour = (150, 150, 150)


_FINE = 3  # drawn so many times larger, then reduced: Pillow's own lines have steps


_CELL = (34, 22)  # pixels of a head


_MARGIN = (28, 18)  # pixels for the names of layers, and of heads


_ROW = 17  # pixels of a word


_PANEL = 212  # pixels across


_LEFT, _RIGHT = 80, 132  # where the words end that look, and where those begin that are looked at


_CAPTION = 24  # pixels above the panels


_TITLE = 24  # pixels above the first word of a panel


_ACROSS = 2  # panels to a row: TensorBoard's cards are as wide as two


_LEAST = 0.02  # a weaker line cannot be seen


_LONG = 12  # letters; more of a word would run into the lines


@dataclass(frozen=True, slots=True)
class Panel:
    """A sentence as one head sees it."""

    words: list[str]
    weights: np.ndarray  # [W, W], word that looks, word looked at
    asked: int  # place of the word that is asked
    antecedent: int  # place of the word that is meant
    distractor: int  # place of the other


def panel(asked: Asked, layout: Layout, weights: np.ndarray) -> Panel:
    """Return what a head with the `weights` [T, T] makes of a sentence of the showcase."""
    place = layout.words.index
    weights = by_word(weights, layout)
    return Panel(layout.words, weights, place(asked.word), place(asked.antecedent), place(asked.distractor))


def four_cells(panels: Sequence[Panel], caption: str) -> np.ndarray:
    """Draw sentences, two to a row: left the words that look, right those looked at, a line's strength the weight.

    Args:
        panels: one or more; the row of the asked word in colour, those of the others in grey behind it.
        caption: a line over them all.

    Returns:
        [height, width, 3] uint8.

    """
    height = _TITLE + _ROW * max(len(one.words) for one in panels) + _ROW // 2
    across = min(_ACROSS, len(panels))
    canvas = _Canvas(_PANEL * across, _CAPTION + height * -(-len(panels) // across))
    canvas.text(8, 12, caption, _INK, bold=True)
    for place, one in enumerate(panels):
        row, column = divmod(place, across)
        canvas.left, canvas.top = _PANEL * column, _CAPTION + height * row
        _draw_lines(canvas, one)
        _draw_words(canvas, one)
    return canvas.pixels()


def head_map(shades: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """Draw a score of every head, layers down and heads across, the number in each cell.

    Args:
        shades: [L, H], 0 orange to 1/2 white to 1 blue; what is beyond is drawn as the end.
        numbers: [L, H], what is written.

    Returns:
        [height, width, 3] uint8.

    """
    (n_layer, n_head), (across, down), (left, top) = shades.shape, _CELL, _MARGIN
    canvas = _Canvas(left + across * n_head, top + down * n_layer)
    for head in range(n_head):
        canvas.text(left + across * head + across // 2, top // 2, f"H{head}", _PALE, anchor="mm")
    for layer in range(n_layer):
        canvas.text(left // 2, top + down * layer + down // 2, f"L{layer}", _PALE, anchor="mm")
        for head in range(n_head):
            x, y = left + across * head, top + down * layer
            paper = score_colour(float(shades[layer, head]), 0, 0.5, 1)
            canvas.box(x, y, x + across - 1, y + down - 1, paper)
            canvas.text(x + across // 2, y + down // 2, f"{numbers[layer, head]:.2f}", ink(paper), anchor="mm")
    return canvas.pixels()


def _draw_lines(canvas: _Canvas, one: Panel) -> None:
    """Draw the weakest first, and the asked word's over all others."""
    behind = [(one.weights[i, j], i, j) for i, j in np.ndindex(one.weights.shape) if i != one.asked]
    asked = [(weight, one.asked, j) for j, weight in enumerate(one.weights[one.asked])]
    for weight, i, j in [*sorted(behind), *sorted(asked)]:
        if weight >= _LEAST:
            colour = _colour(one, j) if i == one.asked else _OTHER
            strength = weight if i == one.asked else weight / 2
            ends = (_LEFT + 5, _middle(i), _RIGHT - 5, _middle(j))
            canvas.line(*ends, mixed(WHITE, colour, float(strength)), 1 + 2 * float(weight))


def _draw_words(canvas: _Canvas, one: Panel) -> None:
    weights = one.weights[one.asked]
    title = f"{one.words[one.asked]} -> "
    for place, word in ((one.antecedent, one.words[one.antecedent]), (one.distractor, one.words[one.distractor])):
        x = canvas.width_of(title) if place == one.antecedent else _PANEL // 2 + 20
        canvas.text(8 + x, _TITLE // 3, f"{word} {weights[place]:.2f}", _colour(one, place))
    canvas.text(8, _TITLE // 3, title, _INK)
    for place, word in enumerate(one.words):
        short = word if len(word) <= _LONG else word[: _LONG - 1] + "."
        canvas.text(_LEFT, _middle(place), short, _INK if place == one.asked else _PALE, anchor="rm")
        canvas.text(_RIGHT, _middle(place), short, _colour(one, place), anchor="lm")


def _colour(one: Panel, place: int) -> Colour:
    return {one.antecedent: FOR, one.distractor: AGAINST}.get(place, _PALE)


def _middle(place: int) -> int:
    return _TITLE + _ROW * place + _ROW // 2


class _Canvas:
    """A white picture that is drawn on larger than it is; lengths are those of the finished picture."""

    def __init__(self, width: int, height: int) -> None:
        from PIL import Image, ImageDraw, ImageFont

        self._image = Image.new("RGB", (width * _FINE, height * _FINE), "white")
        self._draw = ImageDraw.Draw(self._image)
        self._font = ImageFont.load_default(12 * _FINE)
        self.left = self.top = 0  # where the panel begins

    def text(self, x: float, y: float, text: str, colour: Colour, *, anchor: str = "lm", bold: bool = False) -> None:
        at = ((self.left + x) * _FINE, (self.top + y) * _FINE)
        self._draw.text(at, text, colour, self._font, anchor, stroke_width=1 if bold else 0)

    def width_of(self, text: str) -> float:
        return self._draw.textlength(text, self._font) / _FINE

    def line(self, x: float, y: float, to_x: float, to_y: float, colour: Colour, width: float) -> None:
        ends = (self.left + x, self.top + y, self.left + to_x, self.top + to_y)
        self._draw.line([one * _FINE for one in ends], colour, round(width * _FINE))

    def box(self, x: float, y: float, to_x: float, to_y: float, colour: Colour) -> None:
        corners = (x * _FINE, y * _FINE, (to_x + 1) * _FINE - 1, (to_y + 1) * _FINE - 1)
        self._draw.rectangle(corners, colour)

    def pixels(self) -> np.ndarray:
        return np.asarray(self._image.reduce(_FINE))
