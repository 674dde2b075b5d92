"""python eval.py model= from outside: a model of transformers is asked what a run is asked, and answers the same."""

import csv
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from tokenizers import Tokenizer

from data.config import StoriesConfig
from data.stories import generate_split
from data.tokenizer import END, bpe_tokenizer
from model.imported import ImportedAttention
from probe import open_model as importing
from probe.config import ProbeConfig
from probe.open import Opened, read_run
from probe.open_model import open_model
from probe.probing import probe_stories
from probe.sentence_command import look
from report import reporting
from tests.pages import content_of
from tests.reliability.doors import Doors
from tests.reliability.faults import tell_few_stories
from tests.test_eval import FILES, PROBE, ROOT, SCHEMA, probe_files
from training.device import choose_place
from training.settings import Device, EvalConfig, Precision

transformers = pytest.importorskip("transformers")
from benchmarks.attention_rows import llama

# A run that has learned something, so that no two of its heads are alike; of few stories, for they are probed twice.
TRAIN = [
    "model=nano", "model.n_layer=2", "threads=1", "max_steps=60", "eval_every_steps=60", "tokens_per_batch=512",
    "validation_tokens=200", "probe_sequences=0", "sample_tokens=0", "data.n_train_stories=4000",
    "data.n_validation_stories=40", "data.n_test_templates=2", "data.n_test_pairs=2",
]  # fmt: skip
SETTINGS = ProbeConfig(seed=0, tokens_per_batch=4096, n_bootstrap=100, n_untrained=2, n_controls=10)


@pytest.fixture(scope="module")
def place(doors: Doors, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run that was probed, and the same model as transformers writes it: model/."""
    here = tmp_path_factory.mktemp("imported")
    cache = f"cache_dir={here / 'cache'}"
    for command in (["train.py", f"out={here / 'run'}", *TRAIN], ["eval.py", f"run={here / 'run'}", *PROBE]):
        done = doors.run(*command, cache, *(["probe.tokens_per_batch=4096"] if command[0] == "eval.py" else []))
        assert done.status == 0, done.err
    run = read_run(here / "run", choose_place(Device.cpu, Precision.float32))
    llama(run.model).save_pretrained(here / "model")
    save_tokenizer(run.tokenizer, here / "model")
    return here


def save_tokenizer(tokenizer: Any, folder: Path, **given: Any) -> None:
    tokens = {"bos_token": END, "eos_token": END} | given
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **tokens).save_pretrained(folder)


def asked(model: Path, out: Path | None, cache_dir: Path, **given: Any) -> EvalConfig:
    nothing = dict.fromkeys(("run", "runs", "compare", "text", "task", "path"))
    return EvalConfig(
        **nothing | {"model": str(model), "out": str(out) if out else None, "open": False, "figures": False} | given,
        device=Device.cpu, threads=1, cache_dir=str(cache_dir),
    )  # fmt: skip


def stories(place: Path) -> StoriesConfig:
    """The stories of the run: eval.py takes those of the default settings, whose telling takes longer."""
    config = read_run(place / "run", choose_place(Device.cpu, Precision.float32)).data
    assert isinstance(config, StoriesConfig)
    return config


def opened(place: Path, model: Path, out: Path) -> tuple[Opened, EvalConfig]:
    settings = asked(model, out, place / "cache")
    return open_model(settings, str(model), stories(place)), settings


@pytest.fixture(scope="module")
def probed(place: Path) -> Path:
    found, settings = opened(place, place / "model", place / "out")
    assert probe_stories(found, settings, SETTINGS, say=lambda line: None)
    return place / "out"


def heads(folder: Path) -> list[dict[str, str]]:
    return list(csv.DictReader((folder / "probe" / "heads.csv").read_text().splitlines()))


def test_probing_through_transformers_gives_the_same_table_of_heads_as_natively(place: Path, probed: Path) -> None:
    ours, theirs = heads(place / "run"), heads(probed)
    assert len(ours) == len(theirs) > 20
    scores = [name for name in ours[0] if name not in ("question", "family", "site", "split", "holdout")]
    for one, other in zip(ours, theirs, strict=True):
        assert [one[name] for name in one if name not in scores] == [other[name] for name in one if name not in scores]
        for name in scores:
            assert float(one[name]) == pytest.approx(float(other[name]), abs=1e-5), (one, name)
    assert len({one["preference"] for one in ours}) > len(ours) // 2


def test_what_else_is_found_is_the_same_but_for_what_nobody_can_know(place: Path, probed: Path) -> None:
    ours, theirs = (json.loads((place / name / "probe" / "probe.json").read_text()) for name in ("run", "out"))
    Draft202012Validator(SCHEMA).validate(theirs)
    assert set(probe_files(probed)) == set(FILES)
    assert (theirs["model"]["run"], theirs["model"]["name"]) == (str(place / "model"), "model")
    assert theirs["model"]["step"] == 0 and len(theirs["model"]["sha256"]) == 64 and theirs["model"]["commit"] is None
    assert theirs["data"] == ours["data"] | {"leakage": None}
    for one, other in zip(ours["behaviour"], theirs["behaviour"], strict=True):
        assert [one[name] for name in ("family", "n", "h_bayes")] == [
            other[name] for name in ("family", "n", "h_bayes")
        ]
        assert one["nll"] == pytest.approx(other["nll"], abs=1e-5)
        assert (one["rho"] is None) == (other["rho"] is None)
    for one, other in zip(ours["selected"], theirs["selected"], strict=True):
        assert [one[name] for name in ("question", "layer", "head")] == [
            other[name] for name in ("question", "layer", "head")
        ]
        for name in ("margin", "d", "attention_swap", "dla_all"):
            if one["causal"].get(name) is not None:
                assert other["causal"][name] == pytest.approx(one["causal"][name], abs=1e-3)
    assert ours["showcase"].keys() == theirs["showcase"].keys()
    for name, cells in ours["showcase"].items():
        for one, other in zip(cells, theirs["showcase"][name], strict=True):
            assert one["weights"] == pytest.approx(other["weights"], abs=2e-4) and one["text"] == other["text"]
            assert [word for word, _ in one["next"]] == [word for word, _ in other["next"]]


def test_neither_page_nor_claim_says_of_training_what_is_not_known(place: Path, probed: Path) -> None:
    files = probe_files(probed)
    page = content_of(files["report.html"])
    assert page["run"]["name"] == "model" and page["run"]["environment"]["model"] == str(place / "model")
    assert (page["run"]["seed"], page["run"]["max_steps"], page["run"]["data"]) == (None, None, None)
    assert page["emergence"] is None and "trained elsewhere" in files["report.html"].decode()
    assert f"python eval.py model={place / 'model'} out={place / 'out'}" in page["run"]["command"]
    assert any("trained on is not known" in note for note in page["notes"])
    for card in json.loads(files["claims.json"]):
        assert "step" not in card["model"] and str(place) not in json.dumps(card["model"])
        assert "training" not in card["claim"] and "not chosen on" in card["claim"]
        assert any("what it was trained on is not known" in one for one in card["does_not_show"])
        assert card["evidence_level"] != "E4" and any("one seed" in one for one in card["does_not_show"])


def test_nothing_is_written_into_the_folder_of_a_model(place: Path, probed: Path) -> None:
    assert {path.name for path in (place / "model").iterdir()} == {
        "config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json",
    }  # fmt: skip


def test_a_text_of_the_users_is_added_to_the_models_page(place: Path, probed: Path) -> None:
    found, _ = opened(place, place / "model", probed)
    assert look(found, "The cat sat near the buses. It")
    page = content_of(probe_files(probed)["report.html"])
    own = next(one for one in page["sentences"] if one["group"] == "own")
    assert own["words"][1:3] == ["The", "cat"] and page["questions"]
    (probed / "probe" / "sentences.json").unlink()


def test_a_probe_of_other_weights_is_not_taken_for_one_of_these(place: Path, probed: Path, tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    shutil.copytree(probed, tmp_path / "out")
    shutil.copytree(place / "model", tmp_path / "model")
    weights = load_file(tmp_path / "model" / "model.safetensors")
    weights["model.norm.weight"] = weights["model.norm.weight"] + torch.tensor(0.5)
    save_file(weights, tmp_path / "model" / "model.safetensors", metadata={"format": "pt"})
    text = (tmp_path / "out" / "probe" / "probe.json").read_text()
    (tmp_path / "out" / "probe" / "probe.json").write_text(text.replace(str(place / "model"), str(tmp_path / "model")))
    reporting.own_out(tmp_path / "out", str(tmp_path / "model"))
    found, _ = opened(place, tmp_path / "model", tmp_path / "out")
    look(found, "The cat sat.")
    page = content_of(probe_files(tmp_path / "out")["report.html"])
    assert not page["questions"] and "of other weights" in page["notes"][0]
    with pytest.raises(ValueError, match=f"holds what was found of {tmp_path / 'model'}: give another out=DIR"):
        opened(place, place / "model", tmp_path / "out")


def test_what_is_found_has_one_owner_however_it_is_spelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, one = tmp_path / "out", str(tmp_path / "one")
    reporting.own_out(out, one)
    importing.check_out(out, one)
    with pytest.raises(ValueError, match="holds what was found of .*one: give another out=DIR"):
        importing.check_out(out, str(tmp_path / "two"))
    (tmp_path / "runs").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="choose a folder of its own"):
        importing.check_out(Path("runs/"), one)
    with pytest.raises(OSError, match="README") as refused:
        (tmp_path / "README").write_text("a file")
        reporting.own_out(tmp_path / "README", one)
    assert refused.value.filename == str(tmp_path / "README")


def test_a_runs_export_is_called_after_the_run(tmp_path: Path) -> None:
    assert importing.name_of(tmp_path / "mine" / "export" / "hf") == "mine"
    assert importing.name_of(tmp_path / "export" / "gpt2") == "gpt2"


def test_what_is_no_folder_is_said_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "it.gguf").write_text("")
    with pytest.raises(ValueError, match="it.gguf is a file: a folder is meant"):
        importing.find_model(str(tmp_path / "it.gguf"))
    with pytest.raises(ValueError, match="none: there is no such folder"):
        importing.find_model(str(tmp_path / "none"))


def gpt2_in_pieces(folder: Path, words: list[str]) -> Path:
    """Write a GPT-2 of random weights with byte-level BPE, in which most words are several pieces."""
    import torch

    tokenizer = bpe_tokenizer(words, 330)
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        n_embd=32, n_layer=2, n_head=4, n_positions=256, vocab_size=tokenizer.get_vocab_size(),
        bos_token_id=0, eos_token_id=0, initializer_range=0.2,
    )  # fmt: skip
    transformers.GPT2LMHeadModel(config).save_pretrained(folder)
    save_tokenizer(tokenizer, folder)
    return folder


@pytest.fixture(scope="module")
def in_pieces(place: Path) -> Path:
    return gpt2_in_pieces(place / "gpt2", [story.text for story in generate_split(stories(place), "train")[:300]])


def test_a_gpt2_of_word_pieces_is_probed_and_its_pieces_are_shown_as_text(place: Path, in_pieces: Path) -> None:
    out, said = place / "pieces", []
    found, settings = opened(place, in_pieces, out)
    assert probe_stories(found, settings, SETTINGS, say=said.append)
    results = json.loads((out / "probe" / "probe.json").read_text())
    Draft202012Validator(SCHEMA).validate(results)
    assert results["model"]["model_type"] == "gpt2" and results["contract"]["logits"] < 1e-4
    assert {one["verdict"] for one in results["selected"]} <= {"not established", "suggestive"}
    assert all(one["rho"] is None for one in results["behaviour"] if one["h_bayes"] is None)
    named = [word for cells in results["showcase"].values() for cell in cells for word, _ in cell["next"]]
    page = (out / "probe" / "report.html").read_text()
    assert results["warnings"] and all(f"note     {one}" in said[0] for one in results["warnings"])
    assert named and "Ġ" not in json.dumps([named, said], ensure_ascii=False) and "Ġ" not in page
    sentence = next(one for one in content_of(page.encode())["sentences"] if one["group"] == "cells")
    assert " near" in "".join(sentence["pieces"]) and len(sentence["pieces"]) > len(sentence["words"])


def lines_of(place: Path, model: str, *given: str, environment: dict[str, str] | None = None) -> str:
    """Return the one line with which eval.py refuses a model, from a process of its own."""
    command = [sys.executable, str(ROOT / "eval.py"), f"model={model}", f"cache_dir={place / 'cache'}", *given]
    ran = subprocess.run(
        command, cwd=place, capture_output=True, text=True, env=os.environ | (environment or {}), check=False
    )
    assert ran.returncode == 2 and ran.stdout == "" and ran.stderr.count("\n") == 1, ran.stderr
    return ran.stderr


def test_a_model_that_cannot_be_had_is_refused_in_one_line(doors: Doors, place: Path) -> None:
    offline = {"HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(place / "hub")}
    assert "HF_HUB_OFFLINE is set" in lines_of(place, "someone/model", environment=offline)
    assert "neither a folder nor the name of a model" in lines_of(place, "no/such/folder")
    assert "it has no config.json" in lines_of(place, str(place / "cache"))
    assert not (place / "probes").exists()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["run=x"], "it goes with none of run=, runs= and compare="),
        (["runs=x"], "it goes with none of run=, runs= and compare="),
        (["compare=x"], "it goes with none of run=, runs= and compare="),
        (["probe.n_bootstrap=3"], "n_bootstrap must be 100 or more"),
    ],
)
def test_what_does_not_go_with_a_model_is_refused_in_one_line(doors: Doors, given: list[str], said: str) -> None:
    done = doors.run("eval.py", "model=here, there", *given)
    assert done.status == 2 and said in done.err and done.err.count("\n") == 1, done.err


def test_out_goes_with_a_model_alone(doors: Doors) -> None:
    done = doors.run("eval.py", "out=here")
    assert done.status == 2 and "out=DIR goes with model=" in done.err


def refused(place: Path, model: Path, said: str) -> None:
    with pytest.raises(ValueError, match=said) as caught:
        opened(place, model, place / "refused")
    assert "\n" not in str(caught.value) and not (place / "refused").exists()


def test_a_folder_without_what_a_text_needs_is_refused_by_name(place: Path, in_pieces: Path, tmp_path: Path) -> None:
    shutil.copytree(in_pieces, tmp_path / "bare")
    save_tokenizer(bpe_tokenizer(["a"], 257), tmp_path / "bare", bos_token=None, eos_token=None)
    refused(place, tmp_path / "bare", "neither bos_token nor eos_token")
    for path in (tmp_path / "bare").glob("tokenizer*"):
        path.unlink()
    refused(place, tmp_path / "bare", "has no tokenizer: none of tokenizer.json")
    with pytest.raises(ValueError, match="holds a run, runs or a model"):
        opened(place, in_pieces, place / "run")
    with pytest.raises(ValueError, match=r"tokenizer\.json is a file and no folder"):
        opened(place, in_pieces, place / "run" / "tokenizer.json" / "new")


def test_a_model_whose_attention_is_not_what_is_observed_is_refused_when_it_is_opened(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it is asked then, a sentence of the user's or a test of others."""
    monkeypatch.setattr(ImportedAttention, "turn", lambda self, x, positions: x)
    refused(place, place / "model", "model: nothing is reported of this model: the observed pass does not end in")


def test_a_text_of_tokens_that_the_model_lacks_is_one_line(place: Path, in_pieces: Path, tmp_path: Path) -> None:
    shutil.copytree(in_pieces, tmp_path / "more")
    model, words = tmp_path / "more", Tokenizer.from_file(str(in_pieces / "tokenizer.json"))
    words.add_tokens(["purple", "cat"])
    save_tokenizer(words, model)
    found, _ = opened(place, model, tmp_path / "out")
    with pytest.raises(ValueError, match="the model's tokenizer writes token 33[01], and it knows only 330"):
        look(found, "The cat sat. It ran.")


def test_a_text_that_the_tokenizer_cannot_write_is_one_line(place: Path, tmp_path: Path) -> None:
    shutil.copytree(place / "model", tmp_path / "model")
    config = json.loads((tmp_path / "model" / "tokenizer.json").read_text())
    config["model"]["unk_token"] = "<none>"
    (tmp_path / "model" / "tokenizer.json").write_text(json.dumps(config))
    found, _ = opened(place, tmp_path / "model", tmp_path / "out")
    with pytest.raises(ValueError, match="the tokenizer cannot write 'A zyx ran. It ran.'"):
        look(found, "A zyx ran. It ran.")


def test_a_model_too_short_for_the_stories_is_refused_by_both_lengths(
    place: Path, in_pieces: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(in_pieces, tmp_path / "short")
    config = transformers.GPT2Config.from_pretrained(in_pieces)
    config.n_positions = 20
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path / "short")
    found, settings = opened(place, tmp_path / "short", tmp_path / "out")
    with pytest.raises(SystemExit) as left:
        probe_stories(found, settings, SETTINGS, say=lambda line: None)
    assert left.value.code == 2 and "reads 20 tokens; the stories take up to" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_the_door_probes_a_model_with_the_default_stories_and_takes_tests_of_others(
    doors: Doors, place: Path, in_pieces: Path, tmp_path: Path
) -> None:
    command = ["eval.py", f"model={in_pieces}", f"cache_dir={place / 'cache'}", *PROBE]
    done = doors.run(*command, cwd=tmp_path, before=tell_few_stories)
    assert done.status == 0 and done.err == "", done.err
    assert "trained elsewhere" in (tmp_path / "probes" / "gpt2" / "probe" / "report.html").read_text()
    assert done.out.startswith(f"model    {in_pieces} (gpt2), kept in probes/gpt2; cpu")
    pair = {"sentence_good": "Ann hurt herself.", "sentence_bad": "Ann hurt himself."}
    (tmp_path / "pairs.jsonl").write_text(json.dumps(pair) + "\n")
    done = doors.run(*command, "task=minimal_pairs", f"path={tmp_path / 'pairs.jsonl'}", cwd=tmp_path)
    assert done.status == 0 and "what it was trained on is not known here" in done.out, done.err
    assert (tmp_path / "probes" / "gpt2" / "probe" / "outside" / "minimal_pairs.json").exists()
