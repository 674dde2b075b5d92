import math
from pathlib import Path

import pytest
import torch

from probe.outside.text import documents, measure_text, pieces
from tests.probe.outside.subjects import bpe_subject, word_subject

STORY = "Once upon a time there was a dog.\nIt was small, and it ran.\n"


def test_documents_are_parted_by_lines_that_hold_the_end_alone() -> None:
    assert documents("a\nb\n<|endoftext|>\nc <|endoftext|>\n <|endoftext|> \n") == ["a\nb\n", "c <|endoftext|>\n"]
    assert documents("a") == ["a"]


def test_pieces_joined_are_the_document() -> None:
    text = "a line of text\n" * 20_000 + "and a last one"
    some = list(pieces(text))
    assert "".join(some) == text and len(some) > 3 and all(one.endswith("\n") for one in some[:-1])


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


def test_an_empty_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("\n \n")
    with pytest.raises(ValueError, match="a.txt is empty"):
        measure_text(word_subject(["a"]), str(tmp_path))
    (tmp_path / "a.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="not UTF-8"):
        measure_text(word_subject(["a"]), str(tmp_path))
