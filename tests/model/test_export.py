"""model/export.py: our model as a Llama, its card, and `python -m model.export` on a run."""

from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from data.errors import UserError
from data.tokenizer import END
from model.export import ExportSettings, as_llama, departures, model_card, read_claims
from model.observe import HeadEdit, TransformerView
from model.transformers_view import TransformersView
from tests.program import run_program
from tests.tiny_models import VARIANTS, V, config, random_model

transformers = pytest.importorskip("transformers")


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
    for our_record, their_record in zip(view.record(tokens), llama.record(tokens), strict=True):
        for expected, tensor in zip(our_record, their_record, strict=True):
            torch.testing.assert_close(tensor, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", [name for name in VARIANTS if name != "plain"])
def test_switches_that_no_llama_has_are_refused_by_name(name: str) -> None:
    with pytest.raises(UserError, match="not exportable") as refused:
        as_llama(random_model(**VARIANTS[name]))
    switches = {f"model.{switch}={str(value).lower()}" for switch, value in VARIANTS[name].items()}
    assert set(departures(config(**VARIANTS[name]))) == switches
    for switch in switches:
        assert (switch in str(refused.value)) == (not switch.startswith("model.tie_"))


def test_claims_are_read_for_the_probed_step_only(tmp_path: Path) -> None:
    assert read_claims(tmp_path, 7) is None
    (tmp_path / "probe").mkdir()
    (tmp_path / "probe" / "claims.md").write_text("L0H0\n")
    (tmp_path / "probe" / "probe.json").write_text('{"model": {"step": 7}}')
    assert read_claims(tmp_path, 7) == "L0H0" and read_claims(tmp_path, 8) is None
    (tmp_path / "probe" / "probe.json").write_text("[")
    assert read_claims(tmp_path, 7) is None


def test_the_card_states_shape_training_and_claims() -> None:
    card = model_card(random_model(), "data=stories, step 7", "Head L0H0 links")
    assert card.startswith("---\nlibrary_name: transformers")
    for fact in ("2 layers of 3 heads, width 30", f"vocabulary\n{V}", "data=stories, step 7", "Head L0H0 links"):
        assert fact in card
    assert "Not probed" in model_card(random_model(), "", None)


def test_an_exported_run_opens_in_transformers_with_the_same_weights_and_tokens(run: Path) -> None:
    assert run_program("model/export.py", f"run={run}", "to=hf").status == 0
    folder = run / "export" / "hf"
    llama = transformers.AutoModelForCausalLM.from_pretrained(folder)
    [checkpoint] = [torch.load(path, weights_only=True) for path in (run / "checkpoints").glob("*4.pt")]
    torch.testing.assert_close(llama.get_output_embeddings().weight, checkpoint["model"]["token_embedding.weight"])
    exported, text = transformers.AutoTokenizer.from_pretrained(folder), "The cat sat. It purred"
    assert exported(text)["input_ids"] == Tokenizer.from_file(str(run / "tokenizer.json")).encode(text).ids
    assert exported.bos_token == exported.eos_token == exported.pad_token == END
    assert "step 4" in (folder / "README.md").read_text()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "to="),
        (["to=onnx"], "to=onnx"),
        (["too=hf"], "too=hf"),
        (["to=hf", "run=nowhere"], "nowhere"),
        (["to=hf", "out=run/config.json"], "out=run/config.json"),
        (["to=hf", "out=run/config.json/new"], "run/config.json"),
    ],
)
def test_an_export_that_is_not_possible_is_one_line_and_writes_nothing(
    run: Path, arguments: list[str], text: str
) -> None:
    before = set(run.parent.rglob("*"))
    assert text in run_program("model/export.py", "run=run", *arguments, cwd=run.parent).error
    assert before == set(run.parent.rglob("*"))


def test_a_damaged_run_is_not_exported(run: Path) -> None:
    with (run / "tokenizer.json").open("a") as file:
        file.write("\n")
    assert "tokenizer.json" in run_program("model/export.py", f"run={run}", "to=hf").error
    assert not (run / "export").exists()


def test_help_lists_every_setting() -> None:
    result = run_program("model/export.py", "--help")
    assert result.status == 0
    assert ExportSettings.__dataclass_fields__.keys() <= set(result.out.split())
