"""The film is the model's own attention, of every text that can be read, and damage is told in one line."""

import json
from base64 import b64decode
from pathlib import Path

import numpy as np
import pytest

from data.stories.lint import word_spans
from model.config import ModelConfig
from model.transformer import Transformer
from probe.sentences import Sentence, view
from probe.snapshots import FILM, choose_film, frame, read_film, shoot
from tests.model.standard import PLAIN

UNKNOWN = 1


def cut(text: str) -> Sentence:
    """One token a word; "They" cannot be written."""
    some = word_spans(text)
    ids = [0] + [UNKNOWN if word == "They" else 2 + len(word) for word, _ in some]
    return Sentence(ids, [span for _, span in some], some)


@pytest.fixture(scope="module")
def model() -> Transformer:
    config = ModelConfig(n_layer=2, n_head=3, d_model=30, d_mlp=41, context_length=23, **PLAIN)
    return Transformer(config, vocab_size=17, seed=0).eval()


def test_every_text_is_filmed_once_that_can_be_written_and_fits() -> None:
    assert [one.text[-8:] for one in choose_film(cut, None, 23).asked] == [
        "uses. It", "es. They", " cat. It", "at. They", "as tired", "was soft",
    ]  # fmt: skip
    assert [one.text[-8:] for one in choose_film(cut, UNKNOWN, 23).asked] == [
        "uses. It", " cat. It", "as tired", "was soft",
    ]  # fmt: skip
    assert [one.text[-8:] for one in choose_film(cut, UNKNOWN, 14).asked] == ["uses. It", " cat. It"]
    assert choose_film(cut, None, 3).asked == ()


def test_sentences_read_together_give_what_each_gives_alone(model: Transformer) -> None:
    film = choose_film(cut, None, 23)
    assert len({len(one.ids) for one in film.sentences}) > 1
    for weights, sentence in zip(shoot(model, film), film.sentences, strict=True):
        np.testing.assert_allclose(weights, view(model, sentence), atol=1e-6)


def written(path: Path, model: Transformer) -> Path:
    film = choose_film(cut, UNKNOWN, 23)
    lines = [{"step": -1, **film.header(2, 3)}, *({"step": step, **frame(shoot(model, film))} for step in (0, 1, 4))]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_a_film_comes_back_as_it_was_taken(model: Transformer, tmp_path: Path) -> None:
    path = written(tmp_path / FILM, model)
    found = read_film(path)
    assert found is not None and found["steps"] == [0, 1, 4] and (found["n_layer"], found["n_head"]) == (2, 3)
    film = choose_film(cut, UNKNOWN, 23)
    assert [one["text"] for one in found["texts"]] == [one.text for one in film.asked]
    for data, text, weights in zip(found["data"][2], found["texts"], shoot(model, film), strict=True):
        length = len(text["pieces"])
        packed = np.frombuffer(b64decode(data), np.uint8).reshape(2, 3, length * (length + 1) // 2)
        np.testing.assert_allclose(packed / 255, weights[..., *np.tril_indices(length)], atol=0.5 / 255)
    with path.open("a") as stream:
        stream.write('{"step": 5, "da')  # being written
    assert read_film(path) == found


def test_where_nothing_was_filmed_there_is_no_film(tmp_path: Path) -> None:
    assert read_film(tmp_path / FILM) is None


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"version": 1', '"version": 2'),
        ('"step": -1', '"step": 0'),
        ('"step": 4', '"step": 1'),  # twice
        ('"step": 4', '"step": 4.5'),
        ('"n_head": 3', '"n_head": 2'),
        ('"data": ["', '"data": ["AAAA'),
        ('"data": ["', '"data": ["!!!!'),
        ('"data": [', '"data": ["AAAA", '),
        ('"owner": [0', '"owner": [99'),
        ('"pieces": ["(start)"', '"pieces": [7'),
        ("{", "["),
    ],
)
def test_a_damaged_film_is_one_line(model: Transformer, tmp_path: Path, old: str, new: str) -> None:
    path = written(tmp_path / FILM, model)
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(ValueError, match="is damaged") as caught:
        read_film(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\n", b"3\n", b"null\n", b'{"step": -1}\n', b"[" * 5000 + b"\n"])
def test_what_is_no_film_is_one_line(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILM).write_bytes(content)
    with pytest.raises(ValueError, match="is damaged"):
        read_film(tmp_path / FILM)
