"""Pictures and scores for TensorBoard."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from probe.sentences import FOUR_CELLS
from report.tensorboard import (
    CELL,
    LINE,
    draw_snapshot,
    four_cells,
    head_map,
    score_colour,
    write_scores,
)
from tests.report.sample import tokenized


def entry(question: str, accuracy: float, swap: float | None) -> dict:
    tested = {"headline": {"accuracy": accuracy, "block_accuracy": accuracy / 2}}
    return {"question": question, "test": tested, "causal": None if swap is None else {"attention_swap": swap}}


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    events = EventAccumulator(str(folder)).Reload()
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


@pytest.mark.parametrize(
    ("value", "colour"), [(0.5, (255, 255, 255)), (1.0, (0, 114, 178)), (2.0, (0, 114, 178)), (0.0, (213, 94, 0))]
)
def test_scores_are_white_at_chance_blue_above_and_orange_below(value: float, colour: tuple) -> None:
    assert score_colour(value, 0.5, 1.0) == colour


def test_the_head_map_has_the_colour_of_each_score_in_its_cell() -> None:
    scores = np.array([[0.5, 1.0, 0.0], [0.75, 0.25, 0.6]])
    image = head_map(scores)
    assert image.shape == (CELL[1] * 3, CELL[0] * 4, 3) and image.dtype == np.uint8
    for (layer, head), score in np.ndenumerate(scores):
        corner = image[CELL[1] * (layer + 1) + 1, CELL[0] * (head + 1) + 1]
        assert tuple(corner) == score_colour(score, 0.5, 1.0)


def test_the_antecedent_is_shaded_blue_and_the_distractor_orange() -> None:
    words = tokenized(FOUR_CELLS[0].text).words
    weights = np.array([0.5 * (word in ("cat", "buses")) for word in words])
    image = four_cells([(FOUR_CELLS[0], words, weights)], "caption")
    colours = {tuple(colour) for colour in image[LINE + 3].tolist()}
    assert colours == {(255, 255, 255), score_colour(0.75, 0.5, 1.0), (234, 174, 128)}


def test_a_snapshot_has_two_maps_per_question_and_the_four_cells() -> None:
    reading = SimpleNamespace(
        name="number", layer=0, head=1, accuracy=np.zeros((1, 2)), pronoun_contrast=np.zeros((1, 2))
    )
    words = tokenized(FOUR_CELLS[0].text).words
    images = draw_snapshot([reading], [(FOUR_CELLS[0], words, np.zeros((1, 2, len(words), len(words))))])
    assert set(images) == {"number/accuracy of heads", "number/pronoun contrast of heads", "four cells/best head"}


def test_scores_of_a_probe_replace_those_of_the_probe_before(tmp_path: Path) -> None:
    write_scores(tmp_path, 5, [entry("number", 0.5, 0.1)], "headline")
    write_scores(tmp_path, 10, [entry("number", 0.8, None)], "headline")
    shown = scalars(tmp_path / "tb")
    assert shown == {
        "probe/accuracy number": [(10, pytest.approx(0.8))],
        "probe/block_accuracy number": [(10, pytest.approx(0.4))],
    }
