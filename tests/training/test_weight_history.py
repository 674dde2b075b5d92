from base64 import b64decode
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.tiny_models import random_model
from training.logging import JsonLines
from training.weight_history import HISTORY_FILE, load_weight_history, pack_parameters

MODEL = random_model()
N_WEIGHTS = sum(parameter.numel() for parameter in MODEL.parameters())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    lines = JsonLines(tmp_path / HISTORY_FILE, -1)
    for step in (0, 1, 4):
        lines.write(step, {"weights": pack_parameters(MODEL, torch.float16)})
    lines.close()
    return tmp_path / HISTORY_FILE


@pytest.mark.parametrize(("kind", "name"), [(torch.float32, "<f4"), (torch.float16, "<f2")])
def test_weights_are_packed_in_the_order_of_the_model(kind: torch.dtype, name: str) -> None:
    numbers = np.frombuffer(b64decode(pack_parameters(MODEL, kind)), name)
    expected = np.concatenate([parameter.detach().numpy().ravel() for parameter in MODEL.parameters()])
    np.testing.assert_array_equal(numbers, expected.astype(name))


def test_a_history_is_read_back_without_an_incomplete_line(path: Path) -> None:
    with path.open("a") as stream:
        stream.write('{"step": 5, "we')
    history = load_weight_history(path, N_WEIGHTS)
    assert history is not None and history.steps == [0, 1, 4]
    assert history.data == [pack_parameters(MODEL, torch.float16)] * 3


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"step": 4', '"step": 1'),
        ('"step": 4', '"step": 4.5'),
        ('"weights": "', '"weights": "AAAA'),
        ('"weights": "', '"weights": "!!!!'),
        ('"weights"', '"other"'),
        ("{", "["),
    ],
)
def test_a_damaged_history_is_an_error_in_one_line(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(ValueError, match=HISTORY_FILE) as error:
        load_weight_history(path, N_WEIGHTS)
    assert "\n" not in str(error.value)
