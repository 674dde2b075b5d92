"""What may be said follows from what was measured, one criterion at a time, and the card says nothing else."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from probe.claim import claim_card, claim_markdown, read_card, readme_example
from probe.verdict import CRITERIA, Evidence, Interval, evidence_of, finite, judge

ROOT = Path(__file__).parents[2]
CARD = ROOT / "docs" / "claim_card.json"  # what the benchmark writes; README's example is made from it

STRONG = Evidence(
    p_pair_accuracy=0.0005,
    p_pronoun_contrast=0.0005,
    smallest_p=0.0005,
    n_clusters=13,
    over_best=(0.3, 0.5),
    selectivity=0.5,
    attention_swap=0.7,
    edge_specificity=(0.2, 0.4),
    linked_mass=0.8,
    unlinked_mass=0.1,
    previous=0.05,
    induction=0.02,
    preference=2.0,
    norm_preference=1.5,
)
# One way to miss each criterion, with what the reason must say of it.
MISSES: dict[str, tuple[dict[str, float | Interval], str]] = {
    "flips": ({"p_pronoun_contrast": 0.02}, "0.02 on DD"),
    "beats baselines": ({"over_best": (-0.01, 0.5)}, "-0.01"),
    "selective": ({"selectivity": 0.15}, "0.15"),
    "causal edge": ({"edge_specificity": (-0.3, 0.4)}, "-0.3"),
    "rests": ({"unlinked_mass": 0.4}, "0.5"),
}


def test_all_five_support_a_head_and_no_reason_is_left() -> None:
    verdict = judge(STRONG)
    assert (verdict.word, verdict.level, verdict.reasons) == ("supported", "E3", ())
    assert [one.name for one in verdict.criteria] == list(MISSES)
    assert len(CRITERIA) == 5


@pytest.mark.parametrize("name", list(MISSES))
def test_one_missed_criterion_is_named_with_its_number(name: str) -> None:
    change, says = MISSES[name]
    verdict = judge(replace(STRONG, **change))
    assert verdict.word == "suggestive"
    assert [one.name for one in verdict.criteria if not one.passed] == [name]
    assert len(verdict.reasons) == 1 and says in verdict.reasons[0]


@pytest.mark.parametrize("n_missed", range(6))
def test_five_of_five_support_and_what_does_not_tell_apart_suggests_nothing(n_missed: int) -> None:
    changes = [change for change, _ in list(MISSES.values())[:n_missed]]
    verdict = judge(replace(STRONG, **{name: value for change in changes for name, value in change.items()}))
    # MISSES begins with the two that say the head tells antecedents apart: without them nothing is suggested.
    assert verdict.word == ["supported", "suggestive", *["not established"] * 4][n_missed]
    assert len(verdict.reasons) == n_missed


@pytest.mark.parametrize("n_missed", range(6))
def test_two_of_five_suggest(n_missed: int) -> None:
    changes = [change for change, _ in list(MISSES.values())[::-1][:n_missed]]
    verdict = judge(replace(STRONG, **{name: value for change in changes for name, value in change.items()}))
    assert verdict.word == ["supported", *["suggestive"] * 3, *["not established"] * 2][n_missed]


def test_either_p_and_either_part_of_the_edge_is_enough_to_miss() -> None:
    assert not judge(replace(STRONG, p_pair_accuracy=0.01)).criteria[0].passed
    assert not judge(replace(STRONG, attention_swap=0.2)).criteria[3].passed


@pytest.mark.parametrize("change", [{"previous": 0.41}, {"induction": 0.5}, {"norm_preference": -0.1}])
def test_another_type_or_values_that_disagree_leave_no_claim_whatever_else_is_there(change: dict[str, float]) -> None:
    verdict = judge(replace(STRONG, **change))
    assert (verdict.word, verdict.level) == ("not established", "E0")
    assert verdict.reasons[0].startswith("no claim: ")
    assert all(one.passed for one in verdict.criteria)


def test_what_was_not_measured_or_is_no_number_did_not_pass() -> None:
    nothing = dict.fromkeys(
        "p_pair_accuracy p_pronoun_contrast over_best selectivity attention_swap edge_specificity linked_mass unlinked_mass previous induction "
        "preference norm_preference".split()
    )
    for empty in (
        replace(STRONG, **nothing),
        replace(
            STRONG,
            p_pair_accuracy=np.nan,
            over_best=(np.nan, np.nan),
            selectivity=np.nan,
            attention_swap=np.nan,
            linked_mass=0,
        ),
    ):
        verdict = judge(empty)
        assert (verdict.word, verdict.level) == ("not established", "E0")
        assert len(verdict.reasons) == 5 and all("not measured" in reason for reason in verdict.reasons)


def test_few_words_are_named_as_the_reason_that_no_p_could_be_reached() -> None:
    few = judge(replace(STRONG, p_pair_accuracy=1 / 64, p_pronoun_contrast=1 / 64, smallest_p=1 / 64, n_clusters=6))
    assert "cannot be reached with 6 clusters" in few.reasons[0]
    assert "cannot" not in judge(replace(STRONG, p_pair_accuracy=0.5)).reasons[0]


def test_levels_build_on_each_other() -> None:
    whole = replace(STRONG, denoising=0.8, ov_auc=(0.7, 0.9), n_seeds=5, n_seeds_supported=4)
    assert judge(whole).level == "E4"
    for level, change in {
        "E3": {"n_seeds_supported": 3},
        "E2": {"attention_swap": 0.1},
        "E1": {"p_pair_accuracy": 0.3},
        "E0": {"over_best": (0, 0.2)},
    }.items():
        assert judge(replace(whole, **change)).level == level
    for lacking in ({"denoising": 0.5}, {"denoising": None}, {"ov_auc": (0.5, 0.9)}, {"n_seeds": 4}):
        assert judge(replace(whole, **lacking)).level == "E3"


def test_only_what_json_can_hold_is_written() -> None:
    kept = finite({"a": np.array([1.0, np.nan]), "b": (np.int64(3), float("inf")), 5: [np.float32(0.5)], "d": "x"})
    assert kept == {"a": [1.0, None], "b": [3, None], "5": [0.5], "d": "x"}
    json.dumps(finite(judge(replace(STRONG, p_pair_accuracy=np.nan)).entry()), allow_nan=False)


def entry(**changes: Any) -> dict[str, Any]:
    """Return an entry of probe.json's `selected` that is as strong as STRONG."""
    found = {
        "n_items": 188,
        "clusters": {"templates": 29, "first_words": 13, "second_words": 17, "pairs": 43},
        "accuracy": 0.9876,
        "accuracy_interval": [0.961, 1.0],
        "pair_accuracy": 0.95,
        "block_accuracy": 0.9,
        "lambda": 2.0,
        "pronoun_contrast": 2.0,
        "value_weighted_contrast": 1.5,
        "p_pair_accuracy": 0.0005,
        "p_pronoun_contrast": 0.0005,
        "smallest_p": 0.0005,
        "best_baseline": {"name": "nearest", "accuracy": 0.5, "difference_interval": [0.461, 0.5]},
        "untrained": {"n_models": 11, "accuracy": 0.47, "accuracy_interval": [0.4, 0.54]},
    }
    one = {
        "question": "number",
        "family": "agreement",
        "site": "pronoun",
        "layer": 1,
        "head": 2,
        "test": {"headline": found},
        "selectivity": 0.49,
        "coreference_share": 0.93,
        "head_type": {"previous": 0.05, "induction": 0.02},
        "mass": {"linked": 0.8, "unlinked": 0.1},
        "causal": {"attention_swap": 0.7, "edge_specificity": 0.3, "edge_specificity_interval": [0.2, 0.4]},
        "weights": {},
    } | changes
    return one | judge(evidence_of(one, "headline")).entry()


def test_evidence_is_gathered_from_probe_json() -> None:
    expected = replace(STRONG, over_best=[0.461, 0.5], selectivity=0.49, edge_specificity=[0.2, 0.4])
    assert evidence_of(entry(), "headline") == expected
    bare = evidence_of({"test": {}}, "headline")
    assert judge(bare).word == "not established"
    replicated = evidence_of(entry(), "headline", {"n": 7, "n_supported": 5})
    assert (replicated.n_seeds, replicated.n_seeds_supported) == (7, 5)


def test_a_supported_claim_says_what_where_and_beside_what() -> None:
    card = claim_card(entry(), {"n_layer": 2}, "headline")
    assert card["claim"] == (
        "Head L1H2 links a pronoun to its antecedent (number): supported, E3 (its edge is causal). It prefers the "
        "antecedent in 98.8 % [96.1, 100.0] of 188 items whose nouns training never let a pronoun mean, in frames it "
        "never used; the best that knows nothing (nearest) in 50.0 %, untrained models in 47.0 %."
    )
    assert "one seed, where 5 are needed" in " ".join(card["does_not_show"])
    assert "13 first words" in card["does_not_show"][-1] and "how rare failures are" not in str(card)
    flawless = entry()
    flawless["test"]["headline"] |= {"accuracy": 1.0, "accuracy_interval": [1.0, 1.0]}
    assert "how rare failures are" in " ".join(claim_card(flawless, {}, "headline")["does_not_show"])
    shifted = claim_card(entry(), {"token_shift": True}, "headline")["does_not_show"]
    assert set(shifted) - set(card["does_not_show"]) == {
        "that a head fetches the word before: model.token_shift hands it to every place without one"
    }


def test_a_null_result_is_worded_as_one() -> None:
    card = claim_card(entry(selectivity=0.0, causal=None, mass={}, head_type={"previous": 0.9}), {}, "headline")
    assert card["claim"].startswith("No head is shown to link a pronoun to its antecedent (number): not established")
    assert card["claim"].endswith("Criteria missed: selective. Criteria not measured: causal edge, rests.")
    assert any("attention alone is no cause" in one for one in card["does_not_show"])
    assert "previous-token head" in claim_markdown(card)


def test_a_criterion_without_a_measurement_is_not_said_to_be_missed() -> None:
    card = claim_card(entry(selectivity=0.0, causal=None), {}, "headline")
    last = {row.split(" | ")[0][2:]: row.split(" | ")[-1] for row in claim_markdown(card).splitlines()}
    unknown = {one["name"] for one in card["criteria"] if None in one["measured"].values()}
    missed = {one["name"] for one in card["criteria"] if not one["passed"]} - unknown
    assert unknown and missed and not any(one["passed"] for one in card["criteria"] if one["name"] in unknown)
    assert {last[name] for name in unknown} == {"not measured |"} and {last[name] for name in missed} == {"missed |"}


def test_words_are_made_from_the_card_alone(tmp_path: Path) -> None:
    """A card that went through a file gives the same Markdown, and other numbers give another."""
    card = claim_card(entry(), {}, "headline", {"n": 5, "n_supported": 4})
    path = tmp_path / "card.json"
    path.write_text(json.dumps(card, allow_nan=False))
    read = read_card(path)
    assert claim_markdown(read) == claim_markdown(card) and readme_example(read) == readme_example(card)
    for shown in ("0.988 [0.961, 1.000]", "0.0005 on F2", "4 of 5 supported", "13 first words", "0.300 [0.200, 0.400]"):
        assert shown in claim_markdown(card)
    read["scores"]["accuracy"] = 0.5
    assert readme_example(read) != readme_example(card)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"card_version": 99}'])
def test_a_damaged_card_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "card.json").write_text(text)
    with pytest.raises(ValueError, match="claim card"):
        read_card(tmp_path / "card.json")


@pytest.mark.skipif(not CARD.exists(), reason="no card has been measured yet")
def test_the_readme_shows_the_card_that_was_measured() -> None:
    card = read_card(CARD)
    _, opening, rest = (ROOT / "README.md").read_text().partition("<!-- claim -->\n")
    shown, closing, _ = rest.partition("<!-- end -->")
    assert opening and closing
    assert shown.strip("\n") == readme_example(card)
