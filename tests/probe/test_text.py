import math
from pathlib import Path

import pytest
import torch

from probe.text_measure import measure_text
from tests.probe.subjects import bpe_subject, word_subject

STORY = "Once upon a time there was a dog.\nIt was small, and it ran.\n"


def test_bits_per_byte_are_those_of_every_token_by_hand(tmp_path: Path) -> None:
    subject = bpe_subject([STORY], context_length=16)
    (tmp_path / "a.txt").write_text(STORY)
    report = measure_text(subject, str(tmp_path / "a.txt"))
    ids = [subject.end, *subject.encode(STORY)[0]]
    nats = 0.0
    for first in range(0, len(ids) - 1, 16):
        window = ids[first : first + 17]
        with torch.no_grad():
            logs = subject.model(torch.tensor([window[:-1]])).log_softmax(-1)[0]
        nats -= sum(float(logs[i, token]) for i, token in enumerate(window[1:]))
    (found,) = report.results["files"]
    assert found["n_tokens"] == len(ids) - 1 and found["n_bytes"] == len(STORY)
    assert found["nats_per_token"] == pytest.approx(nats / (len(ids) - 1), rel=1e-5)
    assert found["bits_per_byte"] == pytest.approx(nats / math.log(2) / len(STORY), rel=1e-5)


def test_unknown_words_are_counted_and_said_to_flatter(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a cat saw a dog")
    report = measure_text(word_subject(["a dog saw"]), str(tmp_path))
    cover = report.results["files"][0]["coverage"]
    assert cover["seen_words"] == 4 / 5 and cover["unknown_tokens"] == pytest.approx(1 / 6)
    assert any("flatters" in line for line in report.markdown)


def test_spaces_that_a_tokenizer_loses_are_said_to_flatter_too(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a dog\n\nsaw")
    of_words = measure_text(word_subject(["a dog saw"]), str(tmp_path))
    assert of_words.results["files"][0]["coverage"]["unknown_tokens"] == 0
    assert any("does not give the text back" in line for line in of_words.markdown)
    assert not any("flatters" in line for line in measure_text(bpe_subject([STORY]), str(tmp_path)).markdown)


def test_each_document_has_an_end_before_it_and_each_file_its_own_row(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a dog\n<|endoftext|>\na dog saw\n")
    (tmp_path / "b.jsonl").write_text('{"text": "saw"}\n')
    found = measure_text(word_subject(["a dog saw"]), str(tmp_path)).results["files"]
    assert [Path(one["file"]).name for one in found] == ["a.txt", "b.jsonl"]
    assert [one["n_tokens"] for one in found] == [6, 1]  # two words and three, an END before each, the first not told


def test_a_file_without_text_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("")
    with pytest.raises(ValueError, match="a.txt holds no text"):
        measure_text(word_subject(["a"]), str(tmp_path))
    with pytest.raises(FileNotFoundError, match="^path: no text found at"):
        measure_text(word_subject(["a"]), str(tmp_path / "none"))
