"""A picture shows the weights: where a line goes, how strong it is, and of what colour."""

import numpy as np

from probe.sentences import FOUR_CELLS, Layout
from report.colours import AGAINST, FOR, score_colour
from report.picture import Panel, four_cells, head_map, panel

WORDS = ["(start)", "cat", "buses", "It"]


def drawn(weights: list[float], caption: str = "", words: list[str] = WORDS) -> np.ndarray:
    """One panel, asked at the last word, whose row alone has weights."""
    rows = np.zeros((len(words), len(words)))
    rows[-1, : len(weights)] = weights
    return four_cells([Panel(words, rows, len(words) - 1, 1, 2)], caption).astype(int)


def amount(pixels: np.ndarray, colour: tuple[int, int, int]) -> float:
    """Return how much of a colour stands between the words: 0 white, more the stronger and the wider."""
    between = pixels[48:, 84:128]
    away = np.array([255, 255, 255]) - np.array(colour)
    return float(((255 - between) @ away / (away @ away)).sum())


def test_a_stronger_weight_is_a_stronger_line_in_the_colour_of_what_it_goes_to() -> None:
    nothing, weak, strong = drawn([0, 0, 0]), drawn([0, 0.3, 0]), drawn([0, 0.9, 0])
    assert amount(nothing, FOR) == 0
    assert 0 < 2 * amount(weak, FOR) < amount(strong, FOR)
    against = drawn([0, 0, 0.9])
    meant = (np.abs(strong - FOR).sum(-1) < 60).sum(), (np.abs(against - FOR).sum(-1) < 60).sum()
    other = (np.abs(strong - AGAINST).sum(-1) < 60).sum(), (np.abs(against - AGAINST).sum(-1) < 60).sum()
    assert meant[0] > meant[1] + 50 and other[1] > other[0] + 50


def test_a_line_ends_at_the_word_that_is_looked_at() -> None:
    for place in range(3):
        pixels = drawn([0.9 if i == place else 0 for i in range(3)])
        ends = 255 - pixels[:, 124:127].min(axis=(1, 2))
        assert abs(int(np.argmax(ends)) - (48 + 17 * place + 8)) <= 2


def test_cells_stand_two_to_a_row_and_the_caption_says_what_they_are() -> None:
    one = Panel(WORDS, np.eye(4), 3, 1, 2)
    alone = four_cells([one], "")
    row = np.concatenate([alone] * 2, axis=1)
    assert (four_cells([one] * 4, "") == np.concatenate([row, row[24:]])).all()
    assert (four_cells([one], "step 3")[:20] != 255).any() and (alone[:20] == 255).all()


def test_a_long_word_stays_in_its_panel_and_signs_no_font_has_are_drawn_without_harm() -> None:
    one = Panel(WORDS, np.eye(4), 3, 1, 2)
    hostile = Panel(["(start)", "x" * 10_000, "\u202e\x00<b>\n\U0001f600", "It"], np.eye(4), 0, 3, 0)
    pixels, alone = four_cells([one, hostile, hostile, one], ""), four_cells([one], "")
    height, width = alone.shape[0] - 24, alone.shape[1]
    assert (pixels[: height + 24, :width] == alone).all() and (pixels[-height:, -width:] == alone[24:]).all()


def test_a_panel_names_the_words_of_the_showcase() -> None:
    asked = FOUR_CELLS[1]  # They
    words = ["(start)", *asked.text.replace(",", " ,").replace(".", " .").split()]
    layout = Layout(words, words, list(range(len(words))))
    found = panel(asked, layout, np.eye(len(words)))
    assert (words[found.asked], words[found.antecedent], words[found.distractor]) == ("They", "buses", "cat")


def test_the_map_is_white_at_one_half_blue_above_and_orange_below() -> None:
    def shade(score: float) -> tuple[int, int, int]:
        return score_colour(score, 0, 0.5, 1)

    assert shade(0.5) == (255, 255, 255) and shade(1.0) == FOR == shade(7.0) and shade(0.0) == AGAINST == shade(-1.0)
    scores = np.array([[0.5, 1.0, 0.0], [0.75, 0.5, 0.5]])
    pixels = head_map(scores, scores)
    assert pixels.shape == (18 + 2 * 22, 28 + 3 * 34, 3) and pixels.dtype == np.uint8
    corners = [pixels[18 + 22 * layer + 2, 28 + 34 * head + 2].tolist() for layer in (0, 1) for head in (0, 1, 2)]
    assert [tuple(one) for one in corners] == [shade(float(score)) for score in scores.flatten()]
    assert (head_map(scores, scores) != head_map(scores, -scores)).any()  # the numbers are written
