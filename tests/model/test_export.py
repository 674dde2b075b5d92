"""What is exported is the same model: transformers and a GGUF reader compute and read what we have."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from benchmarks.doors import lines
from data.tokenizer import END, UNKNOWN, bpe_tokenizer, character_tokenizer, word_tokenizer
from model.config import ModelConfig
from model.export import (
    claims_of,
    gguf_weights,
    in_neighbouring_pairs,
    llama_weights,
    model_card,
    whole,
    write_gguf,
    write_llama,
)
from model.observe import attention_maps
from model.transformer import Transformer, causal_attention_scores, rotary_angles
from tests.model.standard import PLAIN, VARIANTS

TEXT = "One sunny day, the cat sat near the buses. It purred. They skidded.\nWhere is it?\n"
KINDS = {
    "words": lambda: word_tokenizer([TEXT]),
    "characters": lambda: character_tokenizer([TEXT]),
    "bpe": lambda: bpe_tokenizer([TEXT * 3], 280),
}


def made(tokenizer: Tokenizer, **changes: Any) -> Transformer:
    """A model none of whose weights is 0 or 1, so that each of them matters."""
    shape = {"n_layer": 3, "n_head": 4, "d_model": 48, "d_mlp": 80, "context_length": 40, "rope_theta": 123.0}
    model = Transformer(ModelConfig(**{**PLAIN, **shape, "norm_eps": 1e-3, **changes}), tokenizer.get_vocab_size(), 0)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for one in model.parameters():
            one.normal_(0.5 if one.ndim == 1 else 0.0, 48**-0.5, generator=generator)
    return model.eval()


def exported(folder: Path, model: Transformer, tokenizer: Tokenizer) -> Path:
    write_llama(folder / "hf", model, tokenizer.to_str(), END, model_card(model, {}, ""))
    return folder / "hf"


def some_tokens(model: Transformer) -> torch.Tensor:
    return torch.randint(model.vocab_size, (5, 40), generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("changes", [{}, {"tie_query_key": True}, {"tie_key_value": True, "dropout": 0.1}])
def test_transformers_computes_the_same_logits_to_the_bit_and_the_same_weights_of_heads(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = KINDS["bpe"]()
    model = made(tokenizer, **changes)
    folder, tokens = exported(tmp_path, model, tokenizer), some_tokens(model)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder)
    assert theirs.dtype == torch.float32 and theirs.config.tie_word_embeddings
    assert torch.equal(theirs(tokens).logits, model(tokens))
    eager = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    out = eager(tokens, output_attentions=True)
    torch.testing.assert_close(out.logits, model(tokens), rtol=0, atol=1e-5)  # its softmax is no fused one
    torch.testing.assert_close(torch.stack(out.attentions), attention_maps(model, tokens), rtol=0, atol=1e-6)
    assert json.loads((folder / "config.json").read_text())["bos_token_id"] == tokenizer.token_to_id(END)


@pytest.mark.parametrize("kind", KINDS)
def test_ten_thousand_lines_are_the_same_tokens(tmp_path: Path, kind: str) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = KINDS[kind]()
    folder = exported(tmp_path, made(tokenizer), tokenizer)
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    some = lines(10_000)
    ours = [one.ids for one in tokenizer.encode_batch(some)]
    assert theirs(some)["input_ids"] == ours and len({*map(tuple, ours)}) > 5000
    assert theirs.decode(ours[0]) == tokenizer.decode(ours[0], skip_special_tokens=False)
    assert theirs.bos_token == theirs.eos_token == theirs.pad_token == END
    assert theirs.bos_token_id == tokenizer.token_to_id(END) and theirs.model_max_length == 40
    assert theirs.unk_token == (None if kind == "bpe" else UNKNOWN)


@pytest.mark.parametrize("name", [name for name in VARIANTS if name != "plain"])
def test_what_no_llama_has_is_refused_by_name_and_nothing_is_written(tmp_path: Path, name: str) -> None:
    tokenizer, changes = KINDS["bpe"](), VARIANTS[name]
    model = made(tokenizer, **changes)
    for write in (
        lambda: exported(tmp_path, model, tokenizer),
        lambda: write_gguf(tmp_path / "m.gguf", model, tokenizer.to_str(), END, "m"),
    ):
        with pytest.raises(ValueError, match="no Llama has that") as refused:
            write()
        for switch, value in changes.items():
            said = f"model.{switch}={str(value).lower()}"
            assert (said in str(refused.value)) == (not switch.startswith("tie_"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_gguf_file_reads_back_as_it_was_written(tmp_path: Path, kind: str) -> None:
    gguf = pytest.importorskip("gguf")
    tokenizer = KINDS[kind]()
    model = made(tokenizer)
    note = write_gguf(tmp_path / "model.gguf", model, tokenizer.to_str(), END, "a name")
    assert [one.name for one in tmp_path.iterdir()] == ["model.gguf"]
    read = gguf.GGUFReader(tmp_path / "model.gguf")
    found = {one.name: np.array(one.data) for one in read.tensors}
    written = gguf_weights(model)
    assert found.keys() == written.keys() and len(found) == 2 + 3 * 9
    for name, weights in written.items():
        np.testing.assert_array_equal(found[name], weights.numpy())
    fields = {name: field.contents() for name, field in read.fields.items()}
    assert fields["general.architecture"] == "llama" and fields["llama.rope.freq_base"] == 123.0
    assert fields["llama.attention.layer_norm_rms_epsilon"] == pytest.approx(1e-3)
    pieces = fields["tokenizer.ggml.tokens"]
    assert [tokenizer.token_to_id(piece) for piece in pieces] == [*range(model.vocab_size)]
    special = [piece for piece, kind in zip(pieces, fields["tokenizer.ggml.token_type"], strict=True) if kind != 1]
    assert END in special and set(special) <= {END, UNKNOWN}
    assert pieces[fields["tokenizer.ggml.bos_token_id"]] == pieces[fields["tokenizer.ggml.eos_token_id"]] == END
    assert Tokenizer.from_str(fields["tokenizer.huggingface.json"]).to_str() == tokenizer.to_str()
    assert (fields["tokenizer.ggml.model"] == "gpt2") == (kind == "bpe") == (note == "")


def test_neighbouring_pairs_turned_score_as_our_halves_do() -> None:
    """As llama.cpp turns them: rows 2 i and 2 i + 1 of a head together, by the angle of the pair i."""
    model = made(KINDS["bpe"]())
    attention, x = next(model.layers()).attention, torch.randn(1, 7, 48, generator=torch.Generator().manual_seed(3))
    angles = rotary_angles(torch.arange(7), 12, attention.theta)  # [T, K/2]
    query, key = (
        (x @ gguf_weights(model)[f"blk.0.attn_{one}.weight"].T)
        .unflatten(-1, (4, 6, 2))
        .transpose(1, 2)  # [B, H, T, K/2, 2]
        for one in "qk"
    )
    turned = [torch.view_as_complex(one.contiguous()) * torch.polar(torch.ones(7, 6), angles) for one in (query, key)]
    query, key = (torch.view_as_real(one).flatten(-2) for one in turned)
    torch.testing.assert_close(causal_attention_scores(query, key), attention.scores(x))


def with_prefix() -> Tokenizer:
    tokenizer = bpe_tokenizer([TEXT], 280)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    return tokenizer


def with_lower_case() -> Tokenizer:
    tokenizer = bpe_tokenizer([TEXT], 280)
    tokenizer.normalizer = normalizers.Lowercase()
    return tokenizer


def of_scores() -> Tokenizer:
    """A unigram model, whose tokenizer.json lists pieces with their scores."""
    tokenizer = Tokenizer(models.Unigram([("<unk>", 0.0), ("cat", -1.0), ("▁", -2.0)], unk_id=0))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    tokenizer.add_special_tokens([END])
    return tokenizer


@pytest.mark.parametrize("tokenizer", [with_prefix, with_lower_case, of_scores])
def test_llama_cpp_is_given_no_tokenizer_that_it_would_read_otherwise(
    tmp_path: Path, tokenizer: Callable[[], Tokenizer]
) -> None:
    gguf = pytest.importorskip("gguf")
    made_one = tokenizer()
    note = write_gguf(tmp_path / "m.gguf", made(made_one), made_one.to_str(), END, "m")
    fields = gguf.GGUFReader(tmp_path / "m.gguf").fields
    assert "can neither read nor write text" in note
    assert fields["tokenizer.ggml.model"].contents() == "no_vocab" and "tokenizer.ggml.merges" not in fields
    assert fields["tokenizer.ggml.tokens"].contents()[made_one.token_to_id(END)] == END


def test_neighbouring_pairs_are_the_halves_of_each_head() -> None:
    rows = torch.arange(12.0)[:, None].expand(12, 3)  # two heads of width 6
    assert in_neighbouring_pairs(rows, 2)[:, 0].tolist() == [0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11]


def test_no_two_weights_share_memory() -> None:
    weights = llama_weights(made(KINDS["bpe"](), tie_query_key=True, tie_key_value=True))
    assert len({one.data_ptr() for one in weights.values()}) == len(weights) == 2 + 3 * 9


def test_what_fails_half_way_leaves_nothing_and_what_stands_there_is_not_written_over(tmp_path: Path) -> None:
    tokenizer = KINDS["bpe"]()
    model = made(tokenizer)
    with pytest.raises(OSError, match="no space left"), whole(tmp_path / "new" / "a" / "it") as new:
        new.write_text("half")
        raise OSError("no space left")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(FileExistsError), whole(tmp_path / "mine") as new:
        new.write_text("theirs")
        (tmp_path / "mine").write_text("mine")  # another began at the same time
    for write in (
        lambda: write_llama(tmp_path / "mine", model, tokenizer.to_str(), END, ""),
        lambda: write_gguf(tmp_path / "mine", model, tokenizer.to_str(), END, "m"),
    ):
        with pytest.raises(FileExistsError, match="mine is there already"):
            write()
    assert [one.name for one in tmp_path.iterdir()] == ["mine"] and (tmp_path / "mine").read_text() == "mine"


def test_a_claim_is_of_the_step_that_was_probed_or_nothing_is_claimed(tmp_path: Path) -> None:
    assert claims_of(tmp_path, 7).startswith("Nobody has probed this run")
    (tmp_path / "probe").mkdir()
    (tmp_path / "probe" / "claims.md").write_text("## number\n\nHead L0H0 links\n")
    (tmp_path / "probe" / "probe.json").write_text("[")
    assert claims_of(tmp_path, 7).startswith("Nobody has probed this run")
    (tmp_path / "probe" / "probe.json").write_text('{"model": {"step": 7}}')
    assert claims_of(tmp_path, 7) == "## number\n\nHead L0H0 links"
    assert claims_of(tmp_path, 8) == "Probed was step 7, and this is step 8: nothing is claimed of any of its heads."
    (tmp_path / "probe" / "claims.md").write_text("\n")
    assert claims_of(tmp_path, 7).startswith("Nobody has probed this run")
    (tmp_path / "probe" / "claims.md").write_text("Head L0H0 links\n")
    card = model_card(made(KINDS["bpe"]()), {"Training": "data=stories."}, claims_of(tmp_path, 7))
    assert card.startswith("---\nlibrary_name: transformers") and card.endswith("Head L0H0 links\n")
    assert "3 layers of 4 heads, width 48" in card and "**Training.** data=stories." in card
