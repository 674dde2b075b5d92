"""The probe during training: what it reads, when, and what its curves say of when a head came."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from data.config import StoriesConfig
from data.links import ORACLES, LinkItem
from model.config import ModelConfig
from model.transformer import Transformer
from probe.behaviour import oracle_losses, read_losses, rho, surprisals
from probe.emergence import choose_items, crossing, glimpse, is_phase_change, timing, type_maxima
from probe.items import QUESTIONS, asked
from tests.model.standard import PLAIN
from tests.probe.story_items import CONFIG, FULL, story_items
from training.evaluate import token_losses

BLIND, BAYES = ORACLES.index("blind"), ORACLES.index("bayes")


def block(number: int, family: str = "agreement", site: str = "pronoun", **changes: object) -> list[LinkItem]:
    """Four cells: 0, two mentions in both orders, then the pronoun 5 or 6; the payoff comes at once."""
    cells = []
    for order in (0, 1):
        for meant in (0, 1):
            first = order == meant
            item = LinkItem(
                tokens=(0, 1 + number % 3, *((10, 11) if order == 0 else (11, 10)), 20 + number % 7, 5 + meant),
                query=5, antecedents=((2,) if first else (3,),), distractors=((3,) if first else (2,),), subject=None,
                payoff=5, target=30 + meant, answers=(30,), foils=(31,), surprisal=(), family=family, level="number",
                site=site, holdout="iid", template=f"t{number % 3}", pair=f"a{number % 2} b{number % 5}",
                block=number, order=order, meant=meant, text="",
            )  # fmt: skip
            cells.append(replace(item, **changes))
    return cells


def blocks(n: int, first: int = 0, **changes: object) -> list[LinkItem]:
    return [item for number in range(first, first + n) for item in block(number, **changes)]


@pytest.fixture(scope="module")
def model() -> Transformer:
    config = ModelConfig(n_layer=2, n_head=3, d_model=18, d_mlp=23, context_length=31, **PLAIN)
    return Transformer(config, 41, seed=3).eval()


def test_every_question_that_is_watched_is_read_in_whole_blocks_of_equal_number() -> None:
    """Left out: parts of another question, sites where nothing is decided, nothing meant, and another hold-out."""
    items = blocks(11, 0) + blocks(7, 100, level="gender") + blocks(13, 200, family="attribute", level="before")
    items += blocks(5, 300, family="no_antecedent", level="no_antecedent", antecedents=()) + blocks(
        5, 400, family="later_cue", level="later_cue", site="pronoun"
    )
    items += blocks(9, 500, site="before_pronoun") + blocks(
        9, 600, family="attribute", level="before", site="before_repeat"
    )
    items += blocks(5, 700, family="plural", level="plural", holdout="headline")
    chosen = choose_items(items, 93)
    assert {name: len(some) for name, some in chosen.items()} == {"number": 28, "attribute_before": 28}
    for some in chosen.values():
        assert [(item.order, item.meant) for item in some] == [(0, 0), (0, 1), (1, 0), (1, 1)] * 7
        assert [item.block for item in some[::4]] == [item.block for item in some[3::4]]
    assert {item.level for item in chosen["number"]} == {"number", "gender"}  # spread over the whole, not its beginning


def test_a_story_that_asks_several_questions_is_read_for_each() -> None:
    also = {"family": "later_cue", "level": "later_cue", "site": "cue", "query": 4, "payoff": None}
    items = [link for item in blocks(2) for link in (item, replace(item, **also))]
    chosen = choose_items(items, 16)
    assert {name: [item.query for item in some] for name, some in chosen.items()} == {
        "number": [5] * 8,
        "later_cue": [4] * 8,
    }


def test_blocks_that_are_not_whole_are_refused() -> None:
    with pytest.raises(ValueError, match="whole blocks"):
        choose_items(blocks(3)[:-1], 12)


@pytest.mark.parametrize("config", [CONFIG, FULL], ids=["default mix", "every family"])
def test_of_real_stories_every_watched_question_is_read_on_dev(config: StoriesConfig) -> None:
    items = story_items("dev", config=config)
    chosen = choose_items(items, 80)
    watched = [question for question in asked(QUESTIONS, items) if question.watched]
    assert list(chosen) == [question.curve for question in watched] and 1 < len(chosen) <= 20
    for question in watched:
        some = chosen[question.curve]
        assert all(question.picks(item) and item.holdout == "iid" for item in some)
        assert len(some) % 4 == 0 and 0 < len(some) <= 80 // len(watched)


def test_losses_are_those_of_the_target_at_the_payoff(model: Transformer) -> None:
    items = blocks(3) + [replace(item, payoff=None, target=None) for item in block(7)] + blocks(2, 8, payoff=3)
    losses = read_losses(model, items, tokens_per_batch=17)
    assert np.isnan(losses[12:16]).all()
    for loss, item in zip(losses, items, strict=True):
        if item.payoff is not None:
            logits = model(torch.tensor([item.tokens]))[:, item.payoff]
            assert loss == pytest.approx(token_losses(logits[None], torch.tensor([[item.target]])).item(), abs=1e-5)


def test_rho_is_0_for_the_blind_1_for_the_best_and_below_0_for_the_misled() -> None:
    known = np.arange(3 * len(ORACLES), dtype=float).reshape(3, -1)
    known[:, BLIND], known[:, BAYES] = (3.0, 2.5, 2.0), (1.0, 2.0, 1.5)
    assert rho(known[:, BLIND], known) == pytest.approx(0)
    assert rho(known[:, BAYES], known) == pytest.approx(1)
    assert rho(known[:, BLIND] + 0.5, known) == pytest.approx(-0.5)
    assert oracle_losses(known)["blind"] == pytest.approx(2.5)


def test_without_oracles_there_is_no_rho() -> None:
    items = blocks(2)
    assert rho(np.ones(8), surprisals(items)) is None and oracle_losses(surprisals(items)) == {}
    assert rho(np.ones(8), np.ones((8, len(ORACLES)))) is None  # knowing the antecedent changes nothing


def test_a_glimpse_keeps_every_head_and_stands_beside_the_oracles(model: Transformer) -> None:
    surprisal = tuple(float(i) for i in range(len(ORACLES)))
    items = {"number": blocks(6, surprisal=surprisal), "later_cue": blocks(5, payoff=None, target=None)}
    before = torch.get_rng_state()
    seen, unread = glimpse(model, items, tokens_per_batch=64)
    assert torch.equal(before, torch.get_rng_state())
    record = seen.record()
    own, payoff = record["number"], record["V_S1_payoff"]
    assert np.shape(own["accuracy_heads"]) == np.shape(own["pronoun_contrast_heads"]) == (2, 3)
    assert own["accuracy"] == pytest.approx(own["accuracy_heads"][own["layer"]][own["head"]], abs=1e-4)
    assert own["pronoun_contrast"] == pytest.approx(own["pronoun_contrast_heads"][own["layer"]][own["head"]], abs=1e-4)
    assert payoff == {
        "model": pytest.approx(read_losses(model, items["number"], 99).mean()),
        **dict(zip(ORACLES, surprisal, strict=True)),
    }
    assert own["rho"] == pytest.approx((surprisal[BLIND] - payoff["model"]) / (surprisal[BLIND] - surprisal[BAYES]))
    assert set(unread.record()) == {"later_cue"} and "rho" not in unread.record()["later_cue"]


def test_maxima_are_taken_over_all_heads(model: Transformer) -> None:
    found = type_maxima(model, first_token=0)
    assert {"previous", "first", "induction"} <= set(found) and all(0 <= value <= 1 for value in found.values())


STEPS = [0, 1, 2, 4, 8, 16, 32, 64, 100]


def test_a_straight_line_crosses_each_share_at_that_share_of_its_way() -> None:
    rising = [3.0 + 2.0 * step for step in STEPS]
    for share in (0.0, 0.1, 0.5, 0.9, 1.0):
        assert crossing(STEPS, rising, share) == pytest.approx(100 * share)
        assert crossing(STEPS, [-value for value in rising], share) == pytest.approx(100 * share)
    assert timing(STEPS, rising) == pytest.approx({"t10": 10, "t50": 50, "t90": 90, "width": 0.8})


def test_a_curve_goes_from_the_value_of_knowing_nothing_to_its_end() -> None:
    values = [0.75, 0.5, 0.5, 0.5, 0.5, 0.6, 0.8, 1.0, 0.9]
    assert crossing(STEPS, values, 0.5, floor=0.5) == 0  # the first time counts, even by luck
    assert crossing(STEPS, values[1:], 0.5, floor=0.5, ceiling=1.0) == crossing(STEPS, values[1:], 0.5, 0.5, 1.0)
    assert crossing(STEPS[1:], values[1:], 0.5, floor=0.5) == pytest.approx(16 + 16 * 0.5)
    assert crossing(STEPS[1:], values[1:], 0.5, floor=0.5, ceiling=1.1) == pytest.approx(32)


def test_a_curve_that_never_gets_there_has_no_time() -> None:
    assert crossing(STEPS, [0.0] * 9, 0.5) is None
    assert crossing([], [], 0.5) is None
    never = timing(STEPS, [0.1 * i for i in range(9)], floor=0, ceiling=5)
    assert never == {"t10": pytest.approx(16), "t50": None, "t90": None, "width": None}


def test_a_phase_change_is_sudden_in_every_seed() -> None:
    assert is_phase_change([0.05, 0.099]) is True
    assert is_phase_change([0.05, 0.1]) is False
    assert is_phase_change([0.05, None]) is False
    assert is_phase_change([0.05]) is False  # one seed is none
