"""The probe from Python: the same results and files as eval.py, for runs and for models of other programs."""

import json
from pathlib import Path

import pytest
import torch

from data.english_blocks import english_rows
from data.tokenizer import END, bpe_tokenizer
from model.hf import export_transformers
from model.transformer import Transformer, draw_outputs
from report.api import ProbeResult, open_model, probe_model
from report.content import ablation_code
from tests.model.standard import config
from tests.program import SMALL_PROBE, run_program

pytest.importorskip("transformers")
SETTINGS = {"n_bootstrap": 100, "n_untrained": 2, "n_controls": 10}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama with random weights and a tokenizer of English, as `save_pretrained` writes it."""
    rows = english_rows(None, n_frames=20, n_pairs=5, seed=0)
    tokenizer = bpe_tokenizer((row["text"] for split in rows.values() for row in split), 800)
    model = Transformer(config(context_length=64), tokenizer.get_vocab_size(), seed=5)
    draw_outputs(model, seed=5)
    path = tmp_path_factory.mktemp("external") / "llama"
    export_transformers(model, path, tokenizer.token_to_id(END), tokenizer)
    return path


@pytest.fixture(scope="module")
def result(folder: Path) -> ProbeResult:
    return probe_model(folder, device="cpu", **SETTINGS)


def test_a_model_of_transformers_is_tested_on_plain_english(result: ProbeResult) -> None:
    head = result.heads["english"]
    assert (head.verdict, head.evidence_level) == ("not established", "E0")
    assert (
        0 <= head.layer < result.opened.model.n_layer and 0 <= head.accuracy_low <= head.accuracy <= head.accuracy_high
    )
    assert head.p == result.results["selected"][0]["test"]["headline"]["p_corrected"]
    assert "not established" in str(result) and "training data of this model is unknown" in str(result)


def test_the_table_has_a_row_of_plain_values_for_each_question(result: ProbeResult) -> None:
    (row,) = result.table()
    assert row["question"] == "english" and all(isinstance(v, str | int | float | None) for v in row.values())


def test_eval_writes_the_same_results_and_files(result: ProbeResult, folder: Path, tmp_path: Path) -> None:
    page = result.save(tmp_path / "python")
    program = run_program("eval.py", f"model={folder}", f"out={tmp_path / 'program'}", "device=cpu", *SMALL_PROBE)
    assert program.status == 0, program.err
    written = tmp_path / "program" / "probe"
    names = {"probe.json", "claims.json", "claims.md", "heads.csv", "items.jsonl", "report.html"}
    assert {path.name for path in page.parent.iterdir()} == names <= {path.name for path in written.iterdir()}
    assert json.loads((written / "probe.json").read_text()) == result.results
    for name in names - {"report.html"}:
        assert (written / name).read_bytes() == (page.parent / name).read_bytes()


def test_the_code_that_the_report_shows_removes_the_head(result: ProbeResult) -> None:
    selected = result.results["selected"][0]
    names: dict[str, torch.Tensor] = {}
    exec(ablation_code(selected, result.results["model"]["run"]), names)
    assert names["change"].shape[-1] == result.opened.model.vocab_size and names["change"].abs().max() > 0


def test_natural_text_is_tested_with_a_path(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("Lily met Tom. She ran home.\n" * 3)
    result = probe_model(open_model(folder, device="cpu"), path=str(tmp_path / "text.txt"), **SETTINGS)
    assert (
        result.results["natural"]["questions"] == {} and "gender: 3 prefixes" in result.results["natural"]["missing"][0]
    )


@pytest.mark.parametrize(
    ("settings", "name"), [({"items": "poems"}, "items"), ({"tokenizer": "nowhere.json"}, "tokenizer=nowhere.json")]
)
def test_a_wrong_setting_is_refused_in_one_line(folder: Path, settings: dict[str, str], name: str) -> None:
    with pytest.raises(ValueError, match=f"{name}[^\n]*$"):
        open_model(folder, device="cpu", **settings)  # type: ignore[arg-type]
