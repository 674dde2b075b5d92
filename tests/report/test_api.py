"""The probe from Python: the same results and files as eval.py, for runs and for models of other programs."""

import io
import json
import shutil
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from data.english_blocks import english_texts

from antecedent_lab import ProbeResult, open_model, probe_model
from data.tokenizer import END, bpe_tokenizer
from model.export import export_transformers
from model.transformer import Transformer, draw_outputs
from report.reproduce import ablation_code
from tests.program import SMALL_PROBE, run_program
from tests.report.browser import Markup
from tests.tiny_models import config

pytest.importorskip("transformers")
SETTINGS = {"n_bootstrap": 100, "n_untrained": 2, "n_controls": 10}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama with random weights and a tokenizer of English, as `save_pretrained` writes it."""
    rows = english_texts(None, n_frames=20, n_pairs=5, seed=0)
    tokenizer = bpe_tokenizer((row.text for split in rows.values() for row in split), 800)
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
    assert 0 <= head.layer < result.opened.model.n_layer
    low, high = head.headline.accuracy_interval
    assert 0 <= low <= head.headline.accuracy <= high
    assert "not established" in str(result) and "training data of this model is unknown" in str(result)


def test_the_table_has_a_row_of_plain_values_for_each_question(result: ProbeResult) -> None:
    (row,) = result.table()
    assert row["question"] == "english" and all(isinstance(v, str | int | float | None) for v in row.values())
    assert row["p"] == result.heads["english"].headline.p_corrected


def test_eval_writes_the_same_results_and_files(result: ProbeResult, folder: Path, tmp_path: Path) -> None:
    page = result.save(tmp_path / "python")
    program = run_program("eval.py", f"model={folder}", f"out={tmp_path / 'program'}", "device=cpu", *SMALL_PROBE)
    assert program.status == 0, program.err
    written = tmp_path / "program" / "probe"
    names = {"probe.json", "claims.json", "claims.md", "heads.csv", "items.jsonl", "report.html"}
    assert {path.name for path in page.parent.iterdir()} == names <= {path.name for path in written.iterdir()}
    assert json.loads((written / "probe.json").read_text()) == result.results.to_json()
    for name in names - {"report.html"}:
        assert (written / name).read_bytes() == (page.parent / name).read_bytes()


def test_the_code_that_the_report_shows_removes_the_head(result: ProbeResult) -> None:
    head = result.heads["english"]
    names: dict[str, Any] = {}
    with redirect_stdout(io.StringIO()) as output:
        exec(ablation_code(head, result.results.model), names)
    assert "tensor([[[" in output.getvalue()
    edited = names["opened"].model.logits(names["tokens"], edits=names["edits"])
    assert (edited - names["opened"].model.logits(names["tokens"])).abs().max() > 0


def test_a_notebook_shows_the_report_in_a_frame_of_its_own(result: ProbeResult) -> None:
    frame = Markup(result._repr_html_())
    assert frame.tags == ["iframe"]
    attributes = dict(frame.attributes)
    assert attributes["srcdoc"] == result.page() and "allow-same-origin" not in attributes["sandbox"]
    assert "trained elsewhere" in attributes["srcdoc"]  # no live model of another program


def test_natural_text_is_tested_with_a_path(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("Lily met Tom. She ran home.\n" * 3)
    result = probe_model(open_model(folder, device="cpu"), path=str(tmp_path / "text.txt"), **SETTINGS)
    missing = result.results.natural.missing
    assert result.results.natural.questions == {} and result.results.next_pronoun == []
    assert missing[0].startswith("next_pronoun_gender: 0 passages with one person (needed: 40) and 0 passages with a")
    assert any(sentence.startswith("gender: 3 prefixes") for sentence in missing)


def test_an_opened_model_takes_no_settings_of_opening(result: ProbeResult) -> None:
    with pytest.raises(ValueError, match="^items=stories"):
        probe_model(result.opened, items="stories")
    with pytest.raises(ValueError, match="^n_untraned=2"):
        probe_model(result.opened, n_untraned=2)


def test_a_model_that_cannot_be_tested_leaves_its_folder_free(folder: Path, tmp_path: Path) -> None:
    settings = json.loads((folder / "config.json").read_text())
    short = shutil.copytree(folder, tmp_path / "short")
    (short / "config.json").write_text(json.dumps(settings | {"max_position_embeddings": 9}))
    assert "9" in run_program("eval.py", f"model={short}", f"out={tmp_path / 'out'}", "device=cpu").error
    result = run_program("eval.py", f"model={folder}", f"out={tmp_path / 'out'}", "device=cpu", "text=It")
    assert result.status == 0, result.err


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"device": "tpu"}, "device=tpu"),
        ({"items": "poems"}, "items"),
        ({"tokenizer": "nowhere.json"}, "tokenizer=nowhere.json"),
    ],
)
def test_a_wrong_setting_is_refused_in_one_line(folder: Path, settings: dict[str, str], name: str) -> None:
    with pytest.raises(ValueError, match=f"{name}[^\n]*$"):
        open_model(folder, **({"device": "cpu"} | settings))  # type: ignore[arg-type]
