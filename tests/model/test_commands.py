"""`python -m model.export` and `python -m model.generate` on a run."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from model import export, generate
from model.export import model_card, read_claims
from model.generate import generate as generate_tokens
from tests.model.standard import V, config, random_model

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


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["run=sound"], "to="),
        (["run=sound", "to=onnx"], "to=onnx"),
        (["run=sound", "too=hf"], "too=hf"),
        (["run=nowhere", "to=hf"], "nowhere"),
        (["run=sound", "to=hf", "out=sound/config.json"], "out=sound/config.json"),
        (["run=sound", "to=hf", "out=sound/config.json/new"], "sound/config.json"),
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
