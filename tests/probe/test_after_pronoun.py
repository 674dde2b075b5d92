"""What a head does right after the pronoun, on a planted head whose output is known."""

import numpy as np
import pytest
import torch

from data.natural import Prefix, find_prefixes
from probe.after_pronoun import after_pronoun, observe_at_pronoun, output_effects
from probe.natural import PrefixItems, make_prefix_items
from probe.results import Head
from tests.copying_model import CopyingModel
from tests.probe.test_next_pronoun import CONFIG, DOCUMENTS, START, TOKENIZER, copying_model

GAIN = 3.0


def prefixes() -> list[Prefix]:
    return [prefix for name, text in DOCUMENTS for prefix in find_prefixes(name, text, "gender")]


def items() -> PrefixItems:
    return make_prefix_items(prefixes(), TOKENIZER, START, 64, seed=0)


def model() -> CopyingModel:
    return copying_model((0.0, GAIN))


def test_the_output_raises_the_pronoun_of_whom_the_head_attends_to_by_its_gain() -> None:
    found = after_pronoun(model(), items(), Head(0, 1), CONFIG)
    assert found is not None and found.raises_pronoun is not None and found.raises_name is not None
    assert found.n == len(items().prefixes) >= 40
    assert found.raises_pronoun.value == pytest.approx(GAIN)
    assert found.raises_name.value == 0  # the model writes into pronouns only
    without_gain = after_pronoun(model(), items(), Head(0, 0), CONFIG)
    assert without_gain is not None and without_gain.raises_pronoun is not None
    assert without_gain.raises_pronoun.value == 0


def test_a_head_that_ignores_the_pronoun_has_no_contrast() -> None:
    found = after_pronoun(model(), items(), Head(0, 1), CONFIG)
    assert found is not None
    assert found.contrast.value == pytest.approx(0, abs=1e-6) and found.p > 0.01


def test_the_weights_are_those_of_the_row_at_the_pronoun() -> None:
    cells = items().cells["pronoun"]
    weights, streams = observe_at_pronoun(model(), cells, Head(0, 1), 4096)
    assert len(weights) == len(streams) == len(cells)
    text = torch.tensor([cells[3].tokens[: cells[3].query + 1]])
    row = model().attention_scores(text)[0, 0, 1, -1].softmax(-1)
    antecedent = sum(float(row[token]) for word in cells[3].antecedents for token in word)
    assert weights[3, 0] == pytest.approx(antecedent)
    effects = output_effects(model(), cells, streams, Head(0, 1), 4096)
    assert np.isfinite(effects).all() and effects.shape == (len(cells) // 2, 2)


def test_too_few_prefixes_give_no_answer() -> None:
    assert after_pronoun(model(), items().take(np.arange(10)), Head(0, 1), CONFIG) is None
