"""Models of other programs: opened or refused in one line, equal to their own eager attention; ours as a Llama."""

import json
import re
import struct
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor

from antecedent_lab.export import ExportSettings
from data.errors import UserError
from data.tokenizer import END, bpe_tokenizer
from model.config import ModelConfig, departures
from model.edits import exchange_links
from model.export import as_llama, export_transformers
from model.external import find_model, open_transformers
from model.observe import HeadEdit, SiteEdit, SitePass, TransformerView
from model.transformers_view import TransformersSitePass, TransformersView
from tests.model.site_passes import SITE, check_against_whole_passes, check_refusals, cut_first, texts
from tests.program import Result, run_program
from tests.tiny_models import VARIANTS, config, random_model, untrained

transformers = pytest.importorskip("transformers")
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return bpe_tokenizer(["One sunny day, the cat sat near the buses. It purred.\n" * 3], 280)


@pytest.fixture
def folder(tmp_path: Path, tokenizer: Tokenizer) -> Path:
    model = untrained(tokenizer.get_vocab_size(), seed=5)
    export_transformers(model, tmp_path / "model", tokenizer.token_to_id(END), tokenizer)
    return tmp_path / "model"


def test_an_exported_folder_opens_with_the_same_tokens(folder: Path, tokenizer: Tokenizer) -> None:
    opened, text = open_transformers(str(folder), CPU), "The cat purred near it.\n"
    assert opened.tokenizer.encode(text).ids == tokenizer.encode(text).ids
    assert (opened.bos_id, opened.path) == (tokenizer.token_to_id(END), folder)
    assert opened.facts | {"model_type": "llama", "n_layer": 2, "commit": None} == opened.facts


def change_config(folder: Path, **values: object) -> None:
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(settings | values))


def change_weights(folder: Path, name: str, weight: Tensor | None) -> None:
    weights = load_file(folder / "model.safetensors")
    weights.pop(name)
    save_file(weights | ({} if weight is None else {name: weight}), folder / "model.safetensors", {"format": "pt"})


class Gadget:
    """Creates the file "executed" when it is unpickled without protection."""

    def __reduce__(self) -> tuple:
        return Path.touch, (Path("executed"),)


def add_remote_code(folder: Path) -> None:
    """Asks for a class of a file in the folder, which would create the file "executed"."""
    change_config(folder, model_type="hostile", auto_map={"AutoConfig": "code.A", "AutoModelForCausalLM": "code.B"})
    (folder / "code.py").write_text("open('executed', 'w').close()")


def name_shard(folder: Path, name: str) -> None:
    """Replaces the weights by an index of shards with one file name."""
    weights = dict.fromkeys(load_file(folder / "model.safetensors"), name)
    (folder / "model.safetensors").rename(folder / "other.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weights}))


def add_gadget(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    torch.save({"weight": Gadget()}, folder / "pytorch_model.bin")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / "config.json").unlink(), "config.json"),
        (lambda folder: (folder / "config.json").write_text("{"), "not a valid JSON file"),
        (lambda folder: change_config(folder, quantization_config={"bits": 4}), "quantized"),
        (lambda folder: (folder / "adapter_config.json").write_text("{}"), "merge_and_unload"),
        (lambda folder: change_config(folder, model_type="nonsense"), "nonsense"),
        (lambda folder: (folder / "model.safetensors").unlink(), "model.safetensors"),
        (lambda folder: change_weights(folder, "model.norm.weight", None), "model.norm.weight is missing"),
        (lambda folder: change_weights(folder, "model.norm.weight", torch.ones(7)), "another shape"),
        (lambda folder: change_weights(folder, "model.norm.weight", torch.full((30,), torch.nan)), "not finite"),
        (add_gadget, "more than tensors"),
        (add_remote_code, "custom code"),
        (lambda folder: change_config(folder, _attn_implementation="someone/kernel"), "code from the hub"),
        (lambda folder: change_config(folder, num_hidden_layers=10**9), "layers"),
        (lambda folder: change_config(folder, num_hidden_layers=1), "does not use all weights: model.layers.1"),
        (lambda folder: name_shard(folder, ".."), "outside the folder"),
        (lambda folder: name_shard(folder, "../../model.safetensors"), "outside the folder: ../../model.safetensors"),
        (lambda folder: change_config(folder, hidden_size=3 * 2**16, intermediate_size=2**20), "bytes"),
        (lambda folder: (folder / "model.safetensors").write_bytes(struct.pack("<Q", 10**10) + b"{}"), ""),
        (lambda folder: [path.unlink() for path in folder.glob("tokenizer*")], "no tokenizer"),
    ],
)
def test_a_bad_folder_is_refused(folder: Path, damage: Any, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    damage(folder)
    with pytest.raises(ValueError) as refused:
        open_transformers(str(folder), CPU)
    assert str(folder) in str(refused.value) and message in str(refused.value) and "\n" not in str(refused.value)
    assert not Path("executed").exists()


def test_a_missing_model_is_refused_with_its_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for source in ("", "./nowhere", "/nowhere", "not a/hub/name"):
        with pytest.raises(UserError, match=f"model={re.escape(source)}"):
            find_model(source)


def test_sharded_weights_in_bfloat16_are_read_in_float32(folder: Path, tmp_path: Path) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    model.save_pretrained(tmp_path / "sharded", max_shard_size="20KB")
    for file in folder.glob("tokenizer*"):
        (tmp_path / "sharded" / file.name).write_bytes(file.read_bytes())
    assert len(list((tmp_path / "sharded").glob("*.safetensors"))) > 2
    view, tokens = open_transformers(str(tmp_path / "sharded"), CPU).view, torch.arange(11)[None]
    assert torch.equal(view.logits(tokens), TransformersView(model.float()).logits(tokens))


@pytest.mark.parametrize("changes", [{}, {"tie_query_key": True, "tie_key_value": True}])
def test_our_model_and_its_llama_give_the_same_numbers_also_edited(changes: dict) -> None:
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


def export(*arguments: str, cwd: Path = Path()) -> Result:
    return run_program("antecedent_lab/__main__.py", "export", *arguments, cwd=cwd.resolve())


def test_an_exported_run_opens_in_transformers_and_has_a_card(run: Path) -> None:
    assert export(f"run={run}").status == 0
    folder = run / "export" / "hf"
    llama = transformers.AutoModelForCausalLM.from_pretrained(folder)
    [checkpoint] = [torch.load(path, weights_only=True) for path in (run / "checkpoints").glob("*4.pt")]
    torch.testing.assert_close(llama.get_output_embeddings().weight, checkpoint["model"]["token_embedding.weight"])
    exported, text = transformers.AutoTokenizer.from_pretrained(folder), "The cat sat. It purred"
    assert exported(text)["input_ids"] == Tokenizer.from_file(str(run / "tokenizer.json")).encode(text).ids
    assert exported.bos_token == exported.eos_token == exported.pad_token == END
    card = (folder / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: transformers")
    assert "1 layers of 2 heads" in card and "data=stories, step 4" in card and "Not probed" in card
    assert ExportSettings.__dataclass_fields__.keys() <= set(export("--help").out.split())


@pytest.mark.parametrize("argument", ["outt=a", "run=nowhere", "out=run/config.json", "out=run/config.json/new"])
def test_an_impossible_export_is_one_line_and_writes_nothing(run: Path, argument: str) -> None:
    before = set(run.parent.rglob("*"))
    named = argument.replace("out=run/config.json/new", "run/config.json")  # the file that is in the way
    assert named in export("run=run", argument, cwd=run.parent).error
    assert before == set(run.parent.rglob("*"))


L, H, G, D, V, T = 3, 4, 2, 32, 37, 11  # G: heads of keys and values where they are grouped
PLAIN = {"hidden_size": D, "intermediate_size": 31, "num_hidden_layers": L, "num_attention_heads": H}
PLAIN |= {"max_position_embeddings": 16, "vocab_size": V}
GROUPED = {**PLAIN, "num_key_value_heads": G}
SHAPES: dict[str, dict[str, Any]] = {
    "gpt2": {"n_embd": D, "n_layer": L, "n_head": H, "n_positions": 16, "vocab_size": V},
    "gpt_neox": PLAIN,
    "llama": GROUPED,
    "mistral": {**GROUPED, "sliding_window": 4},
    "qwen2": GROUPED,
    "qwen3": {**GROUPED, "head_dim": 10},
    "opt": {**PLAIN, "ffn_dim": 31, "word_embed_proj_dim": D},
    "phi": PLAIN,
    "gemma2": {**GROUPED, "head_dim": 10, "sliding_window": 4, "final_logit_softcapping": 3.0},
    "olmo2": GROUPED,
}
each_type = pytest.mark.parametrize("model_type", SHAPES)
# Token ids below V: the default ids of special tokens can lie outside these small vocabularies.
SPECIAL = {"bos_token_id": 1, "eos_token_id": 1, "pad_token_id": 1}


@cache
def make_view(model_type: str) -> TransformersView:
    config = transformers.AutoConfig.for_model(model_type, **SHAPES[model_type], **SPECIAL)
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager")
    with torch.no_grad():
        for weight in model.parameters():  # the standard initial weights are so small that attention is uniform
            if weight.ndim == 2:
                weight.normal_(0, 0.25)
            else:
                weight.add_(torch.randn_like(weight) / 4)  # norms' gains and biases
    return TransformersView(model)


@pytest.fixture
def tokens() -> Tensor:
    return torch.randint(V, (5, T), generator=torch.Generator().manual_seed(2))


def eager(model_type: str, tokens: Tensor) -> Any:
    """Return the output of transformers' own attention for the same weights."""
    reference = transformers.AutoModelForCausalLM.from_config(
        deepcopy(make_view(model_type).model.config), dtype=torch.float32, attn_implementation="eager"
    )
    reference.load_state_dict(make_view(model_type).model.state_dict())
    with torch.no_grad():
        return reference.eval()(tokens, output_attentions=True, output_hidden_states=True, use_cache=False)


@each_type
def test_maps_logits_and_residual_stream_equal_eager(model_type: str, tokens: Tensor) -> None:
    view, expected = make_view(model_type), eager(model_type, tokens)
    maps = view.attention_scores(tokens).softmax(-1)
    assert maps.shape == (L, 5, H, T, T) and maps.std() > 0.05
    torch.testing.assert_close(maps, torch.stack(expected.attentions))
    torch.testing.assert_close(view.logits(tokens), expected.logits)
    streams = view.residual_stream(tokens)
    assert len(streams) == L + 1
    for stream, hidden_state in zip(streams[:-1], expected.hidden_states, strict=False):
        torch.testing.assert_close(stream, hidden_state)


@each_type
def test_the_pass_over_the_site_alone_equals_whole_passes(model_type: str) -> None:
    check_against_whole_passes(make_view(model_type), TransformersSitePass)


@contextmanager
def counting(modules: list[Any]) -> Iterator[list[int]]:
    """Yield a list that receives the index of a module each time that it computes."""
    calls: list[int] = []
    with ExitStack() as hooks:
        for i, module in enumerate(modules):
            hooks.enter_context(module.register_forward_hook(lambda *_, i=i: calls.append(i)))
        yield calls


@each_type
def test_an_edited_pass_runs_the_layers_from_the_edit_on(model_type: str, tokens: Tensor) -> None:
    view = make_view(model_type)
    site_pass = view.site_pass(texts(), SITE)
    edit_lists = [[], [SiteEdit(2, 0, weights=cut_first)], [SiteEdit(1, 1, weights=cut_first)]]
    words = torch.tensor([[4, 36], [11, 2], [8, 3], [7, 7]])
    with counting(view._modules) as calls:
        of_words = site_pass.edited_logits(edit_lists, words)
    assert sorted(calls) == [1, 2, 2]
    torch.testing.assert_close(of_words, site_pass.edited_logits(edit_lists).gather(2, words.expand(3, -1, -1)))

    # Whole passes over the text, from the streams before the layers
    edits = [exchange_links(1, 2, 6, [4], [5])]
    streams = view.residual_stream(tokens)
    with counting(view._modules) as calls:
        late = view.logits(tokens, None, edits, streams)
        clean = view.logits(tokens, None, [], streams)
    assert calls == [1, 2]
    torch.testing.assert_close(late, view.logits(tokens, None, edits))
    torch.testing.assert_close(clean, view.logits(tokens))


def test_a_model_that_mixes_positions_outside_attention_gets_whole_passes() -> None:
    view = make_view.__wrapped__("llama")  # not from the cache: its layers change
    check_refusals(view)

    def add_neighbour(module: torch.nn.Module, inputs: Any, output: Tensor) -> Tensor:
        return output + output.roll(1, dims=1) / 2

    view.model.model.layers[1].mlp.register_forward_hook(add_neighbour)
    site_pass = view.site_pass(torch.randint(V, (2, 6)), torch.tensor([5, 3]))
    assert type(site_pass) is SitePass


@each_type
def test_the_record_is_consistent_with_head_weights(model_type: str, tokens: Tensor) -> None:
    view = make_view(model_type)
    for layer, record in enumerate(view.record(tokens)):
        torch.testing.assert_close(record.scores.softmax(-1) @ record.values, record.head_output)
        weights, module = view.head_weights(layer), view._modules[layer]
        zero = torch.einsum("btd,hkd->bhtk", record.inputs, weights.value) - record.values  # minus the bias, if any
        torch.testing.assert_close(zero, zero[:1, :, :1].expand_as(zero), rtol=1e-4, atol=1e-5)
        added = torch.einsum("bhtk,hdk->btd", record.head_output, weights.output)
        name = next(name for name in ("o_proj", "out_proj", "c_proj", "dense") if hasattr(module, name))
        projection = getattr(module, name)
        expected = projection(record.head_output.transpose(1, 2).flatten(2))
        if projection.bias is not None:
            expected -= projection.bias
        torch.testing.assert_close(added, expected, rtol=1e-4, atol=1e-5)


@each_type
def test_contributions_to_the_final_norm_add_up_to_logits(model_type: str, tokens: Tensor) -> None:
    view = make_view(model_type)
    stream, unembedding = view.residual_stream(tokens)[-1], view.unembedding()
    difference = unembedding[3] - unembedding[8]
    pulled = view.final_norm_pullback(difference.expand_as(stream), stream)
    body = getattr(view.model.base_model, "decoder", view.model.base_model)
    norm = next(module for name, module in body.named_children() if "norm" in name or name == "ln_f")
    bias = 0.0 if getattr(norm, "bias", None) is None else (norm.bias * difference).sum()
    torch.testing.assert_close((pulled * stream).sum(-1) + bias, norm(stream) @ difference, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("model_type", ["bloom", "gpt_neo"])
def test_models_off_the_attention_interface_are_refused_by_name(model_type: str) -> None:
    shape = {"hidden_size": D, "n_layer": 2, "num_layers": 2, "n_head": H, "num_heads": H, "vocab_size": V}
    shape |= {"attention_types": [[["global", "local"], 1]], "max_position_embeddings": 16}
    config = transformers.AutoConfig.for_model(model_type, **shape)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    with pytest.raises(ValueError, match=f"model_type={model_type}"):
        TransformersView(model)
