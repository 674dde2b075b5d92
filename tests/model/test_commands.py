"""`python -m model.export` and `python -m model.generate` on a run, and the formats they write."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from data.tokenizer import END, UNKNOWN, bpe_tokenizer, character_tokenizer, word_tokenizer
from model import export, generate
from model.config import Position
from model.export import gguf_weights, interleave_pairs, model_card, read_claims, write_gguf
from model.generate import generate as generate_tokens
from model.transformer import Transformer, attention_scores, rotary_angles
from tests.model.standard import H, K, V, config, random_model

ROOT = Path(__file__).parents[2]
SETTINGS = (
    "data=text", "data.path=text.txt", "data.tokenizer=characters", "data.validation_fraction=0.3", "model=nano",
    "threads=1", "max_steps=2", "tokens_per_batch=64", "validation_tokens=50", "sample_tokens=0", "cache_dir=cache",
)  # fmt: skip


# Generated text


def test_generation_depends_on_its_seed_and_leaves_the_global_random_state() -> None:
    model, start, state = random_model(), torch.tensor([3, 1]), torch.get_rng_state()
    text = generate_tokens(model, start, 23, temperature=1.0, seed=5)
    assert len(text) == 25 > config().context_length
    assert torch.equal(state, torch.get_rng_state())
    assert torch.equal(text, generate_tokens(model, start, 23, temperature=1.0, seed=5))
    assert not torch.equal(text, generate_tokens(model, start, 23, temperature=1.0, seed=6))


def test_temperature_zero_takes_the_most_probable_token_and_end_stops() -> None:
    model, start = random_model(), torch.tensor([3])
    likeliest = int(model(start[None])[0, -1].argmax())
    assert generate_tokens(model, start, 1, temperature=0, seed=0).tolist() == [3, likeliest]
    assert generate_tokens(model, start, 9, temperature=0, seed=0, end=likeliest).tolist() == [3]


def test_generation_stops_at_logits_that_are_not_finite() -> None:
    model = random_model()
    model.final_norm.gain.data.fill_(torch.nan)
    assert generate_tokens(model, torch.tensor([3]), 9, temperature=1.0, seed=0).tolist() == [3]


# GGUF files

TEXT = "One sunny day, the cat sat near the buses. It purred. They skidded.\nWhere is it?\n"


def make_model(tokenizer: Tokenizer) -> Transformer:
    model = Transformer(config(), tokenizer.get_vocab_size(), seed=0)
    for weight in model.parameters():
        weight.data.normal_(generator=torch.Generator().manual_seed(1))
    return model.eval()


@pytest.mark.parametrize(
    ("tokenizer", "kind"),
    [
        (word_tokenizer([TEXT]), "no_vocab"),
        (character_tokenizer([TEXT]), "no_vocab"),
        (bpe_tokenizer([TEXT], 280), "gpt2"),
    ],
    ids=["words", "characters", "bpe"],
)
def test_a_gguf_file_holds_the_weights_settings_and_tokens(tmp_path: Path, tokenizer: Tokenizer, kind: str) -> None:
    gguf = pytest.importorskip("gguf")
    model = make_model(tokenizer)
    write_gguf(tmp_path / "model.gguf", model, tokenizer, "name")
    reader = gguf.GGUFReader(tmp_path / "model.gguf")
    weights = gguf_weights(model)
    assert {tensor.name for tensor in reader.tensors} == weights.keys() and len(weights) == 2 + 2 * 9
    for tensor in reader.tensors:
        np.testing.assert_array_equal(np.array(tensor.data), weights[tensor.name].numpy())
    fields = {name: field.contents() for name, field in reader.fields.items()}
    assert (fields["general.architecture"], fields["llama.rope.freq_base"]) == ("llama", 1e4)
    assert fields["llama.attention.layer_norm_rms_epsilon"] == pytest.approx(1e-5)
    tokens = fields["tokenizer.ggml.tokens"]
    assert [tokenizer.token_to_id(token) for token in tokens] == list(range(model.vocab_size))
    assert tokens[fields["tokenizer.ggml.bos_token_id"]] == tokens[fields["tokenizer.ggml.eos_token_id"]] == END
    types = dict(zip(tokens, fields["tokenizer.ggml.token_type"], strict=True))
    assert END in {token for token, number in types.items() if number != 1} <= {END, UNKNOWN}
    assert fields["tokenizer.ggml.model"] == kind
    assert Tokenizer.from_str(fields["tokenizer.huggingface.json"]).to_str() == tokenizer.to_str()


def test_a_tokenizer_that_llama_cpp_would_apply_differently_is_not_declared_as_gpt2() -> None:
    prefix_space, lower_case = bpe_tokenizer([TEXT], 280), bpe_tokenizer([TEXT], 280)
    prefix_space.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    lower_case.normalizer = normalizers.Lowercase()
    unigram = Tokenizer(models.Unigram([("<unk>", 0.0), ("cat", -1.0), ("▁", -2.0)], unk_id=0))
    unigram.pre_tokenizer, unigram.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    unigram.add_special_tokens([END])
    for tokenizer in (prefix_space, lower_case, unigram):
        assert not export.is_byte_bpe(json.loads(tokenizer.to_str()))


def test_a_model_that_is_no_llama_is_refused_before_a_gguf_file_is_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="model.position=alibi"):
        write_gguf(tmp_path / "model.gguf", random_model(position=Position.alibi), bpe_tokenizer([TEXT], 280), "name")
    assert not list(tmp_path.iterdir())


def test_interleaved_pairs_by_hand() -> None:
    rows = torch.arange(12.0)[:, None].expand(12, 3)  # two heads of width 6
    assert interleave_pairs(rows, 2)[:, 0].tolist() == [0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11]


def test_llama_cpps_rotation_of_interleaved_pairs_gives_the_same_scores() -> None:
    pytest.importorskip("gguf")
    model = random_model()
    attention, x = model.layers()[0].attention, torch.randn(1, 7, H * K, generator=torch.Generator().manual_seed(3))
    rotation = torch.polar(torch.ones(7, K // 2), rotary_angles(torch.arange(7), K, attention.theta))  # [T, K/2]
    rotated = []
    for name in ("attn_q", "attn_k"):
        heads = (x @ gguf_weights(model)[f"blk.0.{name}.weight"].T).unflatten(-1, (H, K // 2, 2)).transpose(1, 2)
        rotated.append(torch.view_as_real(torch.view_as_complex(heads.contiguous()) * rotation).flatten(-2))
    expected = attention.scores(*attention.project(x)[:2])
    torch.testing.assert_close(attention_scores(*rotated), expected, rtol=1e-4, atol=1e-5)


# The model card


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


# Command lines


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the run "sound" of two steps on a short text."""
    folder = tmp_path_factory.mktemp("commands")
    (folder / "text.txt").write_text("Tom ran. He sat.\n" * 60)
    command = [sys.executable, ROOT / "train.py", *SETTINGS, "out=sound"]
    trained = subprocess.run(command, cwd=folder, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True)
    assert trained.returncode == 0, trained.stderr.decode()
    return folder


@pytest.fixture
def run(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The setting run= of a copy of the run; the current directory is where it lies."""
    shutil.copytree(folder / "sound", tmp_path / "sound")
    monkeypatch.chdir(tmp_path)
    return "run=sound"


def refusal(program: object, arguments: list[str], capsys: pytest.CaptureFixture) -> str:
    """Return the one line on stderr with which a program exits with status 2."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as exited:
        program.main(arguments)  # type: ignore[attr-defined]
    assert exited.value.code == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and lines[0].startswith("error: ")
    return lines[0]


def test_an_exported_run_opens_in_transformers_with_the_same_logits(run: str) -> None:
    transformers = pytest.importorskip("transformers")
    export.main([run, "to=hf"])
    llama = transformers.AutoModelForCausalLM.from_pretrained("sound/export/hf")
    weights = torch.load(max(Path("sound/checkpoints").glob("*.pt")), weights_only=True)["model"]
    torch.testing.assert_close(llama.get_output_embeddings().weight, weights["token_embedding.weight"])
    tokenizer = transformers.AutoTokenizer.from_pretrained("sound/export/hf")
    assert tokenizer("Tom sat.")["input_ids"] == Tokenizer.from_file("sound/tokenizer.json").encode("Tom sat.").ids
    assert "step 2" in Path("sound/export/hf/README.md").read_text()


def test_an_export_to_gguf_is_one_readable_file(run: str) -> None:
    gguf = pytest.importorskip("gguf")
    export.main([run, "to=gguf", "out=deep/er/model.gguf"])
    assert [path.name for path in Path("deep/er").iterdir()] == ["model.gguf"]
    assert gguf.GGUFReader("deep/er/model.gguf").fields["general.name"].contents() == "sound"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["run=sound"], "to="),
        (["run=sound", "to=onnx"], "to=onnx"),
        (["run=sound", "too=hf"], "too=hf"),
        (["run=nowhere", "to=hf"], "nowhere"),
        (["run=sound", "to=hf", "out=sound/config.json"], "out=sound/config.json"),
        (["run=sound", "to=gguf", "out=sound/config.json/new"], "sound/config.json"),
    ],
)
def test_an_export_that_is_not_possible_is_one_line_and_writes_nothing(
    run: str, arguments: list[str], text: str, capsys: pytest.CaptureFixture
) -> None:
    files = {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}
    assert text in refusal(export, arguments, capsys)
    assert files == {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}


def test_a_damaged_run_is_neither_exported_nor_read(run: str, capsys: pytest.CaptureFixture) -> None:
    with Path("sound/tokenizer.json").open("a") as file:
        file.write("\n")
    for program, arguments in ((export, [run, "to=hf"]), (generate, [run])):
        assert "tokenizer.json" in refusal(program, arguments, capsys)
    assert not Path("sound/export").exists()


def test_generate_continues_the_prompt_and_only_that_goes_to_stdout(run: str, capsys: pytest.CaptureFixture) -> None:
    capsys.readouterr()
    generate.main([run, "prompt=Tom", "n_tokens=5", "seed=1"])
    captured = capsys.readouterr()
    assert captured.out.startswith("Tom") and 4 <= len(captured.out) <= 9 and captured.err == ""


@pytest.mark.parametrize("setting", ["n_tokens=0", "seed=-1", "temperature=0.001", "tokens=3"])
def test_generate_refuses_values_out_of_range(run: str, setting: str, capsys: pytest.CaptureFixture) -> None:
    assert setting.partition("=")[0] in refusal(generate, [run, setting], capsys)


@pytest.mark.parametrize(
    ("program", "schema"), [(export, export.ExportSettings), (generate, generate.GenerateSettings)]
)
def test_help_lists_every_setting(program: object, schema: type, capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit) as exited:
        program.main(["--help"])  # type: ignore[attr-defined]
    assert not exited.value.code
    assert schema.__dataclass_fields__.keys() <= set(capsys.readouterr().out.split())
