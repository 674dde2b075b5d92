"""The probe from Python: the same results and files as eval.py, for runs and for models of other programs."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from antecedent_lab import compare_models, open_model, probe_model
from antecedent_lab.api import ProbeResult
from data.text import SHIPPED_TEXT, read_documents
from data.tokenizer import END, bpe_tokenizer
from data.typed_json import to_json
from model.export import export_transformers
from model.transformer import Transformer, draw_outputs
from tests.program import SMALL_PROBE, run_program
from tests.tiny_models import config

pytest.importorskip("transformers")
SETTINGS = {"n_bootstrap": 100, "n_untrained": 2, "n_controls": 10}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama with random weights and a tokenizer of English, as `save_pretrained` writes it."""
    tokenizer = bpe_tokenizer(read_documents([SHIPPED_TEXT])[:200], 800)
    model = Transformer(config(context_length=128), tokenizer.get_vocab_size(), seed=5)
    draw_outputs(model, seed=5)
    path = tmp_path_factory.mktemp("external") / "llama"
    export_transformers(model, path, tokenizer.token_to_id(END), tokenizer)
    return path


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A part of the shipped text that has enough passages."""
    path = tmp_path_factory.mktemp("text") / "part.jsonl"
    path.write_text("".join(json.dumps({"text": each}) + "\n" for each in read_documents([SHIPPED_TEXT])[:800]))
    return str(path)


@pytest.fixture(scope="module")
def result(folder: Path, text: str) -> ProbeResult:
    return probe_model(folder, path=text, device="cpu", **SETTINGS)


def test_a_model_of_transformers_is_tested_on_english(result: ProbeResult) -> None:
    (finding,) = result.findings.values()
    assert finding.outcome == "edge" and finding.verdict == "the model does not know" and finding.level == "E0"
    assert finding.verdict in str(result) and "training data of this model is unknown" in str(result)
    (row,) = result.table()
    assert row["question"] == finding.question and row["p"] == finding.head.value("p")
    assert all(isinstance(value, str | int | float) for value in row.values())


def test_eval_writes_the_same_files(result: ProbeResult, folder: Path, text: str, tmp_path: Path) -> None:
    page = result.save(tmp_path / "python")
    arguments = [f"model={folder}", f"path={text}", f"out={tmp_path / 'program'}", "device=cpu", *SMALL_PROBE]
    program = run_program("eval.py", *arguments)
    assert program.status == 0, program.err
    written = tmp_path / "program" / "probe" / "outside" / "part"
    names = {"probe.json", "claims.md", "heads.csv", "items.jsonl", "report.html"}
    assert {path.name for path in page.parent.iterdir()} == names <= {path.name for path in written.iterdir()}
    assert json.loads((written / "probe.json").read_text()) == to_json(result.results)
    for name in names - {"report.html"}:
        assert (written / name).read_bytes() == (page.parent / name).read_bytes()


def test_a_notebook_shows_the_report_in_a_frame_of_its_own(result: ProbeResult) -> None:
    frame = result._repr_html_()
    assert frame.startswith("<iframe") and "allow-same-origin" not in frame and frame.count("<iframe") == 1


def test_the_same_model_twice_has_no_change(folder: Path) -> None:
    opened = open_model(folder, device="cpu")
    results = compare_models(opened, opened)
    assert results.changes and all(change.p == 1 for change in results.changes)
    assert compare_models(opened, opened, n_bootstrap=150).settings.n_bootstrap == 150
    with pytest.raises(ValueError, match="^probe.n_bootstrap=1: .*$"):
        compare_models(opened, opened, n_bootstrap=1)
    with pytest.raises(ValueError, match="n_boot"):
        compare_models(opened, opened, n_boot=1)
    other = open_model(folder, device="cpu")
    object.__setattr__(other, "bos_id", 3)
    with pytest.raises(ValueError, match="other tokens"):
        compare_models(other, opened)


def test_a_model_that_cannot_be_tested_leaves_its_folder_free(folder: Path, tmp_path: Path) -> None:
    settings = json.loads((folder / "config.json").read_text())
    short = shutil.copytree(folder, tmp_path / "short")
    (short / "config.json").write_text(json.dumps(settings | {"max_position_embeddings": 9}))
    arguments = ["items=stories", f"out={tmp_path / 'out'}", "device=cpu"]
    assert "9" in run_program("eval.py", f"model={short}", *arguments).error
    result = run_program("eval.py", f"model={folder}", f"out={tmp_path / 'out'}", "device=cpu", "text=It")
    assert result.status == 0, result.err


@pytest.mark.parametrize(
    ("settings", "is_open", "problem"),
    [
        ({"device": "tpu"}, False, "device=tpu: must be one of auto, cpu, cuda"),
        ({"threads": 0}, False, "threads=0: must be between 1 and"),
        ({"items": "poems"}, False, "items=poems: must be stories"),
        ({"tokenizer": "nowhere.json"}, False, "tokenizer=nowhere.json: "),
        ({"items": "stories"}, True, "items=stories: the model is open already"),
        ({"n_untraned": 2}, True, "n_untraned=2: no such setting; did you mean n_untrained"),
        ({"path": ""}, True, "path=: the name is empty"),
    ],
)
def test_a_wrong_setting_is_refused_in_one_line(
    result: ProbeResult, folder: Path, settings: dict[str, Any], is_open: bool, problem: str
) -> None:
    with pytest.raises(ValueError, match=f"^{problem}[^\n]*$"):
        probe_model(result.opened if is_open else folder, **settings)
