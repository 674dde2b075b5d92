"""Measures of heads are their definitions: attention, rules, weights, effects on words, and the model's own answers."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from data.pairs import Items, Pair
from model.observe import SiteEdit, TransformerView
from probe.attention import SET, HeadRows, HeadScores, measure_heads, output_norms
from probe.behaviour import (
    answer_values,
    answer_with_words_shuffled,
    measure_payoffs,
    resolved_share,
    with_words_shuffled,
)
from probe.questions import FRIGHTENED_OR_FEARED
from probe.results import Head
from probe.rules import FIXED_RULES, fit_rules, fixed_offset, most_frequent, score_rules, selectivity
from probe.sentences import TokenizedText, removal_effects, word_attention
from probe.statistics import chosen_again
from probe.weights import type_scores
from tests.planted import KINDS
from tests.probe import factories as made
from tests.tiny_models import random_view

MODEL = TransformerView(made.story_model())


def made_up(words, n_meant):
    """Return a text of 12 tokens with these mentions, the first `n_meant` of them antecedents."""
    tokens = [0, *np.random.default_rng(len(words)).integers(1, 90, size=11).tolist()]
    return made.cell(tokens, (words[0], words[-1]), 0, meant=tuple(words[:n_meant]), other=tuple(words[n_meant:]))


TEXTS = [
    made_up([(3,), (7,)], 1),
    made_up([(4,), (2,), (6, 7, 8), (9,)], 1),
    made_up([(1, 2), (8, 9, 10), (5,), (4,)], 2),
    made_up([(11,), (3, 4)], 1),  # the query is a mention
]


@pytest.mark.parametrize("number", range(len(TEXTS)))
def test_each_field_is_its_definition_on_the_whole_map(number):
    text, row = TEXTS[number], 2 * number
    pairs = [Pair("number", "dev", (each, each), ("", ""), i, ("", "", "")) for i, each in enumerate(TEXTS)]
    rows = measure_heads(MODEL, Items(pairs), tokens_per_batch=30, weighs_values=True).rows
    assert np.isnan(measure_heads(MODEL, Items(pairs), tokens_per_batch=30).rows.value_log_ratio).all()
    meant = [*sum(text.meant, ())]
    other = [*sum(text.other, ())]
    for layer, record in enumerate(MODEL.record(torch.tensor([text.tokens]))):
        for head in range(MODEL.n_head):
            weights = record.scores[0, head, text.query].softmax(-1)
            moved = weights * (record.values[0, head] @ MODEL.output_weights(layer)[head].T).norm(dim=-1)
            best, best_other = (max(weights[[*word]].sum() for word in side) for side in (text.meant, text.other))
            expected = HeadRows(
                log_ratio=(weights[meant].sum() / weights[other].sum()).log(),
                value_log_ratio=(moved[meant].sum() / moved[other].sum()).log(),
                attention_margin=(best / best_other).log(),
                mass=weights[meant + other].sum(),
            )
            for name in HeadRows._fields:
                value = getattr(expected, name).item()
                assert getattr(rows, name)[row, layer, head] == pytest.approx(value, abs=1e-4), name


class WithoutOutputWeights(TransformerView):
    def output_weights(self, layer):
        return None


def test_the_norm_of_a_value_has_the_gate_of_the_query_and_is_unknown_without_output_weights():
    text = TEXTS[0]
    record = MODEL.record(torch.tensor([text.tokens]))[1]
    gate = torch.rand(record.values.shape)
    output = MODEL.output_weights(1)
    places = (torch.tensor([0]), torch.tensor([text.query]), torch.tensor([[[1, 2]]]))
    norms = output_norms(output, record._replace(gate=gate), *places)
    pairs = Items([Pair("number", "dev", (text, text), ("", ""), 0, ("", "", ""))])
    rows = measure_heads(WithoutOutputWeights(MODEL.model), pairs, tokens_per_batch=30, weighs_values=True).rows
    assert np.isnan(rows.value_log_ratio).all() and np.isfinite(rows.log_ratio).all()
    gated = record.values[0, :, 1:3] * gate[0, :, text.query][:, None]  # [H, 2, K]
    torch.testing.assert_close(norms[0, :, 0], torch.einsum("hdk,hpk->hpd", output, gated).norm(dim=-1))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("question", ["number", "gender", "verb"])
def test_a_planted_head_has_the_scores_of_its_habit(kind, question):
    model = TransformerView(made.planted(kind, layer=1, head=2, seed=5))
    scores = measure_heads(model, made.story_pairs("test").of(question, "headline"), 4096).scores()
    expected = {"coreference": (1, 1, 1, 2), "coreference+first": (0.5, 0, 0, 1.5)}.get(kind, (0.5, 0, 0, 0))
    measured = (scores.accuracy, scores.pair_accuracy, scores.block_accuracy, scores.contrast)
    accuracy, *rest = [values.mean(axis=0)[1, 2] for values in measured]
    if question == "verb":  # which no table of words answers; in half of the texts there is a third animal
        assert 0.3 < accuracy <= 0.5 and rest == pytest.approx([0, 0, 0], abs=0.005)
    else:
        assert (accuracy, *rest) == pytest.approx(expected, abs=0.005)


@pytest.mark.parametrize("question", ["number", "gender", "verb"])
def test_only_a_planted_head_is_chosen_again_whatever_items_are_drawn(question):
    dev = made.story_pairs("study").of(question, "dev")

    def share(view):
        scores = measure_heads(view, dev, 4096).scores()
        return chosen_again(scores.keys, dev.designs(len(scores.accuracy))[0], seed=0)

    untrained = [share(made.untrained_view(seed)) for seed in range(6)]
    if question != "verb":  # where all heads are wrong in every block
        assert share(TransformerView(made.planted("coreference", layer=1, head=2, seed=5))) == 1
        assert np.mean(untrained) < 0.6


def test_the_weights_of_heads_are_added_and_subtracted():
    """Weights of .3 and .1 on the antecedent, .1 and .3 on the other mention: together a tie."""
    log_ratio = np.log([[[3.0, 1 / 3]], [[9.0, 1.0]]])
    rows = HeadRows(log_ratio, 0 * log_ratio, 0 * log_ratio, np.array([[[0.4, 0.4]], [[0.5, 0.2]]]))
    of_set = HeadScores(Items([]), rows).with_set([Head(0, 0), Head(0, 1)]).rows
    np.testing.assert_allclose(of_set.attention_margin[:, *SET], [0.0, np.log(0.55 / 0.15)], atol=1e-12)
    assert np.isnan(of_set.value_log_ratio[:, *SET]).all()
    np.testing.assert_allclose(rows.weight_difference(), [[np.mean([0.2, 0.4]), np.mean([0.2, 0.0])]])


DEV = made.story_pairs("study").of("number", "dev")
TEST = made.story_pairs("study").of("number", "iid")
FIRST = DEV.cells[0]


@pytest.mark.parametrize("question", ["number", "gender", "verb"])
def test_over_balanced_blocks_every_rule_scores_one_half(question):
    items = made.story_pairs("study")
    rules = fit_rules(items.of(question, "dev"))
    scores = score_rules(rules, items.of(question, "headline"))
    assert set(rules) == {*FIXED_RULES, "most frequent", "fixed offset"}
    for name in rules:
        accuracy = scores[name].accuracy.mean()
        assert accuracy == 0.5 or (question == "verb" and accuracy < 0.5), name  # a third animal may be preferred
        assert scores[name].block_accuracy.mean() == 0, name


def test_rules_compare_the_best_antecedent_with_the_best_other_mention():
    def with_mentions(meant, other, **changes):
        return replace(FIRST, meant=tuple(meant), other=tuple(other), **changes)

    cell = with_mentions([(3,), (7, 8)], [(5,), (6,), (2,)], subject=(7, 8))
    preferences = {name: rule(cell) for name, rule in FIXED_RULES.items()}
    assert preferences == {"nearest": 1, "first": -1, "subject": 1, "uniform": 0}
    assert FIXED_RULES["subject"](replace(cell, subject=(5,))) == -1

    # The most frequent antecedent of dev; unknown words tie
    frequent, rare = with_mentions([(4,)], [(6,)]), with_mentions([(6,)], [(4,)])
    rule = most_frequent([frequent, frequent, frequent, rare])
    assert [rule(cell) for cell in (frequent, rare, with_mentions([(2,)], [(3,)]))] == [1, -1, 0]

    # The distance that is right most often in dev
    at = FIRST.query
    near, far = with_mentions([(at - 2,)], [(at - 4,)]), with_mentions([(at - 4,)], [(at - 2,)])
    rule = fixed_offset([near, far, far])
    assert [rule(near), rule(far)] == [-1, 1]
    assert [rule(with_mentions([(at - 5,)], [(at - other,)])) for other in (2, 3, 4)] == [1, 0, -1]


def test_a_link_head_has_selectivity_one_half_and_one_that_ranks_words_has_none():
    words = sorted({word for pair in (*DEV.pairs, *TEST.pairs) for word in pair.clusters[1:]})
    rank = dict(zip(words, np.random.default_rng(5).permutation(len(words)), strict=True))

    def heads_of(items, n):
        """Return the first n of a link head, one that always ties, and one that ranks words."""
        rows = []
        for pair in items.pairs:
            first = 1.0 if rank[pair.clusters[1]] > rank[pair.clusters[2]] else -1.0
            rows += [[1.0, 0.0, first], [1.0, 0.0, -first]]
        margin = np.array(rows)[:, None, :n]
        return HeadScores(items, HeadRows(margin, margin, margin, margin))

    dev, test = heads_of(DEV, 2), heads_of(TEST, 2)
    found = [selectivity(dev, test, 7, 5, place) for place in (None, Head(0, 0), Head(0, 1))]
    assert found == [0.5, 0.5, 0.0]  # accuracy 1 or 1/2, on control tasks 1/2
    found = [selectivity(heads_of(DEV, 3), heads_of(TEST, 3), 1, 5, place) for place in (Head(0, 0), Head(0, 2))]
    assert found == [0.0, -0.5]  # the control task may choose any head, and so has 1


def test_a_pure_head_scores_1_in_its_type_and_0_in_the_others():
    """On the start token and seven tokens twice, heads that attend to the key at one distance."""
    maps = torch.stack([torch.eye(15).roll(-distance, dims=1) for distance in (1, 6)])  # [H, T, T]
    scores = {name: score.tolist() for name, score in type_scores(maps.expand(1, 2, 2, 15, 15)).items()}
    assert scores == {"previous": [[1, 0]], "induction": [[0, 1]]}


def test_margins_losses_and_answers_are_those_of_the_whole_texts():
    texts = [text for text in made.story_pairs("test").cells[::53] if text.payoff is not None]
    for margin, loss, text in zip(*measure_payoffs(MODEL, texts, tokens_per_batch=200), texts, strict=True):
        log_p = MODEL.logits(torch.tensor([text.tokens]))[0, text.payoff].log_softmax(-1)
        expected = log_p[list(text.answers)].logsumexp(-1) - log_p[[*text.foils, *text.more_foils]].logsumexp(-1)
        assert margin == pytest.approx(expected.item(), abs=1e-4)
        assert loss == pytest.approx(-log_p[text.target].item(), abs=1e-4)
    items = made.story_pairs("test").of("number", "headline")
    values = answer_values(MODEL, items, made.SETTINGS)
    margins, losses = measure_payoffs(MODEL, items.cells, 4096)
    assert values["answer_accuracy"].value == pytest.approx((margins > 0).mean())
    assert values["resolved_share"].value == pytest.approx((math.log(8) - losses.mean()) / math.log(2), abs=1e-3)


def test_all_words_before_the_query_are_shuffled_and_both_texts_of_a_pair_alike():
    rng = np.random.default_rng(0)
    for pair in made.story_pairs("test").pairs[::7]:
        shuffled = with_words_shuffled(pair, rng)
        for before, after in zip(pair.cells, shuffled.cells, strict=True):
            query = before.query
            assert replace(after, tokens=before.tokens) == before and after.tokens[0] == before.tokens[0]
            assert after.tokens[query:] == before.tokens[query:] and after.tokens[:query] != before.tokens[:query]
            assert sorted(after.tokens) == sorted(before.tokens)
        first, second = (each.tokens[: each.query] for each in shuffled.cells)
        n_changed = sum(a != b for a, b in zip(first, second, strict=True))
        assert n_changed == (pair.question == "verb")  # the verb; otherwise only the pronoun differs


@pytest.mark.parametrize("change", [{"has_word_tokens": False}, {"query": 3}])
def test_words_are_shuffled_only_where_tokens_are_words_at_the_same_places(change):
    items = made.story_pairs("test").of("verb", "headline")
    assert answer_with_words_shuffled(MODEL, items, made.SETTINGS).keys() == {"answer_shuffled"}
    first, second = items.pairs[0].cells
    changed = Items([replace(items.pairs[0], cells=(first, replace(second, **change))), *items.pairs[1:]])
    assert answer_with_words_shuffled(MODEL, changed, made.SETTINGS) == {}


def test_the_resolved_share_is_between_blind_and_bayes():
    four, eight = math.log(4), math.log(8)
    for loss, n_fitting, share in ((four, (4, 4), 1), (eight, (4, 4), 0), (eight / 2, (1, 4), 0.5)):
        cells = [replace(FIRST, n_fitting=n) for n in n_fitting]
        assert resolved_share(np.array([loss - 0.5, loss + 0.5]), cells) == pytest.approx(share, abs=1e-9)
    assert resolved_share(np.ones(2), [FIRST, replace(FIRST, n_fitting=0)]) is None


def test_the_effect_of_a_head_is_the_change_of_the_next_word():
    text = TokenizedText("cats sat", [0, 1, 2, 3], [(0, 3), (3, 4), (4, 8)], [(0, 4), (5, 8)])  # "cat", "s", " sat"
    view = random_view()
    effects = removal_effects(view, text, 1)  # "cats" ends with token 2

    def probabilities(*edits):
        return view.logits(torch.tensor([text.tokens]), edits=edits)[0, 2].softmax(-1)

    for layer, head in np.ndindex(effects.shape):
        after = probabilities(SiteEdit(layer, head, output=torch.zeros_like).at(torch.tensor([2])))  # there only
        assert effects[layer, head] == pytest.approx((after - probabilities()).abs().sum().item() / 2, abs=1e-5)
    assert effects.min() > 0.001 and effects.max() <= 1


def test_an_example_has_the_weights_of_its_nouns_and_the_next_words_after_a_last_query():
    at_the_end = FRIGHTENED_OR_FEARED[0]
    in_the_middle = replace(at_the_end, text=f"{at_the_end.text} purred")
    opened = made.word_model([in_the_middle.text])
    shown = opened.measure_example(in_the_middle, Head(1, 2))
    text = opened.tokenize(in_the_middle.text)
    it, cat, dog = map(text.words.index, ("it", "cat", "dog"))
    row = word_attention(opened.model, text)[1, 2, it]
    assert shown.weights == pytest.approx({"cat": row[cat], "dog": row[dog]})
    assert (shown.word, shown.query, shown.meant, shown.other) == ("it", it, [[cat]], [[dog]])
    assert shown.next == [] and len(opened.measure_example(at_the_end, Head(1, 2)).next) == 3
    assert opened.encode(at_the_end.text) == (opened.bos_id, *opened.tokenize(at_the_end.text).tokens[1:])
