"""model/export.py: our model as a Llama computes the same, or is refused."""

import pytest
import torch

from data.errors import UserError
from model.config import ModelConfig, departures
from model.export import as_llama
from model.observe import HeadEdit, TransformerView
from model.transformers_view import TransformersView
from tests.tiny_models import VARIANTS, config, random_model

pytest.importorskip("transformers")


@pytest.mark.parametrize("changes", [{}, {"tie_query_key": True, "tie_key_value": True}])
def test_our_model_and_its_llama_give_the_same_logits_scores_and_edited_logits(changes: dict) -> None:
    model = random_model(**changes)
    view, llama = TransformerView(model), TransformersView(as_llama(model))
    tokens = torch.randint(model.vocab_size, (3, 9), generator=torch.Generator().manual_seed(0))
    assert (llama.n_layer, llama.n_head, llama.context_length) == (view.n_layer, view.n_head, view.context_length)
    assert torch.equal(as_llama(model)(tokens).logits, model(tokens))
    torch.testing.assert_close(llama.attention_scores(tokens), view.attention_scores(tokens), rtol=1e-4, atol=1e-5)
    edits = [HeadEdit(0, 1, weights=lambda weights: weights.flip(0)), HeadEdit(1, 2, output=torch.zeros_like)]
    edited = view.logits(tokens, edits=edits)
    torch.testing.assert_close(llama.logits(tokens, edits=edits), edited, rtol=1e-4, atol=1e-5)
    for record, expected in zip(llama.record(tokens), view.record(tokens), strict=True):
        torch.testing.assert_close(record, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", [name for name in VARIANTS if name != "plain"])
def test_switches_that_no_llama_has_are_refused_by_name(name: str) -> None:
    with pytest.raises(UserError, match="not exportable") as refused:
        as_llama(random_model(**VARIANTS[name]))
    switches = {f"model.{switch}={str(value).lower()}" for switch, value in VARIANTS[name].items()}
    assert set(departures(config(**VARIANTS[name]))) == switches
    for switch in switches:
        assert (switch in str(refused.value)) == (not switch.startswith("model.tie_"))


def test_every_switch_of_the_lab_has_a_variant() -> None:
    switches = {name for variant in VARIANTS.values() for name in variant} | {"mask"}
    others = set("n_layer n_head d_model d_mlp context_length rope_theta norm_eps dropout".split())
    assert ModelConfig.__dataclass_fields__.keys() - switches == others
