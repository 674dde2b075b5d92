import re
from dataclasses import fields, replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from data.english_blocks import english_texts

from data.config import StoriesConfig, TextConfig
from data.corpus import Corpus, load_corpus
from data.english import FEMININE_NAMES, MASCULINE_NAMES
from data.links import ORACLES, LinkItem
from data.words import word_spans
from model.config import Mask
from model.observe import TransformerView
from model.transformer import Transformer
from probe.behaviour import measure_payoffs, oracle_losses, resolved_share
from probe.emergence import choose_examples, choose_items, half_rise, measure_questions, training_probe
from probe.sentences import TokenizedText
from tests.probe.pair_items import link
from tests.tiny_models import config, random_view

BLIND, BAYES = ORACLES.index("blind"), ORACLES.index("bayes")
STEPS = [0, 1, 2, 4, 8, 16, 32, 64, 100]


def block(number: int, **changes: object) -> list[LinkItem]:
    """Return four cells: a start token, two mentions in both orders, then the pronoun 5 or 6 with the payoff."""
    cells = []
    for order, meant in product((0, 1), (0, 1)):
        words, mentions = (((2,), (3,)), (10, 11)) if order == 0 else (((3,), (2,)), (11, 10))
        tokens = [0, 1 + number % 3, *mentions, 20 + number % 7, 5 + meant]
        place = {"block": number, "order": order, "text": f"{number} {order} {meant}"}
        clusters = {"frame": f"t{number % 3}", "pair": f"a{number % 2} b{number % 5}"}
        answers = {"target": 30 + meant, "answers": (30 + meant,), "foils": (31 - meant,)}
        cells.append(link(tokens, words, meant, **place | clusters | answers | changes))
    return cells


def blocks(n: int, first: int = 0, **changes: object) -> list[LinkItem]:
    return [item for number in range(first, first + n) for item in block(number, **changes)]


@pytest.fixture(scope="module")
def view() -> TransformerView:
    return random_view(41, d_model=18, context_length=31)


def test_watched_questions_get_equal_numbers_of_iid_blocks_spread_evenly() -> None:
    """Left out: unwatched and undecided sites, items without an antecedent, other hold-outs."""
    items = blocks(31) + blocks(13, 200, level="gender")
    items += blocks(5, 300, family="no_antecedent", level="no_antecedent", antecedents=())
    items += blocks(5, 400, family="later_cue", level="later_cue") + blocks(9, 500, site="before_pronoun")
    items += blocks(5, 600, family="later_cue", level="later_cue", site="before_repeat")
    items += blocks(5, 700, level="told_gender", holdout="headline")
    chosen = choose_items(items, 24)
    assert {name: [item.block for item in question[::4]] for name, question in chosen.items()} == {
        "number": [0, 10, 20], "gender": [200, 204, 208],
    }  # fmt: skip
    for question in chosen.values():
        assert [(item.order, item.meant) for item in question] == list(product((0, 1), (0, 1))) * 3


def test_incomplete_blocks_are_an_error() -> None:
    with pytest.raises(ValueError, match="block"):
        choose_items(blocks(3)[:-1], 12)


@pytest.mark.parametrize(
    ("oracles", "share"),
    [({"blind": 3.0, "bayes": 1.0}, 0.5), ({"blind": 2.0, "bayes": 2.0}, None), ({}, None)],
    ids=["gap", "no gap", "unknown"],
)
def test_only_a_gap_between_oracles_has_a_resolved_share(oracles: dict[str, float], share: float | None) -> None:
    assert resolved_share(2.0, oracles) == share


def test_oracle_losses_are_means_and_unknown_if_an_item_has_none() -> None:
    items = [replace(item, surprisal=tuple(i + k for k in range(len(ORACLES)))) for i, item in enumerate(blocks(1))]
    assert oracle_losses(items)[ORACLES[0]] == 1.5
    assert oracle_losses([*items, *blocks(1)]) == {}


def test_a_reading_has_every_heads_scores_and_the_oracles_losses(view: TransformerView) -> None:
    surprisal = tuple(float(i) for i in range(len(ORACLES)))
    items = {"number": blocks(6, surprisal=surprisal), "later_cue": blocks(5, payoff=None, target=None)}
    state = torch.get_rng_state()
    number, later_cue = measure_questions(view, items, tokens_per_batch=64)
    assert torch.equal(state, torch.get_rng_state())
    values = number.values()
    entry, answer = values["number"], values["number_answer"]
    for name in ("accuracy", "pronoun_contrast"):
        assert entry[name] == pytest.approx(entry[f"{name}_heads"][entry["layer"]][entry["head"]], abs=1e-4)
    assert answer["model"] == pytest.approx(measure_payoffs(view, items["number"], 99)[1].mean())
    share = (surprisal[BLIND] - answer["model"]) / (surprisal[BLIND] - surprisal[BAYES])
    assert entry["resolved_share"] == pytest.approx(share)
    assert set(later_cue.values()) == {"later_cue"} and "resolved_share" not in later_cue.values()["later_cue"]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    shares = dict.fromkeys((field.name for field in fields(StoriesConfig) if field.name.startswith("share_")), 0.0)
    shares |= {"share_agreement": 0.5, "share_no_pronoun": 0.5}
    sizes = {"n_train_stories": 4000, "n_validation_stories": 40, "n_test_frames": 2, "n_test_pairs": 1}
    config = StoriesConfig(source="stories", seed=1, skew=0.5, **sizes, **shares)
    return load_corpus(config, tmp_path_factory.mktemp("cache"))


def run_settings(**changes: object) -> SimpleNamespace:
    """Return the settings that `training_probe` reads."""
    run = SimpleNamespace(probe_sequences=16, tokens_per_batch=512, eval_every_steps=10, max_steps=15)
    return SimpleNamespace(run=run, model=config(**{"d_model": 18, "context_length": 64} | changes))


def test_a_run_on_text_that_has_the_words_is_probed_on_blocks_in_english(tmp_path: Path) -> None:
    counts = dict.fromkeys([*FEMININE_NAMES, *MASCULINE_NAMES], 99)
    rows = english_texts(counts, n_frames=20, n_pairs=40, seed=0)["test"]
    text = tmp_path / "text.txt"
    words = " ".join([*counts] * 12)  # each word often enough
    text.write_text(words + "\n" + "\n".join(row.text for row in rows))
    values = {"path": str(text), "validation_path": None, "validation_fraction": 0.1, "column": "text"}
    values |= {"max_bytes": None, "tokenizer": "words", "vocab_size": 2000, "tokenizer_path": None}
    corpus = load_corpus(TextConfig(source="text", **values), tmp_path / "cache")
    settings = run_settings()
    settings.run.probe_sequences = 40
    probe = training_probe(corpus, settings, lambda readings, _: {readings[0].name: np.zeros(1)})
    assert probe is not None
    model = Transformer(settings.model, corpus.tokenizer.get_vocab_size(), seed=0).eval()
    assert [list(probe(model, step).images) for step in (8, 10)] == [[], ["english"]]
    reading = probe(model, 8)
    entry = reading.values["english"]
    assert np.shape(entry["accuracy_heads"]) == (2, 3) and entry["answer_accuracy"] == 0.5  # it ignores the context
    assert any(line.startswith("english L") for line in reading.summary)


def test_a_training_probe_reads_every_question_and_draws_only_at_evaluations(corpus: Corpus) -> None:
    settings = run_settings()
    probe = training_probe(corpus, settings, lambda readings, examples: {readings[0].name: np.zeros(len(examples))})
    assert probe is not None
    model = Transformer(settings.model, corpus.tokenizer.get_vocab_size(), seed=0).eval()
    readings = {step: probe(model, step) for step in (8, 10, 15)}
    assert [bool(reading.images) for reading in readings.values()] == [False, True, True]
    assert {"number", "gender", "number_answer", "head_types", "probe_loss"} <= set(readings[8].values)
    assert len(readings[8].summary) == 2 and re.fullmatch(
        r".* accuracy \d\.\d\d \(bar \d\.\d\d\)", readings[8].summary[0]
    )
    with torch.no_grad():
        model.token_embedding.weight.fill_(torch.nan)
    assert probe(model, 16) is None


def test_a_model_that_is_not_causal_is_not_probed(corpus: Corpus) -> None:
    assert training_probe(corpus, run_settings(mask=Mask.none)) is None


@pytest.mark.parametrize("slope", [2.0, -2.0])
def test_a_straight_line_has_made_half_its_change_at_half_of_the_steps(slope: float) -> None:
    assert half_rise(STEPS, [3.0 + slope * step for step in STEPS]) == pytest.approx(50)


def test_the_first_crossing_after_the_start_value_counts() -> None:
    values = [0.5, 0.5, 0.5, 0.5, 0.6, 0.8, 1.0, 0.9]
    assert half_rise(STEPS[1:], values, start=0.5) == pytest.approx(16 + 16 * 0.5)
    assert half_rise(STEPS, [0.75, *values], start=0.5) == 0


def test_a_curve_that_does_not_change_has_no_half_rise() -> None:
    assert half_rise(STEPS, [0.0] * 9) is None
    assert half_rise([], []) is None


@pytest.mark.parametrize(
    ("unknown", "context_length", "endings"),
    [
        (None, 23, ["uses. It", "es. They", " cat. It", "at. They", "as tired", "was soft"]),
        (1, 23, ["uses. It", " cat. It", "as tired", "was soft"]),
        (1, 14, ["uses. It", " cat. It"]),
        (None, 3, []),
    ],
)
def test_examples_without_unknown_tokens_that_fit_the_context_are_chosen_once(
    unknown: int | None, context_length: int, endings: list[str]
) -> None:
    def tokenize(text: str) -> TokenizedText:
        words = word_spans(text)
        spans = [span for _, span in words]
        return TokenizedText(text, [0] + [1 if word == "They" else 2 for word, _ in words], spans, spans)

    chosen = choose_examples(tokenize, unknown, context_length)
    assert [example.text[-8:] for example, _ in chosen] == endings
