"""Pictures for TensorBoard."""

import numpy as np

from probe.sentences import EXAMPLE_BLOCK
from report.tensorboard import ROW, draw_snapshot, head_map, score_colour
from tests.report.sample import tokenized
from training.metrics import HeadPoint


def colours(image: np.ndarray, row: int) -> list[tuple[int, ...]]:
    """Return the colours of the boxes of a row, from left to right, read at their upper edge."""
    line = [tuple(colour) for colour in image[ROW * (row + 1) + 1].tolist()]
    return [colour for colour, previous in zip(line, [None, *line], strict=False) if colour != previous]


def test_the_head_map_has_in_each_box_the_colour_of_its_score_white_at_chance() -> None:
    white, blue, orange = (255, 255, 255), (0, 114, 178), (213, 94, 0)
    assert [score_colour(score, 0.5, 1.0) for score in (0.5, 1.0, 2.0, 0.0)] == [white, blue, blue, orange]
    scores = np.array([[0.9, 1.0, 0.0], [0.75, 0.25, 0.6]])
    image = head_map(scores, "accuracy")
    assert image.dtype == np.uint8 and image.shape[0] == 4 * ROW
    for layer, row in enumerate(scores):
        boxes = [colour for colour in colours(image, layer + 1) if colour != white]
        assert boxes == [score_colour(score, 0.5, 1.0) for score in row]


def test_a_snapshot_has_a_map_for_each_measure_and_the_example_block() -> None:
    point = HeadPoint(0, 1, {"accuracy": [[0.5, 0.9]], "contrast": [[0.0, 1.0]]})
    words = tokenized(EXAMPLE_BLOCK[0].text).words
    weights = np.zeros((1, 2, len(words), len(words)))
    weights[0, 1, -1] = [0.5 * (word in ("cat", "buses")) for word in words]
    images = draw_snapshot({"number": point}, [(EXAMPLE_BLOCK[0], words, weights)])
    assert set(images) == {"number/accuracy of heads", "number/pronoun contrast of heads", "example block/best head"}
    blue_and_orange = {score_colour(0.75, 0.5, 1.0), (234, 174, 128)}  # antecedent and distractor
    assert set(colours(images["example block/best head"], 0)) == {(255, 255, 255), *blue_and_orange}
