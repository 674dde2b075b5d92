"""antecedent_lab/sources.py: questions for a model, and items that it cannot read."""

from dataclasses import replace
from pathlib import Path

import pytest

from antecedent_lab.sources import check_items, source_of
from data.own_file import load_question
from data.pairs import Cell, Items, Pair
from probe.config import ProbeConfig
from probe.opened_model import OpenedModel
from tests.probe.factories import word_model
from tests.program import ROOT


@pytest.fixture
def opened() -> OpenedModel:
    return word_model(["a b c d e"], context_length=8)


def items_of(*cells: Cell) -> Items:
    pair = Pair("q", "dev", (cells[0], cells[-1]), ("", ""), 0, ("f", "a", "b"))
    return Items([pair])


CELL = Cell(tokens=(0, 2, 3, 4, 5), query=4, meant=((2,),), other=((3,),), answers=(2,), foils=(3,), payoff=4, target=2)


def test_items_of_an_external_model_are_read_with_warnings_or_refused(opened: OpenedModel) -> None:
    assert check_items(opened, items_of(CELL)) == []
    assert opened.unknown is not None
    unanswered = replace(CELL, payoff=None, tokens=(0, opened.unknown, 3, 4, 5), has_lost_answer=True)
    warnings = check_items(opened, items_of(CELL, unanswered))
    assert "10.0%" in warnings[0] and "In 1 of 2 texts" in warnings[1]
    with pytest.raises(ValueError, match="reads 8 tokens, but the sentences need 11"):
        check_items(opened, items_of(replace(CELL, tokens=CELL.tokens * 2)))
    with pytest.raises(ValueError, match="writes token 99"):
        check_items(opened, items_of(replace(CELL, foils=(99,))))


def test_english_text_is_cut_into_documents_and_asked_about_its_pronouns(tmp_path: Path) -> None:
    (tmp_path / "a b.txt").write_text("Lily met Tom. She ran home.\n" * 3)
    opened = word_model(["Lily met Tom . She He ran home"])
    source = source_of(opened, ProbeConfig(), "", path=str(tmp_path / "a b.txt"))
    assert source.name == "a b" and [text for _, text in source.documents][0].startswith("Lily met Tom.")
    assert {question.outcome for question in source.questions} == {"edge"}


@pytest.mark.parametrize("path", sorted((ROOT / "docs" / "questions").glob("*.jsonl")), ids=lambda path: path.stem)
def test_an_example_question_has_enough_blocks_and_the_antecedent_of_its_meaning(path: Path) -> None:
    own = load_question(path)
    assert own.name == path.stem and path.stat().st_size <= 150_000
    assert own.n_left_out == 0 and min(len(own.dev), len(own.test)) >= 4 * 36
    # Enough for a p below 0.01: 2^-8
    assert len({text.frame for text in own.test}) >= 8
    for side in (0, 1):
        assert len({text.pair.split()[side] for text in own.test}) >= 8
    for text in [*own.dev, *own.test]:
        (link,) = text.links
        assert {text.text[slice(*span)] for span in link.antecedents} == {text.pair.split()[text.meant]}
        assert link.payoff is not None and text.text[slice(*link.payoff)] in link.answers

    # A model with its words can be asked.
    opened = word_model([text.text for text in [*own.dev, *own.test]])
    source = source_of(opened, ProbeConfig(), "", own_file=str(path))
    assert source.items.has_blocks and len(source.items) == (len(own.dev) + len(own.test)) // 2
    assert [question.link for question in source.questions] == [own.link]
