"""antecedent_lab/saved.py: reading the folder of a model, and the lock of its probe/ folder."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from antecedent_lab import saved
from antecedent_lab.saved import folder_name, read_history, read_metrics, read_results, read_texts, results_folder
from data.errors import UserError
from data.typed_json import to_json
from probe.opened_model import OpenedModel
from probe.results import SCHEMA_VERSION, ProbeResults, TestedModel
from report.reproduce import eval_command
from tests.probe.factories import SETTINGS, word_model


@pytest.fixture
def opened(tmp_path: Path) -> OpenedModel:
    """An external model whose folder has a probe/ folder."""
    (tmp_path / "probe").mkdir()
    return replace(word_model(["a b"]), folder=tmp_path)


def test_only_readable_results_of_this_checkpoint_are_read(opened: OpenedModel) -> None:
    model = TestedModel("nowhere", 0, None, {})
    results = ProbeResults(model=model, settings=SETTINGS, data={"fingerprint": "english"}, warnings=[])
    command = eval_command(opened)
    assert read_results(opened) == (None, [f"The heads have not been tested yet: {command}"])
    file = opened.folder / "probe" / "probe.json"
    file.write_text(json.dumps(to_json(results)))
    assert read_results(opened) == (results, [])
    for change in ({"step": 1}, {"data_fingerprint": "other"}, {"shape": {"sha256": "0"}}):
        assert "another checkpoint" in read_results(replace(opened, **change))[1][0]
    file.write_text(json.dumps({"schema_version": SCHEMA_VERSION - 1}))
    assert "of another version; probe again" in read_results(opened)[1][0]
    for content in ("{", "[]", json.dumps({"schema_version": SCHEMA_VERSION})):
        file.write_text(content)
        with pytest.raises(UserError, match=f"^{file}: damaged.*; write it again: {re.escape(command)}$"):
            read_results(opened)


def test_a_damaged_file_of_sentences_is_a_warning(opened: OpenedModel, capsys: pytest.CaptureFixture[str]) -> None:
    file = opened.folder / "probe" / "sentences.json"
    for content in ("{", '{"a": 1}', "[1]", '["\\ud800"]'):
        file.write_text(content)
        assert read_texts(opened.folder) == []
        assert re.fullmatch(f"warning: {file}: damaged.*; delete it\n", capsys.readouterr().err)


def test_records_of_training_are_those_of_a_run(opened: OpenedModel) -> None:
    run = replace(opened, max_steps=9)
    assert (read_metrics(run).train, read_history(run)) == ([], None)
    for name, read in (("metrics.jsonl", read_metrics), ("weights.jsonl", read_history)):
        (run.folder / name).write_text('{"split": "train"}\n')
        with pytest.raises(UserError, match=f"{name}: damaged"):
            read(run)
    assert (read_metrics(opened).train, read_history(opened)) == ([], None)  # files of somebody else


def test_the_results_folder_is_locked_and_records_its_model(
    opened: OpenedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = replace(opened, owner="hub/name")
    with results_folder(opened, subfolder="outside") as folder:
        assert folder == opened.folder / "probe" / "outside"
        with pytest.raises(BlockingIOError), results_folder(opened, subfolder="outside"):
            pass
    assert json.loads((opened.folder / saved.OWNER).read_text()) == {"model": "hub/name"}
    monkeypatch.setattr(saved, "first_unwritable", lambda folder: folder)
    notes: list[str] = []
    with results_folder(opened, notes.append) as folder:
        assert folder is None and "cannot be written" in notes[0]


@pytest.mark.parametrize("error", [UserError("wrong"), KeyboardInterrupt()])
def test_a_new_folder_in_which_nothing_was_written_is_removed(opened: OpenedModel, error: BaseException) -> None:
    opened = replace(opened, folder=opened.folder / "new", owner="hub/name")

    def stopped(*files: str) -> None:
        with pytest.raises(type(error)), results_folder(opened, subfolder="own/mine") as folder:
            assert folder is not None
            for name in files:
                (folder / name).touch()
            raise error

    stopped()
    assert not opened.folder.exists() and opened.folder.parent.exists()
    stopped("page")
    stopped()  # the folder was there before
    assert (opened.folder / "probe/own/mine/page").exists()


def test_the_name_of_a_folder_stays_below_it_in_every_script() -> None:
    names = {"../../evil/x": "evil_x", "er/sie": "er_sie", "指代问题": "指代问题", "///": "model"}
    assert {text: folder_name(text) for text in names} == names
    assert len(folder_name("ä" * 500).encode()) == 120
