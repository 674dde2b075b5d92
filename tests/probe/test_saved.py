"""The parts of eval.py: folders of models, sources of items, sweeps, and what long work prints about its time."""

import json
import re
import shutil
from dataclasses import replace

import pytest

from antecedent_lab.api import open_model
from antecedent_lab.progress import stages
from antecedent_lab.sources import source_of
from data.corpus import corpus_fingerprint
from data.loader import Corpus
from data.pairs import Items, Pair
from data.text import SHIPPED_TEXT, SHIPPED_TRAINING_TEXT
from extras.english.source import reads_shipped_text
from extras.own.file import load_question
from probe import saved
from probe.config import ProbeConfig
from probe.results import SCHEMA_VERSION, ProbeResults, TestedModel
from probe.saved import eval_command, folder_name, read_results, results_folder
from probe.source import check_items
from settings.errors import UserError
from settings.train import compose_settings
from settings.typed_json import to_json
from tests.probe.factories import SETTINGS, blank, cell, word_model
from tests.program import ROOT


@pytest.fixture
def opened(tmp_path):
    """An external model whose folder has a probe/ folder."""
    (tmp_path / "probe").mkdir()
    return replace(word_model(["a b"]), folder=tmp_path)


def test_a_log_has_a_line_for_each_stage_with_the_time_that_is_left(monkeypatch):
    lines: list[str] = []
    with stages("testing", lines.append) as show:
        for second, stage, share in ((5, "heads", 0.0), (8, "controls", 0.25), (9, "controls", 0.5), (0, "edits", 0.0)):
            monkeypatch.setattr("time.monotonic", lambda second=second: second)
            show(stage, share)
    assert lines == ["testing: heads", "testing: controls, about 9 s left", "testing: edits"]


def test_only_readable_results_of_this_checkpoint_are_read(opened):
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


def test_the_results_folder_is_locked_or_read_only(opened, monkeypatch):
    outside = opened.results_folder / "outside"
    with results_folder(opened.folder, outside) as folder:
        assert folder == outside == opened.folder / "probe" / "outside"
        with pytest.raises(BlockingIOError), results_folder(opened.folder, outside):
            pass
    monkeypatch.setattr(saved, "first_unwritable", lambda folder: folder)
    notes: list[str] = []
    with results_folder(opened.folder, outside, notes.append) as folder:
        assert folder is None and "cannot be written" in notes[0]


def test_the_name_of_a_folder_stays_below_it_in_every_script():
    names = {"../../evil/x": "evil_x", "er/sie": "er_sie", "指代问题": "指代问题", "///": "model"}
    assert {text: folder_name(text) for text in names} == names
    assert len(folder_name("ä" * 500).encode()) == 120


def test_settings_without_checkpoints_are_no_run(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UserError, match="^run=.*: is no run of train.py, which has a folder checkpoints$"):
        open_model(tmp_path, setting="run")


def test_items_of_an_external_model_are_read_with_warnings_or_refused():
    letters = word_model(["a b c d e"], context_length=8)
    right = cell((0, 2, 3, 4, 5), ((2,), (3,)), 0, answers=(2,), foils=(3,))

    def warnings_of(**changes):
        return check_items(letters, Items([blank(Pair, cells=(right, replace(right, **changes)))]))

    assert warnings_of() == []
    unknown, unanswered = warnings_of(payoff=None, tokens=(0, letters.unknown, 3, 4, 5), has_lost_answer=True)
    assert "10.0%" in unknown and "In 1 of 2 texts" in unanswered
    with pytest.raises(UserError, match="reads 8 tokens, but the sentences need 11"):
        warnings_of(tokens=right.tokens * 2)
    with pytest.raises(UserError, match="writes token 99"):
        warnings_of(foils=(99,))


def test_the_shipped_text_is_known_by_its_content_and_not_by_its_name(tmp_path):
    def reads_it(training, validation):
        settings = ["experiment=english", f"data.path='{training}'", f"data.validation_path={validation}"]
        config = compose_settings(settings).data
        facts = {"config": config, "fingerprint": corpus_fingerprint(config)}
        corpus = blank(Corpus, **facts, tokenizer=None, train=None, validation=None)
        return reads_shipped_text(corpus)

    same = shutil.copy(SHIPPED_TRAINING_TEXT, tmp_path / "my stories.txt.gz")
    other = tmp_path / SHIPPED_TRAINING_TEXT.relative_to(ROOT)
    other.parent.mkdir(parents=True)
    shutil.copy(SHIPPED_TEXT, other)
    assert reads_it(SHIPPED_TRAINING_TEXT, SHIPPED_TEXT) and reads_it(same, SHIPPED_TEXT)
    assert not reads_it(other, SHIPPED_TEXT) and not reads_it(same, same)
    assert reads_shipped_text(None)


def test_whose_gender_is_not_asked_of_a_model_for_which_it_would_take_too_long():
    source = source_of(word_model(["Lily Tom She He"], n_layer=6, n_head=24), SETTINGS, "")
    assert [question.outcome for question in source.questions] == ["edge"]
    assert "not tested in a model of more than 128 heads" in " ".join(source.warnings)


@pytest.mark.parametrize("path", sorted((ROOT / "docs" / "questions").glob("*.jsonl")), ids=lambda path: path.stem)
def test_an_example_question_has_enough_blocks_and_can_be_asked(path):
    own = load_question(path)
    assert (own.name, own.n_left_out) == (path.stem, 0) and path.stat().st_size <= 30_000
    assert min(len(own.dev), len(own.test)) >= 4 * 30
    for labels in zip(*((text.frame, *text.pair.split()) for text in own.test), strict=True):
        assert len(set(labels)) >= 8  # enough for a p below 0.01: 2^-8
    texts = [*own.dev, *own.test, *own.control]
    letters = word_model([text.text for text in texts])
    source = source_of(letters, ProbeConfig(), "", own_file=str(path))
    assert source.items.has_blocks and len(source.items) == len(texts) // 2
