"""Pictures for TensorBoard."""

import numpy as np

from report.tensorboard import ROW, draw_snapshot, head_map, score_colour
from training.metrics import HeadPoint


def colours(image: np.ndarray, row: int) -> list[tuple[int, ...]]:
    """Return the colours of the boxes of a row, from left to right, read at their upper edge."""
    line = [tuple(colour) for colour in image[ROW * (row + 1) + 1].tolist()]
    return [colour for colour, previous in zip(line, [None, *line], strict=False) if colour != previous]


def test_the_head_map_has_in_each_box_the_colour_of_its_score_white_at_chance() -> None:
    white, blue, orange = (255, 255, 255), (0, 114, 178), (213, 94, 0)
    assert [score_colour(score, 0.5, 1.0) for score in (0.5, 1.0, 2.0, 0.0)] == [white, blue, blue, orange]
    scores = np.array([[0.9, 1.0, 0.0], [0.75, 0.25, 0.6]])
    image = head_map(scores, "accuracy", 0.5, 1.0)
    assert image.dtype == np.uint8 and image.shape[0] == 4 * ROW
    for layer, row in enumerate(scores):
        boxes = [colour for colour in colours(image, layer + 1) if colour != white]
        assert boxes == [score_colour(score, 0.5, 1.0) for score in row]


def test_a_snapshot_has_a_map_for_each_measure() -> None:
    point = HeadPoint(0, 1, {"accuracy": [[0.5, 0.9]], "contrast": [[0.0, 1.0]]})
    images = draw_snapshot({"number": point})
    assert set(images) == {"number/accuracy of heads", "number/pronoun contrast of heads"}
    boxes = [colours(image, 1)[-2:] for image in images.values()]
    assert boxes == [[score_colour(0.9, 0.5, 1.0), (255, 255, 255)], [score_colour(1.0, 0.0, 2.0), (255, 255, 255)]]
