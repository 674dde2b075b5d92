"""The example questions in docs/questions: whole blocks, with the words where the rows say."""

from pathlib import Path

import pytest

from data.own_items import load_own_question
from tests.program import ROOT


@pytest.mark.parametrize("path", sorted((ROOT / "docs" / "questions").glob("*.jsonl")), ids=lambda path: path.stem)
def test_an_example_has_enough_blocks_and_the_antecedent_of_its_meaning(path: Path) -> None:
    own = load_own_question(path)
    assert own.name == path.stem and path.stat().st_size <= 150_000
    assert (own.n_left_out, own.n_alone) == (0, 0)
    assert min(len(own.dev), len(own.test)) >= 4 * 36
    # Enough for a p below 0.01: 2^-8
    assert len({text.frame for text in own.test}) >= 8
    for side in (0, 1):
        assert len({text.pair.split()[side] for text in own.test}) >= 8
    for text in [*own.dev, *own.test]:
        (link,) = text.links
        assert {text.text[slice(*span)] for span in link.antecedents} == {text.pair.split()[text.meant]}
        assert link.payoff is not None and text.text[slice(*link.payoff)] in link.answers
