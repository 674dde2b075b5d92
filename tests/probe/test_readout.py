"""What is read from a model: the right rows, and nothing it could not know."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from data.links import LinkItem
from model.observe import attention_maps, streams
from model.transformer import Transformer
from probe.baselines import BASELINES, score_baseline
from probe.items import QUESTIONS, asked
from probe.scores import Rows, length_fair, read_margins, read_rows, score
from tests.probe.story_items import MODEL, random_model, rows_of_scores, story_items, vocabulary


@pytest.fixture(scope="module")
def items() -> dict[str, list[LinkItem]]:
    return {split: story_items(split) for split in ("dev", "test")}


@pytest.fixture(scope="module")
def model() -> Transformer:
    return random_model(replace(MODEL, d_model=30))


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


def made_up(words: list[tuple[int, ...]], n_gold: int) -> LinkItem:
    """An item of 12 tokens with these mentions, the first `n_gold` of them antecedents, asked at the last."""
    tokens = (0, *np.random.default_rng(len(words)).integers(1, 90, size=11).tolist())
    place = dict.fromkeys(("family", "level", "site", "holdout", "template", "pair", "text"), "")
    return LinkItem(
        tokens=tokens, query=11, antecedents=tuple(words[:n_gold]), distractors=tuple(words[n_gold:]), subject=None,
        payoff=None, target=None, answers=(), foils=(), surprisal=(), block=0, order=0, meant=0, **place,
    )  # fmt: skip


SHAPES = {
    "one against one": made_up([(3,), (7,)], 1),
    "three distractors, one in pieces": made_up([(4,), (2,), (6, 7, 8), (9,)], 1),
    "two antecedents in pieces": made_up([(1, 2), (8, 9, 10), (5,), (4,)], 2),
    "the query is a mention": made_up([(11,), (3, 4)], 1),
}


@torch.no_grad()
@pytest.mark.parametrize("shape", SHAPES)
def test_every_field_of_a_row_is_what_its_definition_says(model: Transformer, shape: str) -> None:
    """Against the whole map, word by word; read among items of other shapes, so that nothing leaks from one to one."""
    item = SHAPES[shape]
    rows = read_rows(model, list(SHAPES.values()), tokens_per_batch=30).take(np.array([list(SHAPES).index(shape)]))
    stream = streams(model, torch.tensor([item.tokens]))
    for layer, block in enumerate(model.layers()):
        normed = block.norm_1(next(stream))
        weights = block.attention.scores(normed)[0, :, item.query].softmax(-1)  # [H, Tk]
        for head in range(model.config.n_head):
            some = slice(head * 10, head * 10 + 10)
            values = normed[0] @ block.attention.value.weight[some].T @ block.attention.output.weight[:, some].T
            row, moved = weights[head], weights[head] * values.norm(dim=-1)
            found = {name: getattr(rows, name)[0, layer, head] for name in Rows.__dataclass_fields__}
            gold, other = ([*sum(words, ())] for words in (item.antecedents, item.distractors))
            best_gold, best_other = (
                max(row[list(word)].sum().log() for word in words) for words in (item.antecedents, item.distractors)
            )
            expected = {
                "preference": row[gold].sum().log() - row[other].sum().log(),
                "value_preference": moved[gold].sum().log() - moved[other].sum().log(),
                "selects": best_gold - best_other,
                "strict": float(1 + int(row[1:].argmax()) in gold),
                "mass": row[gold + other].sum(),
                "first_mass": row[0],
                "share": row[gold].sum() / (1 - row[0]),
            }
            assert found == pytest.approx({name: float(value) for name, value in expected.items()}, abs=1e-4)


def scored(item: LinkItem, scores: list[float]) -> dict[str, float]:
    rows = rows_of_scores([item], [np.array(scores, dtype=np.float32)])
    return {name: getattr(rows, name).item() for name in Rows.__dataclass_fields__}


def test_the_first_token_takes_nothing_from_the_strict_score_and_everything_else_does() -> None:
    """The first token is largest, then a word that is no candidate, then neither."""
    item = replace(made_up([(1,), (2,)], 1), query=3)
    assert [scored(item, [first, 2, 1, last])["strict"] for first, last in ((9, 0), (0, 3), (0, 0))] == [1, 0, 1]
    assert scored(item, [0, 2, 1, 3])["preference"] == pytest.approx(1)


def test_tied_tokens_share_the_strict_score() -> None:
    """So that a head which looks everywhere alike is not right everywhere."""
    item = replace(made_up([(1,), (2,)], 1), query=4)
    assert scored(item, [0, 0, 0, 0, 0])["strict"] == 0.25
    assert scored(item, [0, 5, 0, 5, 0])["strict"] == 0.5


def test_a_word_is_chosen_by_the_sum_of_its_pieces_and_not_by_the_largest() -> None:
    item = replace(made_up([(1, 2), (3,)], 1), query=4)
    assert scored(item, [0, 1, 1, 1.5, 0])["selects"] == pytest.approx(1 + np.log(2) - 1.5)


def test_a_head_that_moves_nothing_prefers_nothing_by_what_it_moves() -> None:
    item = story_items("test", "agreement", "pronoun")[0]
    rows = read_rows(Transformer(MODEL, len(vocabulary()), seed=0).eval(), [item], 100)
    assert (rows.value_preference == 0).all() and (rows.preference != 0).all()


def test_length_fairness_gives_an_even_head_nothing() -> None:
    some = list(SHAPES.values())
    rows = rows_of_scores(some, [np.zeros(item.query + 1, dtype=np.float32) for item in some])
    np.testing.assert_allclose(rows.preference[2], np.log(5 / 2))
    np.testing.assert_allclose(length_fair(rows.preference, some), 0, atol=1e-6)


def test_how_items_are_batched_changes_nothing(model: Transformer, items: dict) -> None:
    some = items["dev"][:60]
    one, many = read_rows(model, some, tokens_per_batch=1), read_rows(model, some, tokens_per_batch=10**6)
    np.testing.assert_allclose(one.preference, many.preference, atol=1e-5)


def test_the_row_at_it_is_bit_identical_for_the_tired_and_the_soft_twin(model: Transformer, items: dict) -> None:
    """Both have read the same words up to "it": whatever decides stands after it."""
    twins = story_items("test", "later_cue", "pronoun")
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
    twins = story_items("test", "later_cue", "pronoun")
    right = []
    for item in twins[:80]:
        weights = attention_maps(model, torch.tensor([item.tokens]))[:, 0, :, item.query]
        right.append((weights[..., item.antecedents[0][0]] > weights[..., item.distractors[0][0]]).double())
    assert (torch.stack(right).mean(0) == 0.5).all()
    rows = read_rows(model, twins, tokens_per_batch=4096)
    assert (score(rows.preference, rows.selects, rows.strict).accuracy.mean(axis=0) == 0.5).all()


@pytest.mark.parametrize("rule", BASELINES)
def test_rules_that_know_nothing_of_reference_score_exactly_one_half(items: dict, rule: str) -> None:
    """But never more, where other mentions stand by: each of them can only mislead."""
    questions = asked(QUESTIONS, items["test"])
    assert len(questions) == 5
    for question in questions:
        for holdout in {item.holdout for item in items["test"]}:
            some = [item for item in items["test"] if question.picks(item) and item.holdout == holdout]
            if some:
                scores = score_baseline(BASELINES[rule], some)
                assert scores.block_accuracy.mean() == 0
                assert scores.accuracy.mean() == 0.5 or (holdout == "distractors" and scores.accuracy.mean() < 0.5)


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
