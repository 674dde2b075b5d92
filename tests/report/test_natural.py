"""report/natural.py and report/next_pronoun.py: sentences about heads in natural text follow from the verdict."""

from dataclasses import replace

import pytest

from probe.results import NaturalQuestion, NaturalResult, NextPronounResult, ShiftResult
from report.natural import natural_claims, natural_lines, natural_tables
from report.next_pronoun import next_pronoun_card, next_pronoun_claim, next_pronoun_tables
from tests.report.sample import filled


def natural(**verdicts: str) -> NaturalResult:
    """Return results with a head for each target."""
    chosen = {}
    for target, verdict in verdicts.items():
        chosen[target] = filled(ShiftResult, verdict=verdict, site="pronoun", layer=1, head=0)
    return NaturalResult({"gender": filled(NaturalQuestion, chosen=chosen)}, ["number: too few"])


def test_claims_about_natural_text_come_strongest_first() -> None:
    claims = natural_claims(natural(father="not established", mother="supported", child="suggestive"))
    assert [verdict for verdict, _ in claims] == ["supported", "suggestive", "not established"]
    assert claims[0][1].startswith("At “she” or “he”, head L1H0 turns to the mother. Contrast 0.500 [0.500, 0.500]")
    assert "may turn to the child" in claims[1][1] and claims[2][1].startswith("No head is shown to turn")


def test_heads_in_natural_text_are_rows_and_missing_questions_a_line() -> None:
    lines = natural_lines(natural(mother="supported"))
    assert lines[1].startswith("gender: candidate for the mother, pronoun  L1H0")
    assert lines[-1:] == natural_lines(natural()) == ["not tested: number: too few"]
    assert [len(natural_tables(each)) for each in (natural(mother="supported"), natural())] == [6, 0]


@pytest.mark.parametrize(
    ("verdict", "unit", "opening"),
    [
        ("supported", "head", "Attention head L100H100 copies the gender of the people it attends to into the next"),
        ("supported", "set", "Heads L100H100 together copy the gender of the people they attend to into the next"),
        ("suggestive", "head", "Attention head L100H100 may copy the gender of"),
        ("not established", "head", "No head is shown to copy the gender of"),
        ("the model does not know", "head", "The model does not know"),
    ],
)
def test_the_claim_about_the_next_pronoun_says_no_more_than_its_verdict(verdict: str, unit: str, opening: str) -> None:
    names = {"question": "next_pronoun_gender", "verdict": verdict, "unit": unit, "evidence_level": "E3"}
    result = filled(NextPronounResult, **names)
    claim = next_pronoun_claim(result)
    assert claim.startswith(opening) and "link" not in claim and "antecedent" not in claim
    assert next_pronoun_card(result).items() >= (names | {"claim": claim}).items()
    assert len(next_pronoun_tables([result])) == 1 + len(next_pronoun_tables([replace(result, after=None)]))
