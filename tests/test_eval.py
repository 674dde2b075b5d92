"""Output, files and errors of python eval.py, mode by mode."""

import json
import re
import shutil
import sys
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch

from antecedent_lab.eval_settings import EvalSettings
from antecedent_lab.modes import MAX_TEXTS
from antecedent_lab.opened import load_data, open_external, open_run
from data.corpus import load_stories
from data.english import FEMININE_NAMES, MASCULINE_NAMES
from probe.sentences import word_attention
from tests.program import SMALL, SMALL_PROBE, run_program
from training.settings import Device

SENTENCE = "The cat sat near the buses. It"
ABOUT = {"question": "mine", "description": "it or they, asked by me", "link": "a pronoun to my noun"}
CPU = torch.device("cpu")


def train(out: Path, *arguments: str) -> None:
    cache = f"cache_dir={out.parent / 'cache'}"
    result = run_program("train.py", *SMALL, "probe_sequences=8", cache, f"out={out}", *arguments)
    assert result.status == 0, result.err


def evaluate(run: Path, *arguments: str) -> Any:
    return run_program("eval.py", f"model={run}", f"cache_dir={run.parent / 'cache'}", *SMALL_PROBE, *arguments)


def results_of(run: Path, name: str = "probe.json") -> Any:
    return json.loads((run / "probe" / name).read_text())


def page_content(run: Path, name: str = "report.html") -> dict[str, Any]:
    text = (run / "probe" / name).read_text()
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


def test_the_output_fits_on_one_screen_with_a_row_for_each_question_and_the_page(probed: tuple[Path, str]) -> None:
    run, out = probed
    lines = out.splitlines()
    assert len(lines) <= 25 and max(map(len, lines)) <= 130
    for finding in results_of(run)["findings"]:
        row = next(line for line in lines if line.startswith(f"{finding['question']}:"))
        tested = finding["head"]
        assert "L{}H{}".format(*tested["heads"][0]) in row and tested["verdict"] in row
        assert f"{tested['values']['accuracy']['value']:.3f}" in row and f"{tested['values']['p']['value']:.4f}" in row
    assert (run / "probe" / "report.html").resolve().as_uri() in out


def test_verbose_also_prints_every_table(probed: tuple[Path, str]) -> None:
    out = evaluate(probed[0], "verbose=true").out
    parts = results_of(probed[0])["findings"][0]["parts"]
    assert re.search(rf"^ +measure +{' +'.join(parts)}$", out, re.MULTILINE)
    assert out.count("\n") > 2 * probed[1].count("\n")


def test_the_files_of_a_probe_agree(probed: tuple[Path, str]) -> None:
    folder = probed[0] / "probe"
    results = results_of(probed[0])
    names = [finding["question"] for finding in results["findings"]]
    assert [card["question"] for card in results_of(probed[0], "claims.json")] == names
    items = [json.loads(line) for line in (folder / "items.jsonl").read_text().splitlines()]
    assert set(names) <= {item["question"] for item in items}
    assert (folder / "heads.csv").read_text().startswith("question,")
    assert f"## {names[0]}" in (folder / "claims.md").read_text()
    for finding, question in zip(results["findings"], page_content(probed[0])["findings"], strict=True):
        assert sum(question["grids"]["accuracy"], []) == pytest.approx(sum(finding["grids"]["accuracy"], []), rel=1e-5)


def test_all_parts_of_the_stories_are_tested_if_asked_for(run: Path) -> None:
    assert evaluate(run, "probe.holdouts=all").status == 0
    tested = {finding["question"]: set(finding["parts"]) for finding in results_of(run)["findings"]}
    assert tested["number"] == {"iid", "pairs", "nouns", "frames", "headline", "distance"}


# A sentence of the user's


def test_a_sentence_is_printed_with_every_head_and_added_to_the_page(run: Path) -> None:
    earlier = page_content(run)["findings"]
    result = evaluate(run, f"text={SENTENCE}")
    assert result.status == 0 and result.out.count("  L0H") == page_content(run)["run"]["n_head"]
    row = next(line.split() for line in result.out.splitlines() if line.startswith("  L0H0"))
    assert row[1] == "cat" and row[3] == "buses" and row[5] == "|"
    [sentence] = [entry for entry in page_content(run)["sentences"] if entry["group"] == "yours"]
    assert sentence["text"] == SENTENCE and sentence["words"][sentence["query"][0]] == "It"
    assert page_content(run)["findings"] == earlier


def test_sentences_are_kept_newest_first_and_once(run: Path) -> None:
    path = run / "probe" / "sentences.json"
    path.write_text(json.dumps([f"It ran {i}." for i in range(MAX_TEXTS)]))
    evaluate(run, "text=It ran 3.")
    kept = json.loads(path.read_text())
    assert kept[:2] == ["It ran 3.", "It ran 0."] and len(kept) == MAX_TEXTS


@pytest.mark.parametrize("text", ["", "  ", "it " * 500])
def test_a_text_that_is_empty_or_too_long_is_refused(probed: tuple[Path, str], text: str) -> None:
    assert evaluate(probed[0], f"text={text}").error.startswith("text=")


# Settings and damaged files


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("model", {"runs": "a", "model": "b"}),
        ("run", {"model": "a", "run": "b"}),
        ("model", {"model": ""}),
        ("out", {"out": "a"}),
        ("out", {"model": "a", "out": ""}),
        ("items", {"items": "stories"}),
        ("items", {"items": "klingon", "model": "a"}),
        ("items", {"items": "a.jsonl", "runs": "a"}),
        ("items", {"items": "a.jsonl", "text": "it"}),
        ("tokenizer", {"tokenizer": "a"}),
        ("path", {"path": "a", "runs": "b"}),
        ("path", {"path": "a", "text": "it"}),
        ("text", {"text": "it", "runs": "a"}),
        ("text", {"before": "a", "text": "it"}),
        ("open", {"open": True, "runs": "a"}),
        ("live", {"live": True, "before": "a"}),
        ("before", {"before": "a", "runs": "b"}),
        ("threads", {"threads": 0}),
    ],
)
def test_settings_that_exclude_each_other_are_refused_by_name(name: str, settings: dict[str, Any]) -> None:
    names = ("model", "run", "runs", "items", "before", "path", "text", "tokenizer", "out", "live", "threads")
    values = dict.fromkeys(names) | dict.fromkeys(("open", "verbose"), False)
    with pytest.raises(ValueError, match=f"^{name}="):
        EvalSettings(**values | {"device": Device.cpu, "cache_dir": "c"} | settings)


def test_a_missing_package_is_named_with_its_command_before_anything_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("model.external.find_spec", lambda name: None)
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
    assert page_content(run)["findings"] == [] and "probe again" in page_content(run)["notes"][0]


# A question of the user's own


@pytest.fixture
def items(run: Path, tmp_path: Path) -> Path:
    """Return the number question of the stories as a file of one's own."""
    corpus = load_data(open_run(run, CPU), str(run.parent / "cache"))
    lines: list[dict[str, Any]] = [ABOUT]
    for split, holdout in (("dev", "iid"), ("test", "headline")):
        for story in load_stories(corpus, split):
            links = [link for link in story.links if (link.level, link.site) == ("number", "pronoun")]
            if story.family != "agreement" or story.holdout != holdout or not links:
                continue
            (link,) = links
            lines.append({
                "text": story.text, "query": link.query, "antecedents": link.antecedents,
                "distractors": link.distractors, "payoff": link.payoff, "answers": link.answers, "foils": link.foils,
                "block": (len(lines) - 1) // 4, "order": story.order, "meant": story.meant, "frame": story.frame,
                "words": story.pair.split(), "split": split,
            })  # fmt: skip
    path = tmp_path / "mine.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_a_built_in_question_as_a_file_has_the_same_result_in_its_own_words(run: Path, items: Path) -> None:
    result = evaluate(run, f"items={items}")
    assert result.status == 0, result.err
    assert "mine: it or they, asked by me" in result.out and f"{run}/probe/own/mine/report.html" in result.out
    (own,) = results_of(run, "own/mine/probe.json")["findings"]
    (number,) = [finding for finding in results_of(run)["findings"] if finding["question"] == "number"]
    assert own["head"]["heads"] == number["head"]["heads"] and own["grids"] == number["grids"]
    # Selectivity is measured on halves of dev, because a file has no test blocks with the words of dev.
    for name in own["head"]["values"].keys() - {"selectivity"}:
        assert own["head"]["values"][name] == number["head"]["values"][name], name

    # Its own words, in the claim and on the page.
    claim = results_of(run, "own/mine/claims.json")[0]["claim"]
    assert "a pronoun to my noun" in claim and "antecedents in training" not in claim
    page = (run / "probe/own/mine/report.html").read_text()
    assert "Which attention head links a pronoun to my noun?" in page and "to its antecedent?" not in page
    assert "asked by me" in page and f"items={items}" in page  # the command that makes it again


def test_a_mistake_in_a_file_is_one_line_and_nothing_is_written(run: Path, items: Path) -> None:
    written = items.read_text()
    items.write_text("{\n")
    assert f"{items} line 1: not JSON" in evaluate(run, f"items={items}").error
    _, *rows = [json.loads(line) for line in written.splitlines()]
    for change, problem in (
        ({"text": rows[0]["text"] + " and" * 70}, "tokens; the model reads 64"),
        ({"query": [rows[0]["query"][0], rows[0]["query"][1] - 1]}, "has no tokens for itself"),
    ):
        items.write_text("".join(json.dumps(row) + "\n" for row in [rows[0] | change, *rows[1:]]))
        error = evaluate(run, f"items={items}").error
        assert f"{items} line 1: " in error and problem in error
    assert not (run / "probe/own/mine").exists()


# Two models


def test_two_runs_are_compared_and_the_same_run_twice_has_not_changed(run: Path) -> None:
    other = shutil.copytree(run, run.parent / "other")
    result = evaluate(run, f"before={other}")
    assert (result.status, result.err) == (0, "") and f"compared with {other}" in result.out
    assert "no change shown" in result.out and " changed\n" not in result.out
    trained = run.parent / "trained"
    train(trained, "seed=2", f"cache_dir={run.parent / 'cache'}")
    result = evaluate(run, f"before={trained}")
    assert result.status == 0 and "p: paired, two-sided" in result.out, result.err
    written = results_of(run, "compared/trained/comparison.json")
    assert (written["before"]["run"], written["model"]["run"]) == (str(trained), str(run))
    effects = [each for each in written["changes"] if (each["question"], each["measure"]) == ("number", "effect")]
    assert {tuple(change["head"]) for change in effects} == {(0, 0), (0, 1)}


def test_models_that_cannot_be_compared_are_one_line(run: Path) -> None:
    wider = run.parent / "wider"
    train(wider, "model.n_layer=2", f"cache_dir={run.parent / 'cache'}")
    assert "has 2 layers of 2 heads" in evaluate(run, f"before={wider}").error
    assert evaluate(run, f"before={run.parent / 'none'}").error.startswith("before=")


# English text


def documents(n: int, seed: int = 0) -> list[str]:
    """Return short texts about a woman and a man, or one of them, that a pronoun follows."""
    rng = Random(seed)
    women, men = sorted(FEMININE_NAMES)[:40], sorted(MASCULINE_NAMES)[:40]
    texts = []
    for _ in range(n):
        first, second = rng.choice(women), rng.choice(men)
        meant = rng.choice(("She", "He"))
        one = rng.choice((first, second))
        pronoun = "She" if one == first else "He"
        texts.append(f"{first} met {second} near the big tree. {meant} was glad and ran home again.")
        texts.append(f"{one} walked through the quiet garden. {pronoun} was tired and went to sleep.")
    return texts


@pytest.fixture(scope="module")
def english(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """An evaluated run on English and the output of eval.py; the text is text.jsonl in the folder of the run."""
    folder = tmp_path_factory.mktemp("english")
    text = folder / "text.jsonl"
    text.write_text("".join(json.dumps({"text": document}) + "\n" for document in documents(400)))
    small = [argument for argument in SMALL if not argument.startswith("data.")]
    data = ["data=text", f"data.path={text}", "data.vocab_size=600", "data.validation_fraction=0.6"]
    train_arguments = [*small, *data, "probe_sequences=160", f"cache_dir={folder / 'cache'}", f"out={folder / 'run'}"]
    result = run_program("train.py", *train_arguments)
    assert result.status == 0 and " swap " in result.out, result.err
    result = evaluate(folder / "run")
    assert result.status == 0, result.err
    return folder / "run", result.out


def test_a_run_on_english_prints_one_finding_and_one_passage(english: tuple[Path, str]) -> None:
    run, out = english
    results = results_of(run)
    assert [finding["outcome"] for finding in results["findings"]] == ["edge"]
    assert re.search(r"^loss \d+\.\d+ nats/token", out, re.MULTILINE)
    assert len(out.splitlines()) <= 15 and out.count("weights exchanged") == 1
    (missing,) = results["missing"]
    assert "(needed: 40)" in missing and missing not in out and missing in evaluate(run, "verbose=true").out
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert any("grids" in value for record in records for value in record.values() if isinstance(value, dict))
    claim = results_of(run, "claims.json")[0]["claim"]
    assert "the gender of the people it attends to" in claim or "does not know" in claim


def test_another_text_confirms_the_head_that_the_run_has_chosen(english: tuple[Path, str]) -> None:
    run, _ = english
    result = evaluate(run, f"path={run.parent / 'text.jsonl'}")
    assert result.status == 0, result.err
    written = results_of(run, "outside/text/probe.json")
    (confirmed,) = written["confirmed"]
    assert confirmed["head"]["heads"] == results_of(run)["findings"][0]["head"]["heads"]


@pytest.mark.parametrize(
    "text", ["The rain fell on the hill. " * 50, "Привет, мир. " * 50, "Lily met Tom. She ran home."]
)
def test_a_text_without_enough_passages_is_one_line(english: tuple[Path, str], text: str) -> None:
    run, _ = english
    path = run.parent / "other.txt"
    path.write_text(text, encoding="utf-8")
    error = evaluate(run, f"path={path}").error
    assert "too little to test" in error and "passages with a woman and a man (needed: 40)" in error
    assert not (run / "probe" / "outside" / "other").exists()


# Sweeps and models of other programs


@pytest.mark.slow
def test_a_sweep_over_seeds_is_tested_once_and_summarised_and_variants_are_compared(run: Path) -> None:
    sweep = run.parent / "sweep"
    shutil.copytree(run, sweep / "1")
    cache = f"cache_dir={run.parent / 'cache'}"
    train(sweep / "2", "seed=2", cache)
    earlier = (sweep / "1" / "probe" / "probe.json").stat().st_mtime_ns
    result = run_program("eval.py", f"runs={sweep}", cache, *SMALL_PROBE)
    assert result.status == 0, result.err
    assert (sweep / "1" / "probe" / "probe.json").stat().st_mtime_ns == earlier
    assert results_of(sweep, "seeds.json")["seeds"] == [1, 2]

    train(sweep / "3", "variant=unscaled", cache)
    result = run_program("eval.py", f"runs={sweep}", cache, *SMALL_PROBE)
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
    ours = open_run(run, CPU)
    external = open_external(str(folder), str(out), ours.data, CPU)
    [weights], [expected] = (word_attention(opened.model, [opened.tokenize(SENTENCE)]) for opened in (external, ours))
    np.testing.assert_allclose(weights, expected, rtol=1e-4, atol=1e-6)
