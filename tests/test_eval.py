"""Output, files and errors of python eval.py."""

import json
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.probe.test_natural import make_documents

from antecedent_lab.commands import MAX_TEXTS, print_loss
from antecedent_lab.eval_settings import EvalSettings, Task
from antecedent_lab.opened import load_data, open_external, open_run
from probe.config import Items
from probe.sentences import word_attention
from tests.probe.factories import SETTINGS
from tests.program import SMALL, SMALL_PROBE, run_program
from training.evaluate import validation_loss
from training.metrics import Metrics, ValidationRecord
from training.settings import Device

SENTENCE = "The cat sat near the buses. It"


def train(out: Path, *arguments: str) -> None:
    result = run_program(
        "train.py", *SMALL, "probe_sequences=8", f"cache_dir={out.parent / 'cache'}", f"out={out}", *arguments
    )
    assert result.status == 0, result.err


def evaluate(run: Path, *arguments: str) -> Any:
    return run_program("eval.py", f"run={run}", f"cache_dir={run.parent / 'cache'}", *SMALL_PROBE, *arguments)


def results_of(run: Path, name: str = "probe.json") -> Any:
    return json.loads((run / "probe" / name).read_text())


def page_content(run: Path) -> dict[str, Any]:
    text = (run / "probe" / "report.html").read_text()
    return json.loads(re.search(r'id="content">(.*?)</script>', text, re.DOTALL)[1])


@pytest.fixture(scope="module")
def probed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A run whose heads were tested, and what eval.py printed."""
    run = tmp_path_factory.mktemp("eval") / "run"
    train(run)
    result = evaluate(run)
    assert result.status == 0 and result.err == "", result.err
    return run, result.out


@pytest.fixture
def run(probed: tuple[Path, str], tmp_path: Path) -> Path:
    """A copy of the tested run."""
    shutil.copytree(probed[0].parent, tmp_path / "copy")
    return tmp_path / "copy" / "run"


# Testing the heads


def test_the_output_fits_on_one_screen(probed: tuple[Path, str]) -> None:
    lines = probed[1].splitlines()
    assert len(lines) <= 25 and max(map(len, lines)) <= 130


def test_the_output_has_a_row_for_each_question_and_the_address_of_the_page(probed: tuple[Path, str]) -> None:
    run, out = probed
    for entry in results_of(run)["selected"]:
        row = next(line for line in out.splitlines() if line.startswith(f"{entry['question']}:"))
        tested = entry["test"]["headline"]
        assert f"L{entry['layer']}H{entry['head']}" in row and f"{tested['accuracy']:.3f}" in row
        assert f"{tested['p_corrected']:.4f}" in row and entry["verdict"] in row
    assert (run / "probe" / "report.html").resolve().as_uri() in out


def test_verbose_also_prints_every_hold_out_and_the_model_s_answers(probed: tuple[Path, str]) -> None:
    results = results_of(probed[0])
    out = evaluate(probed[0], "verbose=true").out
    for holdout in results["selected"][0]["test"]:
        assert re.search(rf"^ +{holdout} ", out, re.MULTILINE)
    assert out.count("\n") > probed[1].count("\n") + len(results["behaviour"])


def test_the_files_of_a_probe_agree(probed: tuple[Path, str]) -> None:
    folder = probed[0] / "probe"
    results = results_of(probed[0])
    names = [entry["question"] for entry in results["selected"]]
    assert results["schema_version"] == 12 and results["showcase"]["number"][0]["query"] == "It"
    assert [card["question"] for card in results_of(probed[0], "claims.json")] == names
    items = [json.loads(line) for line in (folder / "items.jsonl").read_text().splitlines()]
    assert {item["question"] for item in items} == set(names)
    assert (folder / "heads.csv").read_text().startswith("question,family,site,split,holdout,layer,head,n_blocks,")


def test_the_page_shows_the_scores_of_probe_json(probed: tuple[Path, str]) -> None:
    results = results_of(probed[0])
    content = page_content(probed[0])
    for entry, question in zip(results["selected"], content["questions"], strict=True):
        assert sum(question["heads"]["accuracy"], []) == pytest.approx(sum(entry["heads"]["accuracy"], []), rel=1e-5)
        assert question["test"] == entry["test"]
        medians = [sentence for sentence in content["sentences"] if sentence["id"] in question["sentences"]]
        assert sum(sentence["group"] == "median" for sentence in medians) == 4


def test_all_hold_outs_are_tested_if_asked_for(run: Path) -> None:
    assert evaluate(run, "probe.holdouts=all").status == 0
    tested = {entry["question"]: set(entry["test"]) for entry in results_of(run)["selected"]}
    assert tested["number"] == {"iid", "pairs", "nouns", "frames", "headline", "distance"}


# A sentence of the user's


def test_a_sentence_is_printed_with_every_head_and_added_to_the_page(run: Path) -> None:
    result = evaluate(run, f"text={SENTENCE}")
    assert result.status == 0 and result.out.count("  L0H") == page_content(run)["run"]["n_head"]
    row = next(line.split() for line in result.out.splitlines() if line.startswith("  L0H0"))
    assert row[1] == "cat" and row[3] == "buses" and row[5] == "|"
    [sentence] = [entry for entry in page_content(run)["sentences"] if entry["group"] == "yours"]
    assert sentence["text"] == SENTENCE and sentence["words"][sentence["query"][0]] == "It"


def test_sentences_are_kept_newest_first_and_once(run: Path) -> None:
    path = run / "probe" / "sentences.json"
    path.write_text(json.dumps([f"It ran {i}." for i in range(MAX_TEXTS)]))
    evaluate(run, "text=It ran 3.")
    kept = json.loads(path.read_text())
    assert kept[:2] == ["It ran 3.", "It ran 0."] and len(kept) == MAX_TEXTS


def test_a_sentence_keeps_the_claims_on_the_page(run: Path) -> None:
    earlier = page_content(run)["questions"]
    evaluate(run, f"text={SENTENCE}")
    assert page_content(run)["questions"] == earlier


@pytest.mark.parametrize("text", ["", "  ", "it " * 500])
def test_a_text_that_is_empty_or_too_long_is_refused(probed: tuple[Path, str], text: str) -> None:
    assert evaluate(probed[0], f"text={text}").error.startswith("text=")


# Settings and damaged files


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("runs", {"runs": "a", "run": "b"}),
        ("compare", {"compare": "a", "runs": "b"}),
        ("model", {"model": "a", "run": "b"}),
        ("model", {"model": ""}),
        ("out", {"out": "a"}),
        ("items", {"items": Items.stories}),
        ("tokenizer", {"tokenizer": "a"}),
        ("task", {"task": Task.minimal_pairs}),
        ("path", {"path": "a", "runs": "b"}),
        ("text", {"text": "it", "runs": "a"}),
        ("open", {"open": True, "compare": "a"}),
        ("live", {"live": True, "runs": "a"}),
        ("items", {"items": "a.jsonl", "runs": "a"}),
        ("items", {"items": "klingon", "model": "a"}),
        ("live", {"live": True, "path": "a.txt"}),
        ("before", {"before": "a", "runs": "b"}),
        ("before", {"before": "a", "text": "it"}),
        ("live", {"live": True, "before": "a"}),
        ("threads", {"threads": 0}),
    ],
)
def test_settings_that_exclude_each_other_are_refused_by_name(name: str, settings: dict[str, Any]) -> None:
    values = dict.fromkeys(
        (
            "run",
            "runs",
            "compare",
            "model",
            "out",
            "text",
            "task",
            "path",
            "threads",
            "items",
            "tokenizer",
            "live",
            "before",
        )
    )
    flags = dict.fromkeys(("open", "verbose"), False)
    with pytest.raises(ValueError, match=f"^{name}="):
        EvalSettings(**values | flags | {"device": Device.cpu, "cache_dir": ""} | settings)


def test_a_missing_package_is_named_with_its_command_before_anything_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antecedent_lab.eval_settings.find_spec", lambda name: None)
    result = run_program("eval.py", "model=somewhere")
    assert result.status == 2 and f"{sys.executable} -m pip install '.[export]'" in result.err


@pytest.mark.parametrize("file", ["config.json", "tokenizer.json", "probe/probe.json"])
def test_a_damaged_file_is_named_in_one_line_and_nothing_is_written(run: Path, file: str) -> None:
    (run / file).write_text("{\n")
    page = (run / "probe" / "report.html").read_bytes()
    assert file in evaluate(run, f"text={SENTENCE}").error
    assert (run / "probe" / "report.html").read_bytes() == page


def test_a_config_that_does_not_fit_the_checkpoint_is_refused(run: Path) -> None:
    config = json.loads((run / "config.json").read_text())
    config["model"]["rope_theta"] += 1
    (run / "config.json").write_text(json.dumps(config))
    assert "model.rope_theta" in evaluate(run).error


def test_results_of_another_checkpoint_are_left_out_of_the_page(run: Path) -> None:
    path = run / "probe" / "probe.json"
    results = json.loads(path.read_text())
    results["model"]["step"] += 1
    path.write_text(json.dumps(results))
    evaluate(run, f"text={SENTENCE}")
    assert page_content(run)["questions"] == [] and "probe again" in page_content(run)["notes"][0]


# Other data, other models, sweeps


def text_data(path: Path, **settings: float) -> list[str]:
    """Return the settings of a small run on the text of a file."""
    small = [argument for argument in SMALL if not argument.startswith("data.")]
    return [*small, "data=text", f"data.path={path}", *(f"data.{name}={value}" for name, value in settings.items())]


@pytest.fixture(scope="module")
def english(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """An evaluated run on English and the output of eval.py; the text is text.jsonl in the folder of the run."""
    folder = tmp_path_factory.mktemp("english")
    text = folder / "text.jsonl"
    text.write_text("".join(json.dumps({"text": document}) + "\n" for document in make_documents(120)))
    data = text_data(text, vocab_size=400, validation_fraction=0.5)
    shape = ("model.context_length=128", "probe_sequences=80", f"cache_dir={folder / 'cache'}")
    result = run_program("train.py", *data, *shape, f"out={folder / 'run'}")
    assert result.status == 0, result.err
    assert "contrast" in result.out
    result = evaluate(folder / "run")
    assert result.status == 0, result.err
    return folder / "run", result.out


def test_a_run_on_english_is_tested_on_its_validation_text(english: tuple[Path, str]) -> None:
    run, out = english
    results = results_of(run)
    tested = results["natural"]["questions"]["gender"]
    assert set(tested["chosen"]) == {"matching entity", "other entity"}
    assert re.search(r"^loss \d+\.\d+ nats/token", out, re.MULTILINE)
    assert "gender: candidate for the matching entity" in out and "number: 0 prefixes" in out
    # Fourteen names of each gender, but no objects.
    assert any(sentence.startswith("blocks of sentences: ") for sentence in results["natural"]["missing"])
    content = page_content(run)
    assert len(content["natural"]) == 2
    groups = {sentence["group"] for sentence in content["sentences"]}
    assert groups >= {"natural_gender_matching", "natural_gender_other"}
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert any("natural_gender" in record for record in records)


def test_another_text_tests_the_heads_that_the_run_has_chosen(english: tuple[Path, str]) -> None:
    run, _ = english
    result = evaluate(run, f"path={run.parent / 'text.jsonl'}")
    assert result.status == 0, result.err
    written = results_of(run, "outside/natural_text.json")
    chosen = results_of(run)["natural"]["questions"]["gender"]["chosen"]
    claims = [card for card in results_of(run, "claims.json") if card["question"] == "natural text"]
    assert sorted(card["verdict"] for card in claims) == sorted(entry["verdict"] for entry in chosen.values())
    for target, confirmed in written["questions"]["gender"]["confirmed"].items():
        assert all(confirmed[name] == chosen[target][name] for name in ("site", "layer", "head"))


def test_passages_of_a_tsv_file_are_tested(english: tuple[Path, str]) -> None:
    run, _ = english
    rows = "".join(f"{i}\t{text}\n" for i, text in enumerate(make_documents(60, seed=2)))
    (run.parent / "gap.tsv").write_text(f"ID\tText\n{rows}")
    result = evaluate(run, f"path={run.parent / 'gap.tsv'}")
    assert result.status == 0 and "Heads chosen" in result.out, result.err
    assert "no such file" in evaluate(run, f"path={run.parent / 'missing.tsv'}").error
    assert "by itself" in evaluate(run, f"path={run.parent / 'text.jsonl'},{run.parent / 'gap.tsv'}").error


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("The rain fell on the hill. " * 50, "0 gender pronouns, 0 feminine, 0 masculine"),
        ("Lily met Tom in the park.", "0 gender pronouns, 1 feminine, 1 masculine"),
        ("Привет, мир. " * 50, "0 gender pronouns"),
        ("Lily met Tom. She ran home.", "1 passages with a woman and a man (needed: 40)"),
        ("Lily was tired. She slept. " * 60, "0 passages with a woman and a man (needed: 40)"),
    ],
)
def test_a_text_without_enough_prefixes_is_one_line(english: tuple[Path, str], text: str, problem: str) -> None:
    run, _ = english
    path = run.parent / "other.txt"
    path.write_text(text, encoding="utf-8")
    result = evaluate(run, f"path={path}")
    assert result.status == 2 and problem in result.error
    assert not (run / "probe" / "outside" / "natural_other.json").exists()


def test_a_test_set_is_taken_and_written_to_outside(run: Path) -> None:
    (run.parent / "pairs.txt").write_text("the cat sat .\nthe cats sat .\n" * 3)
    result = evaluate(run, "task=minimal_pairs", f"path={run.parent / 'pairs.txt'}")
    assert result.status == 0, result.err
    assert results_of(run, "outside/minimal_pairs_pairs.json")["task"] == "minimal_pairs"


@pytest.mark.slow
def test_runs_of_a_sweep_over_seeds_are_tested_once_and_summarised(run: Path) -> None:
    sweep = run.parent / "sweep"
    shutil.copytree(run, sweep / "1")
    train(sweep / "2", "seed=2", f"cache_dir={run.parent / 'cache'}")
    arguments = (f"runs={sweep}", f"cache_dir={run.parent / 'cache'}", *SMALL_PROBE)
    earlier = (sweep / "1" / "probe" / "probe.json").stat().st_mtime_ns
    result = run_program("eval.py", *arguments)
    assert result.status == 0, result.err
    assert (sweep / "1" / "probe" / "probe.json").stat().st_mtime_ns == earlier
    assert results_of(sweep, "seeds.json")["seeds"] == [1, 2]


@pytest.mark.slow
def test_variants_of_a_sweep_are_compared(run: Path) -> None:
    sweep = run.parent / "sweep"
    shutil.copytree(run, sweep / "0")
    train(sweep / "1", "variant=unscaled", f"cache_dir={run.parent / 'cache'}")
    result = run_program("eval.py", f"compare={sweep}", f"cache_dir={run.parent / 'cache'}", *SMALL_PROBE)
    assert result.status == 0, result.err
    assert {"compare.json", "compare.md", "compare.csv"} <= {path.name for path in (sweep / "probe").iterdir()}


@pytest.mark.slow
def test_an_exported_run_opens_as_an_external_model_with_the_same_attention(run: Path) -> None:
    pytest.importorskip("transformers")
    folder, out = run.parent / "hf", run.parent / "results"
    assert run_program("antecedent_lab/__main__.py", "export", f"run={run}", f"out={folder}").status == 0
    result = run_program("eval.py", f"model={folder}", f"out={out}", f"text={SENTENCE}")
    assert result.status == 0, result.err
    assert page_content(out)["run"]["step"] == "external model"
    ours = open_run(run, torch.device("cpu"))
    external = open_external(str(folder), str(out), ours.data, torch.device("cpu"))
    [weights], [expected] = (word_attention(opened.model, [opened.tokenize(SENTENCE)]) for opened in (external, ours))
    np.testing.assert_allclose(weights, expected, rtol=1e-4, atol=1e-6)


def test_the_loss_on_the_validation_text_is_that_of_training_or_measured(trained_run: Path, cache: str) -> None:
    opened = open_run(trained_run, torch.device("cpu"))
    corpus, printed = load_data(opened, cache.removeprefix("cache_dir=")), list[str]()
    print_loss(opened, corpus, Metrics([], [], []), SETTINGS, printed.append)
    measured = validation_loss(opened.transformer, corpus.validation, SETTINGS.tokens_per_batch)
    assert f"{measured.loss:.4f} nats/token, {measured.bits_per_byte:.4f} bits/byte" in printed[0]
    whole = ValidationRecord(step=opened.step, loss=9.0, bits_per_byte=8.0, whole=True, gap=0.25, gap_error=0.01)
    others = [replace(whole, whole=False, loss=7.0), replace(whole, step=opened.step + 1, loss=7.0)]
    lines = list[str]()
    print_loss(opened, corpus, Metrics([], [whole, *others], []), SETTINGS, lines.append)
    n_tokens = len(corpus.validation.tokens) - 1
    assert lines[0] == f"loss 9.0000 nats/token, 8.0000 bits/byte over {n_tokens:,} validation tokens"
    assert "0.250" in lines[1]
