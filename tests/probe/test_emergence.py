"""The probe during training reads the same items at every step."""

import re
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from data.corpus import Corpus, load_corpus
from data.pairs import Items
from model.config import Mask
from model.transformer import Transformer
from probe.attention import best_head, measure_heads
from probe.behaviour import measure_payoffs, resolved_share
from probe.edits import measure_margins
from probe.emergence import choose_items, measure_attention, measure_edges, training_probe
from probe.results import Head
from tests.data.small_corpora import NO_SHARES, SMALL, text_config
from tests.probe.factories import block_of, cell, copying_model, documents, passage_items, story_pairs, untrained_view
from tests.tiny_models import config, make_uniform


def test_questions_get_equal_numbers_of_blocks_spread_evenly() -> None:
    """Left out: undecided sites, texts without an antecedent, other parts."""
    cells = [cell([0, 2, 3, 4], ((1,), (2,)), meant) for meant in (0, 1, 0, 1)]
    pairs = []
    for question, part, first, n in [
        ("number", "iid", 0, 31), ("gender", "iid", 200, 13), ("no_antecedent", "iid", 300, 5),
        ("agreement_before_pronoun", "iid", 500, 9), ("later_cue", "headline", 700, 5),
    ]:  # fmt: skip
        for number in range(first, first + n):
            pairs += block_of(number, cells, question=question, part=part)
    found = choose_items(Items(pairs), 24)
    assert found.keys() == {"number", "gender"}
    for name, blocks in (("number", (0, 10, 20)), ("gender", (200, 204, 208))):
        assert [(pair.block, pair.order) for pair in found[name].pairs] == [*product(blocks, (0, 1))]


def test_a_point_by_attention_has_every_heads_scores_and_the_models_answers() -> None:
    view, items = untrained_view(0), story_pairs("test").of("number", "iid")
    state = torch.get_rng_state()
    point = measure_attention(view, items, tokens_per_batch=4096)
    assert torch.equal(state, torch.get_rng_state())
    scores = measure_heads(view, items, 4096).scores()
    assert (point.layer, point.head) == best_head(scores)
    for name in ("accuracy", "contrast"):
        assert np.array(point.grids[name]) == pytest.approx(getattr(scores, name).mean(axis=0), abs=1e-4)
        assert point.values[name] == pytest.approx(point.grids[name][point.layer][point.head], abs=1e-4)
    margins, losses = measure_payoffs(view, items.cells, 99)
    expected = {"answer_accuracy": np.heaviside(margins, 0.5).mean()}
    expected["resolved_share"] = resolved_share(losses, items.cells)
    assert {name: point.values[name] for name in expected} == pytest.approx(expected, rel=1e-3)

    # Without a payoff nothing is known of the answers
    pairs = []
    for pair in items.pairs:
        first, second = (replace(one, payoff=None, target=None) for one in pair.cells)
        pairs.append(replace(pair, cells=(first, second)))
    values = measure_attention(view, Items(pairs), 4096).values
    assert set(values) == {"accuracy", "block_accuracy", "contrast", "bar"}


def test_a_point_by_edges_has_the_swap_of_every_head() -> None:
    items = passage_items()
    point = measure_edges(copying_model([1.0, 3.0]), items, 4096)
    assert (point.layer, point.head) == (0, 1)
    assert point.grids["swap"] == [pytest.approx([0.25, 0.75], abs=1e-3)]
    two = items.where(lambda pair: pair.has_two)
    margins = measure_margins(copying_model([1.0, 3.0]), two, [[Head(0, 1)]], ["swap"], 4096)
    moved, total = margins.swaps(signed_by_model=True)
    assert point.values["swap"] == pytest.approx(moved.mean() / total.mean(), abs=1e-4)
    assert point.values["margin"] == pytest.approx(total.mean() / 2, rel=1e-4) and point.values["follows"] > 0.9
    idle = measure_edges(copying_model([0.0, 0.0]), items, 4096)
    assert idle.grids["swap"] == [[0.0, 0.0]]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    shares = NO_SHARES | {"share_agreement": 0.5, "share_no_pronoun": 0.5}
    stories = replace(SMALL, seed=1, n_train_stories=4000, n_test_frames=2, **shares)
    return load_corpus(stories, tmp_path_factory.mktemp("cache"))


def run_settings(n_sequences: int = 16, **changes: Any) -> Any:
    """Return the settings that `training_probe` reads."""
    run = SimpleNamespace(probe_sequences=n_sequences, tokens_per_batch=512, eval_every_steps=10, max_steps=15)
    return SimpleNamespace(run=run, model=config(**{"d_model": 18, "context_length": 64} | changes))


def test_a_training_probe_reads_every_question_and_draws_only_at_evaluations(corpus: Corpus) -> None:
    settings = run_settings()
    probe = training_probe(corpus, settings, lambda points: {name: np.zeros(1) for name in points})
    assert probe is not None
    model = Transformer(settings.model, corpus.tokenizer.get_vocab_size(), seed=0).eval()
    records = {step: probe(model, step) for step in (8, 10, 15)}
    assert [bool(record.images) for record in records.values() if record] == [False, True, True]
    record = records[8]
    assert record is not None and {"number", "gender", "head_types"} <= set(record.values)
    assert len(record.summary) == 2
    assert re.fullmatch(r"number L\dH\d accuracy \d\.\d\d \(bar \d\.\d\d\)", record.summary[0])
    with torch.no_grad():
        model.token_embedding.weight.fill_(torch.nan)
    assert probe(model, 16) is None


def test_a_run_on_text_is_probed_on_its_passages(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join(text for _, text in documents()) * 12)
    of_text = load_corpus(text_config(text, tokenizer="words", vocab_size=2000), tmp_path / "cache")
    settings = run_settings(200)
    probe = training_probe(of_text, settings)
    assert probe is not None and list(probe.items) == ["next_pronoun_gender"]
    model = make_uniform(Transformer(settings.model, of_text.tokenizer.get_vocab_size(), seed=0).eval())
    record = probe(model, 10)
    assert record is not None and record.values["next_pronoun_gender"]["follows"] == 0.5  # it ignores the context
    assert record.images == {} and record.summary == ["next_pronoun_gender L0H0 swap 0.00"]
    assert training_probe(of_text, run_settings(16)) is None  # too few passages for a curve


def test_a_model_that_is_not_causal_is_not_probed(corpus: Corpus) -> None:
    assert training_probe(corpus, run_settings(mask=Mask.none)) is None
    assert training_probe(corpus, run_settings(0)) is None
