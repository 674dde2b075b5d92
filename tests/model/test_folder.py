"""Folders of transformers: loaded as they were saved, refused in one line where they are not whole."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("transformers")
from model.imported import Imported, load
from tests.model.test_imported import _LLAMA3, SHAPES, T, V, gpt2, llama, theirs


@pytest.fixture
def tokens() -> Tensor:
    return torch.randint(V, (3, T), generator=torch.Generator().manual_seed(5))


@torch.no_grad()
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_an_unembedding_that_the_file_holds_counts_whatever_the_settings_say(
    tmp_path: Path, name: str, tokens: Tensor
) -> None:
    """As transformers has it: two matrices that differ are not tied."""
    untied = theirs((gpt2 if name == "gpt2" else llama)(tie_word_embeddings=False))
    untied.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": True}))
    model = load(tmp_path, name, torch.device("cpu"))
    assert torch.equal(model(tokens), untied(tokens).logits) and "an unembedding of its own" in model.departures
    assert "an unembedding of its own" not in Imported(theirs(SHAPES["gpt2"])).departures


def saved(folder: Path, config: Any = None, **how: Any) -> Path:
    theirs(config or SHAPES["llama"]).save_pretrained(folder, **how)
    return folder


@torch.no_grad()
@pytest.mark.parametrize("config", ["gpt2", "llama", "llama, grouped heads, own unembedding", "qwen2"])
def test_a_folder_is_loaded_as_it_was_saved(tmp_path: Path, config: str, tokens: Tensor) -> None:
    model = load(saved(tmp_path, SHAPES[config]), "it", torch.device("cpu"))
    assert torch.equal(model(tokens), theirs(SHAPES[config])(tokens).logits)


@torch.no_grad()
def test_weights_kept_in_half_the_bits_are_computed_with_in_float32(tmp_path: Path, tokens: Tensor) -> None:
    theirs(llama(tie_word_embeddings=True)).to(torch.bfloat16).save_pretrained(tmp_path)
    model = load(tmp_path, "it", torch.device("cpu"))
    assert {one.dtype for one in model.parameters()} == {model(tokens).dtype} == {torch.float32}


def rewrite(path: Path, **values: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def lose_a_weight(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    weights.pop("model.layers.1.mlp.up_proj.weight")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def hold_more(folder: Path, **more: Tensor) -> None:
    from safetensors.torch import load_file, save_file

    save_file(load_file(folder / "model.safetensors") | more, folder / "model.safetensors", metadata={"format": "pt"})


def pickle_instead(folder: Path, held: Any) -> None:
    (folder / "model.safetensors").unlink()
    torch.save(held, folder / "pytorch_model.bin")


def make_one_infinite(folder: Path) -> None:
    made = theirs(SHAPES["llama"])
    made.model.norm.weight.data[3] = float("inf")
    made.save_pretrained(folder)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda folder: (folder / "config.json").unlink(), "it has no config.json"),
        (lambda folder: (folder / "config.json").write_text("{"), "config.json is damaged"),
        (lambda folder: rewrite(folder / "config.json", model_type="mamba"), "model_type=mamba cannot be probed"),
        (lambda folder: rewrite(folder / "config.json", quantization_config={"bits": 4}), "quantized"),
        (lambda folder: rewrite(folder / "config.json", hidden_size="wide"), "transformers cannot load it"),
        (lambda folder: (folder / "model.safetensors").unlink(), "has no weights"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"no"), "transformers cannot load it"),
        (lambda folder: rewrite(folder / "config.json", hidden_act="foo"), "cannot load it: KeyError: 'foo'$"),
        (lambda folder: rewrite(folder / "config.json", num_hidden_layers=0), "it: num_hidden_layers=0 cannot"),
        (lambda folder: rewrite(folder / "config.json", num_attention_heads=0), "it: num_attention_heads=0 cannot"),
        (lambda folder: rewrite(folder / "config.json", rope_parameters=_LLAMA3 | {"factor": 0.0}), "not finite"),
        (lambda folder: pickle_instead(folder, {"model.norm.weight": "x"}), "hold more than tensors"),
        (lambda folder: pickle_instead(folder, [1]), "hold more than tensors"),
        (lose_a_weight, r"it lacks model\.layers\.1\.mlp\.up_proj\.weight: it is not whole"),
        (
            lambda folder: rewrite(folder / "config.json", num_hidden_layers=1),
            r"it holds model\.layers\.1\.input_layernorm\.weight, and 17 more of its weights: config\.json does not",
        ),
        (
            lambda folder: hold_more(folder, **{"model.norm.bias": torch.ones(24)}),
            r"it holds model\.norm\.bias: config",
        ),
        (make_one_infinite, "weights that are not finite"),
        (
            lambda folder: rewrite(folder / "config.json", intermediate_size=32),
            r"size of model\.layers\.0\.mlp\.down_proj",
        ),
    ],
)
def test_a_folder_that_is_not_whole_is_refused_in_one_line(tmp_path: Path, spoil: Any, said: str) -> None:
    spoil(saved(tmp_path))
    with pytest.raises(ValueError, match=said) as caught:
        load(tmp_path, "it", torch.device("cpu"))
    assert "\n" not in str(caught.value)


def test_biases_that_the_settings_do_not_ask_for_are_not_dropped(tmp_path: Path) -> None:
    rewrite(saved(tmp_path, SHAPES["llama, biases"]) / "config.json", attention_bias=False)
    with pytest.raises(ValueError, match=r"it holds model\.layers\.0\.self_attn\.k_proj\.bias, and 11 more"):
        load(tmp_path, "it", torch.device("cpu"))


@torch.no_grad()
@pytest.mark.parametrize(
    ("config", "prefix", "more"),
    [
        ("gpt2", "transformer.h.0.attn.", ("bias", "masked_bias")),
        ("gpt2", "h.0.attn.", ("bias", "masked_bias")),
        ("llama", "model.layers.0.self_attn.rotary_emb.", ("inv_freq",)),
    ],
)
def test_what_old_files_hold_and_nobody_computes_with_is_let_be(
    tmp_path: Path, config: str, prefix: str, more: tuple[str, ...], tokens: Tensor
) -> None:
    made = theirs(SHAPES[config])
    made.save_pretrained(tmp_path)
    unembedding = made.get_output_embeddings().weight.clone()  # a second copy of it, where it is tied
    hold_more(tmp_path, **{prefix + name: torch.ones(3) for name in more} | {"lm_head.weight": unembedding})
    assert torch.equal(load(tmp_path, "it", torch.device("cpu"))(tokens), made(tokens).logits)


@pytest.mark.parametrize("error", [IndexError, KeyError, TypeError, AttributeError, RuntimeError, ZeroDivisionError])
def test_whatever_goes_wrong_in_reading_is_one_line_with_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    def fail(*_: Any) -> None:
        raise error("lost")

    monkeypatch.setattr("model.imported._departures", fail)
    with pytest.raises(ValueError, match=f"^it cannot be read: {error.__name__}: .?lost"):
        load(saved(tmp_path), "it", torch.device("cpu"))


@pytest.mark.parametrize("sections", [{"run": {}, "data": {}, "optim": {}}, {}])
def test_a_run_of_ours_is_said_to_be_one(tmp_path: Path, sections: Any) -> None:
    (tmp_path / "config.json").write_text(json.dumps(sections | {"model": {}}))
    if not sections:
        (tmp_path / "checkpoints").mkdir()
    with pytest.raises(ValueError, match="^runs/it is a run: run=runs/it probes it$"):
        load(tmp_path, "runs/it", torch.device("cpu"))


class Evil:
    """What runs a command as soon as it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, tuple[str, ...]]:
        return Path.touch, (self.mark,)  # type: ignore[return-value]


def test_no_code_comes_with_a_folder(tmp_path: Path) -> None:
    """Neither a pickle's nor a module's that config.json names."""
    folder = saved(tmp_path / "model")
    (folder / "mine.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    rewrite(folder / "config.json", auto_map={"AutoModelForCausalLM": "mine.Model", "AutoConfig": "mine.Config"})
    load(folder, "it", torch.device("cpu"))
    (folder / "model.safetensors").unlink()
    torch.save({"model.norm.weight": Evil(tmp_path / "ran")}, folder / "pytorch_model.bin")
    with pytest.raises(ValueError, match="its weights hold more than tensors, which is not opened") as caught:
        load(folder, "it", torch.device("cpu"))
    assert "weights_only" not in str(caught.value)
    assert not (tmp_path / "ran").exists()
