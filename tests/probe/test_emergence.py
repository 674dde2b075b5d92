"""The probe during training reads the right items and records what the whole measures say."""

import re
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch

from antecedent_lab.sources import watched
from data.corpus import load_corpus
from data.tokenizer import encode, end_id
from extras.english.edges import Half
from model.transformer import Transformer
from probe.attention import best_head, measure_heads
from probe.behaviour import answer_values
from probe.emergence import choose_items, training_probe
from probe.outcomes import OUTCOMES
from probe.questions import FRIGHTENED_OR_FEARED
from probe.results import Head
from settings.train import compose_settings
from tests.data.small_corpora import SMALL
from tests.probe import factories as made
from tests.program import FEW_STORIES, SHORT


def test_questions_get_equal_numbers_of_blocks_spread_evenly():
    found = choose_items(made.story_pairs("test"), 36)
    assert {question.name for question in found} == {"number", "gender", "verb"}
    for question, items in found.items():
        blocks = [pair.block for pair in made.story_pairs("test").of(question.name, "iid").pairs[::2]]
        spread = blocks[:: len(blocks) // 3][:3]
        assert [(pair.block, pair.order) for pair in items.pairs] == [*product(spread, (0, 1))]


def test_a_point_by_attention_has_every_heads_scores_and_the_models_answers():
    view, items = made.untrained_view(0), made.story_pairs("test").of("number", "iid")
    state = torch.get_rng_state()
    point = OUTCOMES["attention"].point(view, items, tokens_per_batch=4096)
    assert torch.equal(state, torch.get_rng_state())
    scores = measure_heads(view, items, 4096).scores()
    assert (point.layer, point.head) == best_head(scores)
    for name in ("accuracy", "contrast"):
        assert np.array(point.grids[name]) == pytest.approx(getattr(scores, name).mean(axis=0), abs=1e-4)
        assert point.values[name] == pytest.approx(point.grids[name][point.layer][point.head], abs=1e-4)
    answers = answer_values(view, items, made.SETTINGS)
    for name in ("answer_accuracy", "resolved_share"):
        assert point.values[name] == pytest.approx(answers[name].value, rel=1e-3)


def test_a_point_by_edges_has_the_swap_of_every_head():
    items = made.passage_items()
    point = OUTCOMES["edge"].point(made.copying_model([1.0, 3.0]), items, 4096)
    assert (point.layer, point.head) == (0, 1)
    assert point.grids["swap"] == [pytest.approx([0.25, 0.75], abs=1e-3)]
    assert point.values["swap"] == pytest.approx(0.75, abs=1e-3) and point.values["follows"] > 0.9
    _, total = Half(made.copying_model([1.0, 3.0]), items, 4096).two.swaps([[Head(0, 1)]])
    assert point.values["margin"] == pytest.approx(total.mean() / 2, rel=1e-4)
    assert OUTCOMES["edge"].point(made.copying_model([0.0, 0.0]), items, 4096).grids["swap"] == [[0.0, 0.0]]


def test_a_training_probe_reads_every_question_and_draws_at_evaluations(tmp_path):
    shares = {"share_agreement": 0.5, "share_verb": 0.0, "share_no_pronoun": 0.5}
    corpus = load_corpus(replace(SMALL, seed=1, n_train_stories=6000, n_test_frames=2, **shares), tmp_path)
    steps = ["eval_every_steps=10", "max_steps=15", "probe_sequences=16"]
    settings = compose_settings(["model=nano", *SHORT, "tokens_per_batch=512", *steps])
    items = watched(corpus, settings)
    probe = training_probe(corpus, settings, items)
    model = Transformer(settings.model, corpus.tokenizer.get_vocab_size(), seed=0).eval()
    records = [probe(model, is_evaluation) for is_evaluation in (False, True)]
    for shown in ("images", "lines"):
        assert [bool(getattr(record, shown)) for record in records if record] == [False, True]
    record = records[0]
    assert record is not None and record.values.keys() == {"number", "gender"} and len(record.summary) == 2
    assert re.fullmatch(r"number L\dH\d accuracy \d\.\d\d \(bar (\d\.\d\d|1 or more, .*)\)", record.summary[0])
    with torch.no_grad():
        model.token_embedding.weight.fill_(torch.nan)
    assert probe(model, False) is None


@pytest.mark.parametrize("kind", ["stories", "text", "ended"])
def test_an_evaluation_continues_two_texts_by_the_most_probable_tokens(kind, tmp_path):
    """Up to 16 of them, or to where the model ends the text."""
    data, opening = FEW_STORIES, FRIGHTENED_OR_FEARED[0].text
    if kind == "text":
        text = tmp_path / "text.txt"
        text.write_text("The sun shone.\nThe rain fell.\n" * 400)  # no passage to ask about
        data = ["data=text", f"data.path={text}", "data.tokenizer=characters", "data.validation_fraction=0.5"]
        opening = "The sun shone.\n"
    settings = compose_settings(["model=nano", *SHORT, *data, "probe_sequences=16"])
    corpus = load_corpus(settings.data, tmp_path)
    end = end_id(corpus.tokenizer)
    model = Transformer(settings.model, corpus.tokenizer.get_vocab_size(), seed=0).eval()
    tokens = [end, *encode(corpus.tokenizer, [opening])[0]]
    if kind == "ended":
        with torch.no_grad():  # the logits of an untrained model are those of the last token alone
            table = model.token_embedding.weight
            table[end] = 2 * table[tokens[-1]]
    record = training_probe(corpus, settings, watched(corpus, settings))(model, True)
    assert record is not None and len(record.lines) == 2 and bool(record.values) == (kind != "text")
    following = list[int]()
    for _ in range(16):
        following.append(int(model(torch.tensor([[*tokens, *following]]))[0, -1].argmax()))
    if kind == "ended":
        assert following[0] == end
        following = []
    continued = corpus.tokenizer.decode(following, skip_special_tokens=False)
    assert record.lines[0] == f"{opening} → {continued}".replace("\n", " ")
