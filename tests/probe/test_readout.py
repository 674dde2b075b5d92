"""What is read from a model: the right rows, and nothing it could not know."""

import numpy as np
import pytest
import torch

from data.links import LinkItem, link_items
from data.stories import load_stories
from data.tokenizer import end_id, word_tokenizer
from model.config import ModelConfig
from model.transformer import Transformer, attention_maps
from probe.baselines import BASELINES, score_baseline
from probe.config import ProbeConfig
from probe.emergence import choose_items, glimpse
from probe.readout import _read, read_margins, read_rows
from probe.report import heads_csv, heat_map, items_jsonl, table
from probe.scores import score
from probe.study import QUESTIONS, UNREADABLE, Reading, study
from tests.data.test_stories import CONFIG


@pytest.fixture(scope="module")
def items() -> dict[str, list[LinkItem]]:
    stories = load_stories(CONFIG)
    tokenizer = word_tokenizer(stories["train"][:]["text"])
    return {split: link_items(stories[split], tokenizer, end_id(tokenizer)) for split in ("dev", "test")}


@pytest.fixture(scope="module")
def model(items: dict) -> Transformer:
    """Random weights with nothing zero, so that every layer mixes what it reads."""
    config = ModelConfig(
        n_layer=2, n_head=3, d_model=30, d_mlp=41, context_length=64, rope_theta=1e4, norm_eps=1e-5, dropout=0.0
    )
    model = Transformer(config, 1 + max(max(item.tokens) for some in items.values() for item in some) + 200, seed=0)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.normal_(0, 0.3, generator=generator)
    return model.eval()


def only(items: list[LinkItem], family: str, site: str) -> list[LinkItem]:
    return [item for item in items if item.family == family and item.site == site]


def test_rows_are_those_of_the_whole_map(model: Transformer, items: dict) -> None:
    some = items["test"][::97]
    rows = read_rows(model, some, tokens_per_batch=100)
    for i, item in enumerate(some):
        maps = attention_maps(model, torch.tensor([item.tokens]))[:, 0, :, item.query].detach().numpy()  # [L, H, Tk]
        mass = maps[..., [*sum(item.antecedents + item.distractors, ())]].sum(-1)
        np.testing.assert_allclose(rows.mass[i], mass, atol=1e-5)
        np.testing.assert_allclose(rows.first_mass[i], maps[..., 0], atol=1e-5)
        if item.antecedents:
            gold, other = (maps[..., list(sum(words, ()))].sum(-1) for words in (item.antecedents, item.distractors))
            np.testing.assert_allclose(rows.preference[i], np.log(gold) - np.log(other), atol=1e-4)
            largest = maps[..., 1 : item.query + 1].argmax(-1) + 1
            np.testing.assert_array_equal(rows.strict[i], np.isin(largest, sum(item.antecedents, ())))


def test_the_first_token_takes_nothing_from_the_strict_score_and_everything_else_does() -> None:
    """Scores [B=3, L=1, H=1, Tk=4]: the first token is largest, then a word that is no candidate, then neither."""
    scores = torch.tensor([[9.0, 2.0, 1.0, 0.0], [0.0, 2.0, 1.0, 3.0], [0.0, 2.0, 1.0, 0.0]]).view(3, 1, 1, 4)
    gold, other = (torch.tensor([i == place for i in range(4)]).expand(3, 1, 1, 4) for place in (1, 2))
    found = _read(scores, gold, other)
    assert found["strict"].flatten().tolist() == [1, 0, 1]
    assert found["preference"].flatten().tolist() == pytest.approx([1, 1, 1])
    assert found["first_mass"].flatten()[0].item() == pytest.approx(scores.flatten(1).softmax(-1)[0, 0].item())


def test_how_items_are_batched_changes_nothing(model: Transformer, items: dict) -> None:
    some = items["dev"][:60]
    one, many = read_rows(model, some, tokens_per_batch=1), read_rows(model, some, tokens_per_batch=10**6)
    np.testing.assert_allclose(one.preference, many.preference, atol=1e-5)


def test_the_row_at_it_is_bit_identical_for_the_tired_and_the_soft_twin(model: Transformer, items: dict) -> None:
    """Both have read the same words up to "it": whatever decides stands after it."""
    twins = only(items["test"], "R", "S1")
    rows = read_rows(model, twins, tokens_per_batch=4096)
    assert len(twins) >= 100
    for i in range(0, len(twins), 2):
        assert twins[i].antecedents == twins[i + 1].distractors
        assert twins[i].tokens != twins[i + 1].tokens  # the whole texts, with what decides
        maps = [attention_maps(model, torch.tensor([one.tokens]))[..., one.query, :] for one in twins[i : i + 2]]
        assert torch.equal(*maps)
        assert (rows.selects[i] == -rows.selects[i + 1]).all()


def test_accuracy_pooled_over_tired_and_soft_is_exactly_one_half_for_every_head(
    model: Transformer, items: dict
) -> None:
    """Read from the whole texts, each on its own, and through the readout: the same."""
    twins = only(items["test"], "R", "S1")
    right = []
    for item in twins[:80]:
        weights = attention_maps(model, torch.tensor([item.tokens]))[:, 0, :, item.query]
        right.append((weights[..., item.antecedents[0][0]] > weights[..., item.distractors[0][0]]).double())
    assert (torch.stack(right).mean(0) == 0.5).all()
    rows = read_rows(model, twins, tokens_per_batch=4096)
    assert (score(rows.preference, rows.selects, rows.strict).sel1.mean(axis=0) == 0.5).all()


@pytest.mark.parametrize("rule", BASELINES)
def test_rules_that_know_nothing_of_reference_score_exactly_one_half(items: dict, rule: str) -> None:
    for question in QUESTIONS:
        reading = Reading(items["test"], rows=None)
        for holdout in reading.holdouts(question):
            some = [items["test"][i] for i in reading.index(question, holdout)]
            scores = score_baseline(BASELINES[rule], some)
            assert scores.sel1.mean() == 0.5 and scores.f4.mean() == 0


def test_margins_compare_the_right_words_at_the_right_place(model: Transformer, items: dict) -> None:
    some = items["test"][::53]
    margins = read_margins(model, some, tokens_per_batch=200)
    for margin, item in zip(margins, some, strict=True):
        if item.payoff is None:
            assert np.isnan(margin)
        else:
            chances = model(torch.tensor([item.tokens]))[0, item.payoff].softmax(-1)
            right, wrong = chances[list(item.answers)].sum(), chances[list(item.foils)].sum()
            assert margin == pytest.approx((right.log() - wrong.log()).item(), abs=1e-4)


def test_a_study_names_a_head_for_every_question_and_random_weights_stay_within_luck(
    model: Transformer, items: dict
) -> None:
    config = ProbeConfig(seed=0, tokens_per_batch=4096, n_bootstrap=200, n_untrained=2)
    blank = [Transformer(model.config, model.vocab_size, seed=i).eval() for i in (5, 6)]
    results, readings = study(model, blank, items["dev"], items["test"], config)
    assert [one["question"] for one in results["selected"]] == [question.name for question in QUESTIONS]
    for one in results["selected"]:
        assert set(one["test"]) == {"iid", "pairs", "nouns", "templates", "headline"}
        for found in one["test"].values():
            low, high = found["sel1_interval"]
            assert low <= found["sel1"] <= high
            assert found["sel1"] < 0.9
    text = "\n".join(table(results))
    assert "V at S1" in text and "untrained" in text
    lines = heads_csv(readings).splitlines()
    n_questions_and_holdouts = sum(len(r.holdouts(q)) for r in readings.values() for q in (*QUESTIONS, UNREADABLE))
    assert len(lines) == 1 + 6 * n_questions_and_holdouts
    asked = [item for item in items["test"] if QUESTIONS[0].picks(item) or QUESTIONS[3].picks(item)]
    assert len(items_jsonl(results, readings["test"]).splitlines()) == len(asked)


def test_a_glimpse_reads_whole_blocks_of_dev_alone(model: Transformer, items: dict) -> None:
    chosen = choose_items(items["dev"], 200)
    assert set(chosen) == {"V_S1", "R_S2"}
    assert all(item.holdout == "iid" and len(some) % 4 == 0 for some in chosen.values() for item in some)
    for one in glimpse(model, chosen, tokens_per_batch=2048):
        assert one.heads.shape == (2, 3) and 0.5 < one.luck < 1


def test_the_map_is_white_at_one_half_red_above_and_blue_below() -> None:
    pixels = heat_map(np.array([[0.5, 1.0], [0.0, 0.75]]))
    assert pixels.shape == (48, 48, 3) and pixels.dtype == np.uint8
    assert pixels[0, 0].tolist() == [255, 255, 255]
    assert pixels[0, 47].tolist() == [255, 0, 0]
    assert pixels[47, 0].tolist() == [0, 0, 255]
    assert pixels[47, 47].tolist() == [255, 127, 127]
