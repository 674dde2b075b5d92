import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from data.words import word_spans
from model.observe import TransformerView
from probe.sentences import TokenizedText, pack_weights, word_attention
from probe.snapshots import HISTORY_FILE, choose_examples, load_history, snapshot_header
from tests.report.sample import unpacked
from tests.tiny_models import random_view

UNKNOWN = 1


def tokenize(text: str) -> TokenizedText:
    """Return one token per word; "They" is unknown."""
    words = word_spans(text)
    tokens = [0] + [UNKNOWN if word == "They" else 2 + len(word) for word, _ in words]
    spans = [span for _, span in words]
    return TokenizedText(text, tokens, spans, spans)


@pytest.fixture(scope="module")
def view() -> TransformerView:
    return random_view(context_length=23)


@pytest.mark.parametrize(
    ("unknown", "context_length", "endings"),
    [
        (None, 23, ["uses. It", "es. They", " cat. It", "at. They", "as tired", "was soft"]),
        (UNKNOWN, 23, ["uses. It", " cat. It", "as tired", "was soft"]),
        (UNKNOWN, 14, ["uses. It", " cat. It"]),
        (None, 3, []),
    ],
)
def test_examples_without_unknown_tokens_that_fit_the_context_are_chosen_once(
    unknown: int | None, context_length: int, endings: list[str]
) -> None:
    chosen = choose_examples(tokenize, unknown, context_length)
    assert [example.text[-8:] for example, _ in chosen] == endings


def test_a_batch_of_texts_gives_the_attention_of_each_text_alone(view: TransformerView) -> None:
    texts = [text for _, text in choose_examples(tokenize, None, 23)]
    assert len({len(text.tokens) for text in texts}) > 1
    for weights, text in zip(word_attention(view, texts), texts, strict=True):
        np.testing.assert_allclose(weights, word_attention(view, [text])[0], rtol=1e-5, atol=1e-6)


def write_history(path: Path, view: TransformerView) -> Path:
    examples = choose_examples(tokenize, UNKNOWN, 23)
    texts = [text for _, text in examples]
    data = [pack_weights(weights) for weights in word_attention(view, texts)]
    lines = [asdict(snapshot_header(texts, view)), *({"step": step, "data": data} for step in (0, 1, 4))]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_a_history_is_read_back_and_an_incomplete_line_ignored(view: TransformerView, tmp_path: Path) -> None:
    path = write_history(tmp_path / HISTORY_FILE, view)
    history = load_history(path)
    assert history is not None and history.steps == [0, 1, 4]
    examples = choose_examples(tokenize, UNKNOWN, 23)
    assert history.texts == [example.text for example, _ in examples]
    for data, (_, text) in zip(history.data[2], examples, strict=True):
        weights = unpacked(data, (2, 3, len(text.words)))
        np.testing.assert_allclose(weights, word_attention(view, [text])[0], atol=1e-5)
    with path.open("a") as stream:
        stream.write('{"step": 5, "da')
    assert load_history(path) == history


def test_without_a_file_there_is_no_history(tmp_path: Path) -> None:
    assert load_history(tmp_path / HISTORY_FILE) is None


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"version": 3', '"version": 1'),
        ('"step": -1', '"step": 0'),
        ('"step": 4', '"step": 1'),
        ('"step": 4', '"step": 4.5'),
        ('"n_head": 3', '"n_head": 2'),
        ('"data": ["', '"data": ["AAAA'),
        ('"data": ["', '"data": ["!!!!'),
        ('"data": [', '"data": ["AAAA", '),
        ('"words": ["(start)"', '"words": [7'),
        ("{", "["),
    ],
)
def test_a_damaged_history_is_an_error_in_one_line(view: TransformerView, tmp_path: Path, old: str, new: str) -> None:
    path = write_history(tmp_path / HISTORY_FILE, view)
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(ValueError, match=HISTORY_FILE) as error:
        load_history(path)
    assert "\n" not in str(error.value)
