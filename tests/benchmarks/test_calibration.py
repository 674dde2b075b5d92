"""The calibration: labels drawn by lot, models that know nothing, and what is counted of them."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.calibration import (
    MEMBER,
    PAGE,
    RESULTS,
    TURNED,
    Case,
    calibrate,
    cases,
    fewer_pairs,
    lines_of,
    probe,
    shuffled,
    standard_config,
    summarise,
    summary,
    untrained,
    write_table,
)
from data.links import LinkItem
from model.transformer import Transformer
from probe.interventions import pair_up
from probe.scores import check_blocks, read_rows, score
from probe.study import HEADLINE
from tests.probe.story_items import MODEL, planted, random_model, story_items, vocabulary


@pytest.fixture(scope="module")
def items() -> list[LinkItem]:
    return [item for item in story_items("test", "agreement", "pronoun") if item.holdout == HEADLINE]


def gold(item: LinkItem) -> tuple[int, ...]:
    """Return the ids of the word that is called the antecedent."""
    return tuple(item.tokens[place] for word in item.antecedents for place in word)


def groups(items: list[LinkItem]) -> dict[tuple[str, str], list[int]]:
    found: dict[tuple[str, str], list[int]] = {}
    for i, item in enumerate(items):
        found.setdefault((item.pair, item.template), []).append(i)
    return found


@pytest.mark.parametrize("labels", [TURNED, MEMBER])
def test_shuffled_labels_depend_on_the_seed_alone_and_leave_whole_blocks_of_the_same_texts(items, labels) -> None:
    one, again, other = (shuffled(items, seed, labels) for seed in (3, 3, 4))
    assert one == again != other
    check_blocks(one)
    for before, after in zip(np.reshape(items, (-1, 2)), np.reshape(one, (-1, 2)), strict=True):
        assert {item.text for item in after} == {item.text for item in before}


def test_turned_labels_swap_everything_in_all_four_cells_or_nothing(items: list[LinkItem]) -> None:
    found = shuffled(items, 3)
    real = {(item.text, item.block): item for item in items}
    turned = []
    for index in groups(items).values():
        swapped = {gold(found[i]) != gold(real[found[i].text, found[i].block]) for i in index}
        assert len(swapped) == 1
        turned += swapped
        for i in index:
            before = real[found[i].text, found[i].block]
            sides = (before.antecedents, before.distractors), (before.answers, before.foils)
            expected = tuple(side[::-1] if turned[-1] else side for side in sides)
            assert ((found[i].antecedents, found[i].distractors), (found[i].answers, found[i].foils)) == expected
    assert 0.25 < np.mean(turned) < 0.75
    words = {(item.pair, item.meant): gold(item) for item in items}
    assert all(gold(item) == words[item.pair, item.meant] for item in found)  # each cell in the place of what it means
    assert pair_up(found) == pair_up(items)  # causes can still be asked for


def test_member_labels_call_one_word_gold_whatever_the_pronoun(items: list[LinkItem]) -> None:
    found = shuffled(items, 3, MEMBER)
    members = []
    for index in groups(items).values():
        assert len({gold(found[i]) for i in index}) == 1
        members.append(gold(found[index[0]]) == gold(items[index[0]]))
    assert 0.25 < np.mean(members) < 0.75
    assert not pair_up(found)[0]


def test_items_that_mean_nothing_are_never_relabelled() -> None:
    nothing = story_items("test", "no_antecedent")
    assert nothing and shuffled(nothing, 0) == nothing == shuffled(nothing, 0, MEMBER)


def test_a_link_head_is_right_on_the_groups_that_were_not_turned_and_in_half_of_any_member(items) -> None:
    model = planted("coreference")
    for labels, block_accuracy in ((TURNED, None), (MEMBER, 0)):
        found = shuffled(items, 5, labels)
        rows = read_rows(model, found, 4096)
        scores = score(rows.preference, rows.selects, rows.strict)
        kept = np.mean([one == another for one, another in zip(items[::4], found[::4], strict=True)])
        assert scores.block_accuracy[:, 0, 0].mean() == (kept if block_accuracy is None else block_accuracy)
        assert scores.accuracy[:, 0, 0].mean() == (kept if block_accuracy is None else 0.5)


def test_untrained_models_are_the_trainers_start_or_as_large_as_a_trained_one() -> None:
    trained = random_model()
    start, drawn, other = untrained(trained, 7, False), untrained(trained, 7, True), untrained(trained, 8, True)
    fresh = Transformer(MODEL, trained.vocab_size, 7)
    assert all(torch.equal(a, b) for a, b in zip(start.parameters(), fresh.parameters(), strict=True))
    for name, parameter in drawn.named_parameters():
        its = trained.get_parameter(name)
        if parameter.ndim == 2:
            assert parameter.square().mean().sqrt().item() == pytest.approx(its.square().mean().sqrt().item(), rel=0.1)
            assert not torch.equal(parameter, its) and not torch.equal(parameter, other.get_parameter(name))


def test_fewer_pairs_keep_whole_blocks_of_every_frame_and_change_from_frame_to_frame(items: list[LinkItem]) -> None:
    some = fewer_pairs(items, 1)
    check_blocks(some)
    assert len(some) == 4 * len({(item.level, item.template) for item in items})
    first_blocks = {item.template: item.block for item in reversed(items)}
    assert any(item.block != first_blocks[item.template] for item in some)
    assert fewer_pairs(items, 99) == items


def entry(verdict: str, passed: list[str], at_place: bool = True, p: float = 0.5) -> dict:
    return {
        "verdict": verdict,
        "passed": passed,
        "at_place": at_place,
        "p_pair_accuracy": 1.0,
        "p_pronoun_contrast": p,
        "accuracy": 0.5,
    }


def test_a_summary_counts_verdicts_places_and_which_criterion_alone_was_in_the_way() -> None:
    every = ["flips", "beats baselines", "selective", "causal edge", "rests"]
    found = summary(
        [
            entry("supported", every, p=0.001),
            entry("supported", every, at_place=False),
            entry("suggestive", every[:4], p=0.04),
            entry("not established", []),
            entry("not established", every),  # barred: a head of another type
        ]
    )
    assert (found["n"], found["supported"], found["supported_at_place"], found["suggestive"]) == (5, 2, 1, 1)
    assert found["passed"] == dict.fromkeys(every[:4], 4) | {"rests": 3}
    assert found["all_but"] == dict.fromkeys(every[:4], 3) | {"rests": 4}
    assert found["supported_interval"] == pytest.approx((0.0527, 0.8534), abs=1e-4)  # Clopper & Pearson, 2 of 5
    assert found["smallest_p"] == {"pair_accuracy": 1.0, "pronoun_contrast": 0.001} and found["p_below_5_percent"] == {
        "pair_accuracy": 0,
        "pronoun_contrast": 2,
    }


def test_every_group_goes_the_whole_way_and_the_table_lands_between_its_markers(tmp_path: Path) -> None:
    dev = fewer_pairs([item for item in story_items("dev") if item.holdout == "iid"], 1)
    test = fewer_pairs([item for item in story_items("test") if item.holdout == HEADLINE], 1)
    dev, test = (
        [one for one in some if (one.family, one.site) in (("agreement", "pronoun"), ("no_antecedent", "pronoun"))]
        for some in (dev, test)
    )
    counts = {"n_untrained": 2, "n_shuffled": 2, "n_planted": 3}
    every = calibrate(cases([random_model()], vocabulary(), dev, test, counts, 0), standard_config(), print)
    assert [len(some) for some in every.values()] == [1, 1, 2, 1, 3, 1]
    results = {"groups": summarise(every), "n_items": {"dev": 1, "test": 1}, "seconds": {"wall": 1, "processor": 1}}
    write_table(tmp_path / "calibration.json", lines_of(results))
    before, _, rest = (tmp_path / "calibration.md").read_text().partition("<!-- calibration -->\n")
    table = rest.partition("<!-- end -->")[0].splitlines()
    assert before.startswith("#") and table == lines_of(results)
    assert len({line.count("|") for line in table if line.startswith("|")}) == 1


def test_a_planted_link_head_meets_all_five_criteria_in_its_place_and_another_habit_does_not() -> None:
    dev = [item for item in story_items("dev", "agreement", "pronoun") if item.holdout == "iid"]
    test = [one for one in story_items("test", site="pronoun") if one.family in "VN" and one.holdout == HEADLINE]
    for kind, passed in (("coreference", 5), ("singular", 0)):
        case = Case(planted(kind, layer=1, head=2, strength=1.0), dev, test, place=(1, 2))
        found = probe(case, standard_config())["number"]
        assert (len(found["passed"]) == 5) == (passed == 5)
        assert (found["verdict"] == "supported") == (passed == 5)
        assert found["at_place"] or not passed  # a habit's head may be the one that dev chooses, and is called nothing


def test_the_table_in_the_documents_is_that_of_the_results() -> None:
    table = "\n".join(lines_of(json.loads(RESULTS.read_text())))
    pages = [page for page in (PAGE, RESULTS.with_suffix(".md")) if page.exists()]
    assert any(f"<!-- calibration -->\n{table}\n<!-- end -->" in page.read_text() for page in pages)
