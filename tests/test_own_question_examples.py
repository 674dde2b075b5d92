"""The example questions: whole blocks, with the words where the rows say."""

import json
from pathlib import Path

import pytest

from benchmarks.own_questions import QUESTIONS
from data.own_items import load_own_question


@pytest.mark.parametrize(("name", "first"), [("induction", "lamp"), ("er_sie", "Hund")])
def test_an_example_has_enough_blocks_and_the_antecedent_of_its_meaning(name: str, first: str, tmp_path: Path) -> None:
    path = tmp_path / f"{name}.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in QUESTIONS[name]()))
    own = load_own_question(path)
    assert own.name == name and min(len(own.dev), len(own.test)) >= 4 * 40
    assert len({text.frame for text in own.test}) >= 4 and len({text.pair for text in own.test}) >= 8
    for text in [*own.dev, *own.test]:
        (link,) = text.links
        (antecedent,) = link.antecedents
        assert text.text[slice(*antecedent)] == text.pair.split()[text.meant]
        assert antecedent[1] <= link.query[0]
    assert any(first in text.text for text in [*own.dev, *own.test])
