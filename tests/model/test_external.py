"""model/external.py: folders and checkpoints of other programs, opened or refused in one line."""

import json
import re
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor

from data.errors import UserError
from data.tokenizer import END, bpe_tokenizer
from model.export import export_transformers
from model.external import find_model, open_transformers
from model.transformers_view import TransformersView
from tests.tiny_models import untrained

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


def test_an_exported_folder_opens_with_the_same_tokens_and_start(folder: Path, tokenizer: Tokenizer) -> None:
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
def test_a_folder_that_cannot_be_used_is_refused_in_one_line_and_runs_no_code(
    folder: Path, damage: Any, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
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
