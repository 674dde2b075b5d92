"""The probe during training reads the right items and records what the whole measures say."""

import re
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch

from antecedent_lab.sources import watched
from data.corpus import load_corpus
from data.tokenizer import encode, end_id
from extras.english.edges import Half
from model.transformer import Transformer
from probe.attention import best_head, measure_heads
from probe.behaviour import measure_payoffs, resolved_share
from probe.emergence import _phrase, choose_items, training_probe
from probe.outcomes import OUTCOMES
from probe.results import Head
from probe.sentences import FRIGHTENED_OR_FEARED
from settings.train import compose_settings
from tests.data.small_corpora import SMALL
from tests.probe import factories as made
from tests.program import FEW_STORIES, SHORT
from training.metrics import HeadPoint


def test_questions_get_equal_numbers_of_blocks_spread_evenly() -> None:
    found = choose_items(made.story_pairs("test"), 36)
    assert {question.name for question in found} == {"number", "gender", "verb"}
    for question, items in found.items():
        blocks = [pair.block for pair in made.story_pairs("test").of(question.name, "iid").pairs[::2]]
        spread = blocks[:: len(blocks) // 3][:3]
        assert [(pair.block, pair.order) for pair in items.pairs] == [*product(spread, (0, 1))]


def test_a_point_by_attention_has_every_heads_scores_and_the_models_answers() -> None:
    view, items = made.untrained_view(0), made.story_pairs("test").of("number", "iid")
    state = torch.get_rng_state()
    point = OUTCOMES["attention"].point(view, items, tokens_per_batch=4096)
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


def test_a_point_by_edges_has_the_swap_of_every_head() -> None:
    items = made.passage_items()
    point = OUTCOMES["edge"].point(made.copying_model([1.0, 3.0]), items, 4096)
    assert (point.layer, point.head) == (0, 1)
    assert point.grids["swap"] == [pytest.approx([0.25, 0.75], abs=1e-3)]
    moved, total = Half(made.copying_model([1.0, 3.0]), items, 4096).two.swaps([[Head(0, 1)]])
    assert point.values["swap"] == pytest.approx(moved.mean() / total.mean(), abs=1e-4)
    assert point.values["margin"] == pytest.approx(total.mean() / 2, rel=1e-4) and point.values["follows"] > 0.9
    assert OUTCOMES["edge"].point(made.copying_model([0.0, 0.0]), items, 4096).grids["swap"] == [[0.0, 0.0]]


def test_a_training_probe_reads_every_question_and_draws_at_evaluations(tmp_path: Path) -> None:
    shares = {"share_agreement": 0.5, "share_verb": 0.0, "share_no_pronoun": 0.5}
    corpus = load_corpus(replace(SMALL, seed=1, n_train_stories=6000, n_test_frames=2, **shares), tmp_path)
    arguments = [
        "model=nano",
        *SHORT,
        "tokens_per_batch=512",
        "eval_every_steps=10",
        "max_steps=15",
        "probe_sequences=16",
    ]
    settings = compose_settings(arguments)
    items = watched(corpus, settings)
    probe = training_probe(corpus, settings, items, lambda points: {name: np.zeros(1) for name in points})
    model = Transformer(settings.model, corpus.tokenizer.get_vocab_size(), seed=0).eval()
    records = {step: probe(model, step) for step in (8, 10, 15)}
    for shown in ("images", "lines"):
        assert [bool(getattr(record, shown)) for record in records.values() if record] == [False, True, True]
    record = records[8]
    assert record is not None and record.values.keys() == {"number", "gender"} and len(record.summary) == 2
    assert re.fullmatch(r"number L\dH\d accuracy \d\.\d\d \((bar \d\.\d\d|no head .*)\)", record.summary[0])
    with torch.no_grad():
        model.token_embedding.weight.fill_(torch.nan)
    assert probe(model, 16) is None


def test_a_bar_that_no_accuracy_exceeds_is_said_to_be_out_of_reach() -> None:
    point = HeadPoint(1, 0, {"accuracy": [[0.5, 1.0]]}, {"accuracy": 1.0, "bar": 1.0})
    assert _phrase("verb", point) == "verb L1H0 accuracy 1.00 (no head can pass: too few items)"
    assert _phrase("verb", replace(point, values={"accuracy": 1.0, "bar": 0.9})).endswith("(bar 0.90)")


def test_a_text_that_is_continued_stops_where_the_model_ends_it(tmp_path: Path) -> None:
    settings = compose_settings(["model=nano", *SHORT, *FEW_STORIES, "probe_sequences=16"])
    corpus = load_corpus(settings.data, tmp_path)
    end = end_id(corpus.tokenizer)
    model = Transformer(settings.model, corpus.tokenizer.get_vocab_size(), seed=0).eval()
    opening = encode(corpus.tokenizer, [FRIGHTENED_OR_FEARED[0].text])[0]
    with torch.no_grad():
        for name, weights in model.named_parameters():
            if name.endswith(("attention.output.weight", "mlp.down.weight")):
                weights.zero_()  # the logits are those of the last token alone
        table = model.token_embedding.weight
        table[end] = 2 * table[opening[-1]]
        assert int(model(torch.tensor([opening]))[0, -1].argmax()) == end
    probe = training_probe(corpus, settings, watched(corpus, settings))
    record = probe(model, 0) if probe else None
    assert record is not None and record.lines[0] == f"{FRIGHTENED_OR_FEARED[0].text} → "


@pytest.mark.parametrize("kind", ["stories", "text"])
def test_an_evaluation_continues_two_texts_by_the_most_probable_tokens(kind: str, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("The sun shone.\nThe rain fell.\n" * 400)  # no passage to ask about
    data = {
        "stories": FEW_STORIES,
        "text": ["data=text", f"data.path={text}", "data.tokenizer=characters", "data.validation_fraction=0.5"],
    }
    settings = compose_settings(["model=nano", *SHORT, *data[kind], "probe_sequences=16"])
    corpus = load_corpus(settings.data, tmp_path)
    model = Transformer(settings.model, corpus.tokenizer.get_vocab_size(), seed=0).eval()
    probe = training_probe(corpus, settings, watched(corpus, settings))
    record = probe(model, 0) if probe else None
    assert record is not None and len(record.lines) == 2 and bool(record.values) == (kind == "stories")

    opening = {"stories": FRIGHTENED_OR_FEARED[0].text, "text": "The sun shone.\n"}[kind]
    tokens = [end_id(corpus.tokenizer), *encode(corpus.tokenizer, [opening])[0]]
    n_tokens = len(tokens)
    for _ in range(16):
        tokens.append(int(model(torch.tensor([tokens]))[0, -1].argmax()))
    following = corpus.tokenizer.decode(tokens[n_tokens:], skip_special_tokens=False)
    assert record.lines[0] == f"{opening} → {following}".replace("\n", " ")
