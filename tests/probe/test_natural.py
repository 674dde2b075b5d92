"""The probe on natural text finds heads whose attention shifts with the pronoun, of either sign, and nothing else."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from data.english import FEMININE_NAMES, MASCULINE_NAMES
from data.natural import find_prefixes
from data.tokenizer import end_id, word_tokenizer
from model.observe import HeadWeights, LayerRecord, ObservableModel
from probe.config import Holdouts, ProbeConfig
from probe.natural import (
    MAX_MISMATCH,
    PrefixItems,
    make_prefix_items,
    measure_contrasts,
    sections,
    study_prefixes,
    study_shift,
)
from probe.results import EdgeCut, NaturalQuestion, ShiftResult
from probe.verdict import judged_shift
from tests.blank import blank

CONFIG = ProbeConfig(
    seed=0, tokens_per_batch=4096, n_bootstrap=200, n_untrained=2, n_controls=10, holdouts=Holdouts.verdict
)
WIDTH = 4
FRAMES = (
    "{A} met {B} in the park. {P} went home and slept well until the next day.",
    "One day {B} saw {A} there. Then {p} laughed and sang and everyone was happy again.",
    "{A} and {B} played. {A} was tired. {P} sat down and had some bread with the others.",
)


def make_documents(n: int = 60, seed: int = 1) -> list[str]:
    rng = Random(seed)
    women, men = sorted(FEMININE_NAMES)[:14], sorted(MASCULINE_NAMES)[:14]
    documents = []
    for _ in range(n):
        sentences = []
        for _ in range(3):
            pronoun = rng.choice(("she", "he"))
            slots = {"A": rng.choice(women), "B": rng.choice(men), "p": pronoun, "P": pronoun.capitalize()}
            sentences.append(rng.choice(FRAMES).format(**slots))
        documents.append(" Everything was quiet. ".join(sentences))
    return documents


DOCUMENTS = make_documents()
TOKENIZER = word_tokenizer([*DOCUMENTS, *(text.replace("She", "He").replace("she", "he") for text in DOCUMENTS)])
PREFIXES = [prefix for name, text in sections(DOCUMENTS) for prefix in find_prefixes(name, text, "gender")]


@cache
def gender_items() -> PrefixItems:
    return make_prefix_items(PREFIXES, TOKENIZER, end_id(TOKENIZER), 256, seed=0)


class FakeModel(ObservableModel):
    """One layer whose heads score words by hand: `turns` says how much each head turns to the pronoun's class."""

    n_layer, context_length = 1, 256

    def __init__(self, turns: Sequence[float], seed: int = 0, edge_matters: bool = False) -> None:
        self.turns, self.n_head, self.edge_matters = turns, len(turns), edge_matters
        self.vocab_size = TOKENIZER.get_vocab_size()
        vocabulary = TOKENIZER.get_vocab()

        def signs(first: Sequence[str], second: Sequence[str]) -> Tensor:
            values = torch.zeros(self.vocab_size)
            values[[vocabulary[word] for word in first if word in vocabulary]] = 1.0
            values[[vocabulary[word] for word in second if word in vocabulary]] = -1.0
            return values

        self.name_class = signs(sorted(FEMININE_NAMES), sorted(MASCULINE_NAMES))
        self.pronoun_class = signs(("she", "She"), ("he", "He"))
        noise = torch.Generator().manual_seed(seed)
        self.word_bias = torch.randn(len(turns), self.vocab_size, generator=noise)

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    def record(self, tokens: Tensor, query_positions: Tensor | None = None) -> list[LayerRecord]:
        n, length = tokens.shape
        if query_positions is None:
            query_positions = torch.arange(length).expand(n, -1)
        pronouns = self.pronoun_class[tokens.gather(1, query_positions)]  # [B, Tq]
        turn = pronouns[:, None, :, None] * self.name_class[tokens][:, None, None]  # [B, 1, Tq, T]
        scores = (
            torch.tensor(self.turns)[None, :, None, None] * turn + self.word_bias[:, tokens].transpose(0, 1)[:, :, None]
        )
        scores = scores - 0.1 * torch.arange(length)  # a preference for early words
        later = torch.arange(length) > query_positions[..., None]
        values = torch.ones(n, self.n_head, length, WIDTH)
        return [LayerRecord(scores.masked_fill(later[:, None], float("-inf")), values, values, values[:, 0])]

    def residual_stream(self, tokens: Tensor) -> list[Tensor]:
        return [torch.zeros(*tokens.shape, WIDTH)] * 2

    def logits(self, tokens: Tensor, positions: Any = None, edits: Any = (), streams: Any = None) -> Tensor:
        logits = torch.zeros(*tokens.shape, self.vocab_size)
        if self.edge_matters:  # the next word is likely as far as head 0 looks at names
            weights = self.record(tokens)[0].scores[:, 0].softmax(-1)
            for edit in edits:
                assert edit.weights is not None
                weights = edit.weights(weights)
            seen = (weights * (self.name_class[tokens] != 0)[:, None]).sum(-1)  # [B, T]
            logits[:, :-1].scatter_(2, tokens[:, 1:, None], 5 * seen[:, :-1, None])
        return logits if positions is None else logits[torch.arange(len(tokens))[:, None], positions]

    def head_weights(self, layer: int) -> HeadWeights:
        return HeadWeights(None, None, None, torch.ones(self.n_head, WIDTH, WIDTH))


UNTRAINED = [FakeModel((0.0, 0.0, 0.0), seed) for seed in (1, 2)]


def study(model: FakeModel) -> NaturalQuestion:
    return study_shift(model, UNTRAINED, gender_items(), CONFIG)


def pronoun_contrast(turns: Sequence[float]) -> np.ndarray:
    """Return the contrast [N, H] of the heads at the pronoun."""
    return measure_contrasts(FakeModel(turns), gender_items(), 4096).contrast[:, 0, 0]


def test_a_head_that_ignores_the_pronoun_has_no_contrast() -> None:
    contrast = pronoun_contrast((0.0, 0.5, -0.5))
    assert np.abs(contrast[:, 0]).max() < 1e-5
    # Two readings, and two classes: the contrast is twice the turn.
    assert contrast[:, 1].mean() == pytest.approx(1.0, abs=0.2)
    assert contrast[:, 2].mean() == pytest.approx(-1.0, abs=0.2)


def test_heads_of_both_signs_are_found() -> None:
    result = study(FakeModel((0.0, 0.5, -0.5)))
    antecedent, other = result.chosen["matching entity"], result.chosen["other entity"]
    assert (antecedent.site, antecedent.head, other.site, other.head) == ("pronoun", 1, "pronoun", 2)
    for entry in (antecedent, other):
        assert entry.p_corrected < 0.01
        assert abs(entry.t) > entry.untrained_t
        low, high = entry.contrast_interval
        assert low < entry.contrast < high
    assert antecedent.contrast_interval[0] > 0 > other.contrast_interval[1]
    _, testing = gender_items().halves(0)
    assert antecedent.contrast == pytest.approx(pronoun_contrast((0.0, 0.5, -0.5))[testing, 1].mean())


def test_a_head_whose_edge_changes_nothing_is_only_suggestive() -> None:
    entry = study(FakeModel((0.5, 0.0))).chosen["matching entity"]
    assert entry.causal.rise == entry.causal.difference == 0.0
    assert entry.verdict == "suggestive"


def test_a_head_whose_edge_matters_is_supported() -> None:
    entry = study(FakeModel((1.0, 0.0), edge_matters=True)).chosen["matching entity"]
    assert entry.causal.difference_interval[0] > 0
    assert entry.causal.matched_mass == pytest.approx(entry.causal.mass, rel=MAX_MISMATCH)
    assert 0 < entry.causal.n < len(gender_items().halves(0)[1])
    assert entry.verdict == "supported"


def test_nothing_is_established_where_no_head_turns() -> None:
    chosen = study(FakeModel((0.0, 0.0, 0.0))).chosen.values()
    assert [entry.verdict for entry in chosen] == ["not established"] * 2


def test_the_head_is_chosen_on_other_documents_than_it_is_tested_on() -> None:
    items = gender_items()
    choosing, testing = items.halves(0)
    documents = items.clusterings[0]
    assert not set(documents[choosing]) & set(documents[testing])
    assert len(choosing) + len(testing) == len(items.prefixes)


def test_the_shown_prefixes_have_the_median_contrast() -> None:
    result = study(FakeModel((0.5, 0.0)))
    shown = [example.contrast for example in result.examples["matching entity"]]
    values = pronoun_contrast((0.5, 0.0))[gender_items().halves(0)[1], 0]
    assert np.abs(np.array(shown) - np.median(values)).max() <= np.sort(np.abs(values - np.median(values)))[2]


def test_fewer_prefixes_choose_the_same_strong_head() -> None:
    curve = study(FakeModel((0.0, 2.0))).items_needed
    assert [point.n for point in curve] == sorted(point.n for point in curve)
    assert curve[-1].same == 1.0 and curve[-1].p < 0.01


def test_a_text_with_a_large_document_or_few_documents_is_cut_into_sections() -> None:
    long = "This is a sentence of seven words. " * 600
    for documents in ([long, *["Text."] * 30], [long] * 10):
        parts = sections(documents)
        assert len({name for name, _ in parts}) == len(parts) > len(documents)
        assert sum(len(text.split()) for _, text in parts) == sum(len(text.split()) for text in documents)
    assert [name for name, _ in sections(["Text."] * 30)] == [f"d{i}" for i in range(30)]


def test_a_half_with_too_few_documents_or_entities_is_not_tested() -> None:
    prefixes = [replace(prefix, entities=("lily", "tom")) for prefix in PREFIXES]
    start = end_id(TOKENIZER)
    result = study_prefixes(FakeModel((0.5,)), UNTRAINED.__getitem__, TOKENIZER, start, {"gender": prefixes}, CONFIG)
    assert result.questions == {} and "1 and 1 entities" in result.missing[0]


def test_a_head_chosen_elsewhere_is_tested_on_all_prefixes() -> None:
    result = study_shift(FakeModel((0.0, 0.5, 0.0)), UNTRAINED, gender_items(), CONFIG, {"matching entity": (0, 0, 1)})
    confirmed = result.confirmed["matching entity"]
    assert (confirmed.n, confirmed.head) == (len(gender_items().prefixes), 1)
    assert confirmed.p < 0.01 and confirmed.t > confirmed.untrained_t


def test_prefixes_that_do_not_fit_are_counted() -> None:
    items = make_prefix_items(PREFIXES, TOKENIZER, end_id(TOKENIZER), 12, seed=0)
    assert items.left_out["longer than the context"] > 0
    assert all(len(item.tokens) <= 12 for item in items.cells["after_pronoun"])


def effect(rise: tuple[float, float], difference: tuple[float, float]) -> EdgeCut:
    return blank(EdgeCut, rise_interval=rise, difference_interval=difference)


@pytest.mark.parametrize(
    ("change", "verdict"),
    [
        ({}, "supported"),
        ({"p_corrected": 0.01}, "not established"),
        ({"t": -5.0}, "not established"),  # the sign of the choosing half was positive
        ({"untrained_t": 5.5}, "suggestive"),
        ({"causal": None}, "suggestive"),
        ({"causal": effect((0.1, 0.2), (-0.1, 0.1))}, "suggestive"),
        ({"causal": effect((-0.1, 0.1), (0.1, 0.2))}, "suggestive"),
        ({"causal": effect((-0.1, 0.1), (-0.2, -0.1))}, "suggestive"),  # only the matched cut matters
        ({"causal": effect((0.1, 0.2), (-0.2, -0.1))}, "suggestive"),  # the matched cut matters more
        ({"causal": effect((-0.2, -0.1), (-0.3, -0.1))}, "supported"),
    ],
)
def test_the_verdict_needs_all_three_criteria(change: dict[str, Any], verdict: str) -> None:
    causal = effect((0.2, 0.3), (0.1, 0.2))
    values = {"t": 5.0, "untrained_t": 2.0, "p_corrected": 0.001, "causal": causal} | change
    assert judged_shift(blank(ShiftResult, **values), sign=1).verdict == verdict


def test_a_model_whose_readings_differ_before_the_pronoun_is_refused() -> None:
    class Leaking(FakeModel):
        def record(self, tokens: Tensor, query_positions: Tensor | None = None) -> list[LayerRecord]:
            (record,) = super().record(tokens, query_positions)
            seen = self.pronoun_class[tokens].sum(-1)  # reads later words
            leak = seen[:, None, None, None] * self.name_class[tokens][:, None, None]
            return [record._replace(scores=record.scores + leak)]

    with pytest.raises(ValueError, match="differ before the pronoun"):
        measure_contrasts(Leaking((0.0,)), gender_items(), 4096)
    with pytest.raises(ValueError, match="differ before the pronoun"):
        measure_contrasts(FakeModel((float("nan"),)), gender_items(), 4096)
