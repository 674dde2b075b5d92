"""Output, files and errors of python eval.py, mode by mode."""

import json
import platform
import re
import shlex
import shutil
import sys
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
import torch

from antecedent_lab import open_model
from data.corpus import load_stories
from extras.paper.paper import table_csv, table_tex
from probe.opened_run import load_data, open_run
from probe.results import Head, ProbeResults
from probe.saved import folder_name
from tests.probe.factories import documents
from tests.program import SHORT, SMALL, SMALL_PROBE, run_program
from training.metrics import load_metrics

SENTENCE = "The cat sat near the buses. It"


def train(out, cache, *arguments):
    result = run_program("train.py", *SMALL, "probe_sequences=8", cache, f"out={out}", *arguments)
    assert result.status == 0, result.err


def evaluate(run, cache, *arguments, mode="model"):
    return run_program("eval.py", f"{mode}={run}", cache, *SMALL_PROBE, *arguments)


def export(run, *arguments):
    return run_program("antecedent_lab/__main__.py", "export", f"run={run}", *arguments)


def output(result):
    assert (result.status, result.err) == (0, ""), result.err
    return result.out


def results_of(run, name="probe.json"):
    return ProbeResults.from_json(json.loads((run / "probe" / name).read_text()))


def variants_of(sweep):
    return json.loads((sweep / "probe" / "sweep.json").read_text())["variants"]


def page_content(run):
    text = (run / "probe" / "report.html").read_text()
    return json.loads(re.search(r'id="content">(.*?)</script>', text, re.DOTALL)[1])


@pytest.fixture(scope="module")
def probed(trained_run, cache, tmp_path_factory):
    """A run whose heads were tested, and what eval.py printed."""
    run = shutil.copytree(trained_run, tmp_path_factory.mktemp("eval") / "run")
    return run, output(evaluate(run, cache))


@pytest.fixture
def run(probed, tmp_path):
    return shutil.copytree(probed[0], tmp_path / "run")


def test_the_output_is_one_screen_and_the_files_agree(probed):
    run, out = probed
    lines = out.splitlines()
    assert len(lines) <= 25 and max(map(len, lines)) <= 130
    assert (run / "probe" / "report.html").resolve().as_uri() in out
    claims = (run / "probe" / "claims.md").read_text()
    for finding, shown in zip(results_of(run).findings, page_content(run)["findings"], strict=True):
        [row] = [line for line in lines if line.startswith(f"{finding.question}:")]
        values = f"{finding.head.value('accuracy'):.3f}", f"{finding.head.value('p'):.4f}"
        for fact in ("L{}H{}".format(*finding.place), finding.verdict, *values):
            assert fact in row
        assert f"## {finding.question}\n" in claims
        assert (shown["place"], shown["verdict"]) == ([*finding.place], finding.verdict)


def test_the_files_say_what_they_were_made_with_and_when(probed):
    run, _ = probed
    made = results_of(run).environment
    facts = {"python": platform.python_version(), "device": "cpu", "command": shlex.join(sys.orig_argv)}
    assert facts.items() <= made.items() and {"commit", "uncommitted_changes"} <= made.keys() and made["threads"] >= 1
    assert made["packages"]["numpy"] == np.__version__
    assert torch.__version__.startswith(made["packages"]["torch"])  # a wheel's metadata may lack "+cu130"
    assert abs(datetime.now(UTC) - datetime.fromisoformat(made["date"])) < timedelta(hours=12)
    first, second, *_ = (run / "probe" / "claims.md").read_text().splitlines()
    assert second == "" and f"torch {made['packages']['torch']}" in first
    assert all(f" {made[name]}" in first for name in ("date", "commit", "device", "python"))


def test_tables_are_always_written_and_figures_when_they_are_asked_for(run, cache):
    folder = run / "probe"
    found = results_of(run)
    assert (folder / "table.csv").read_text() == table_csv(found)
    assert (folder / "table.tex").read_text() == table_tex(found) and not (folder / "figures").exists()
    output(evaluate(run, cache, "figures=true"))
    assert {path.name for path in (folder / "figures").iterdir()} == {"grid.svg", "emergence.svg"}
    output(evaluate(run, cache))  # those of the earlier results do not stay
    assert not list((folder / "figures").iterdir())
    assert evaluate(run, cache, "figures=true", "text=It").error == "figures=True: cannot be combined with text="


def test_an_export_has_the_claims_of_the_probe_and_the_numbers_of_its_run(run, cache):
    pytest.importorskip("transformers")
    output(export(run))
    made_with, _, claims = (run / "probe" / "claims.md").read_text().strip().partition("\n\n")
    card = (run / "export" / "hf" / "README.md").read_text()
    assert claims in card and made_with not in card  # a card is published, without folders of a machine
    assert ": has the weights of " in evaluate(run, cache, f"before={run / 'export/hf'}").error
    of_run, of_export = (open_model(path).log_probs([SENTENCE], " was", " saw") for path in (run, run / "export/hf"))
    assert of_run == pytest.approx(of_export, abs=1e-5)


def test_a_checkpoint_can_be_chosen_and_its_results_do_not_replace_those_of_the_best(run, cache):
    best = results_of(run)
    out = output(evaluate(run, cache, "checkpoint=2", "verbose=true"))
    assert f"run {run}, checkpoint 2: step 2 of 4" in out and results_of(run) == best
    found = results_of(run, "step_2/probe.json")
    assert (found.model.step, best.model.step) == (2, 4) and found.findings[0].head != best.findings[0].head
    assert "checkpoint=2" in (run / "probe/step_2/report.html").read_text()  # in the command that makes it again
    output(evaluate(run, cache, f"text={SENTENCE}", "checkpoint=last"))
    assert open_model(run, checkpoint=2).step == 2  # a number, from Python
    assert (run / "probe/step_4/report.html").exists()
    for name, problem in (("3", "was not kept; "), ("first", "must be best, last or a step")):
        assert f"checkpoint={name}: {problem}" in evaluate(run, cache, f"checkpoint={name}").error
    folder = run.parent / "hf"
    assert output(export(run, f"out={folder}", "checkpoint=2")) and "step 2" in (folder / "README.md").read_text()
    assert "checkpoint=2: only for a run" in evaluate(folder, cache, "checkpoint=2").error


def test_a_sentence_is_printed_with_every_head_and_added_to_the_page(run, cache):
    earlier = page_content(run)["findings"]
    out = output(evaluate(run, cache, f"text={SENTENCE}"))
    content = page_content(run)
    assert out.count("  L0H") == content["run"]["n_head"]
    assert re.search(r"^  L0H0 +cat [\d.]+ +buses [\d.]+ +\|", out, re.MULTILINE)
    [sentence] = [entry for entry in content["sentences"] if entry["id"].startswith("yours")]
    assert sentence["text"] == SENTENCE and sentence["words"][sentence["query"]] == "It"
    assert content["findings"] == earlier


def test_a_missing_package_is_named_with_its_command(monkeypatch):
    monkeypatch.setattr("extras.others.external.find_spec", lambda name: None)
    assert f"{sys.executable} -m pip install '.[export]'" in run_program("eval.py", "model=somewhere").error


def test_a_text_without_a_pronoun_is_read_at_its_last_word(run, cache):
    out = output(evaluate(run, cache, "text=hello my name is Ali"))
    assert "read as the unknown word: hello, my, name, is, Ali" in out and "at “Ali”" in out
    assert re.search(r"^next word: ((\(.*?\)|\S+) .\.\d\d(, |$)){5}", out, re.MULTILINE)


OF_RUN = "is a run of train.py, which has its own sentences, tokenizer and folder"


@pytest.mark.parametrize(("argument", "error"), [
    ("text=  ", "text="), (f"text={'it ' * 500}", "text="), ("before=nowhere", "before="), ("before=tests", "before="),
    ("items=stories", OF_RUN), ("tokenizer=a", OF_RUN), ("out=a", OF_RUN),
])  # fmt: skip
def test_a_setting_that_cannot_be_used_is_one_line(probed, cache, argument, error):
    assert error in evaluate(probed[0], cache, argument).error


@pytest.mark.parametrize(("file", "old", "new", "error"), [
    ("config.json", "{", "", "config.json"),
    ("config.json", '"run"', '"runs"', "config.json: not the settings of a run"),
    ("config.json", '"rope_theta": 1', '"rope_theta": 2', "model.rope_theta"),
    ("tokenizer.json", "{", "", "tokenizer.json"),
    ("probe/probe.json", "{", "", "probe/probe.json"),
    ("metrics.jsonl", "{", "", "metrics.jsonl: damaged"),
])  # fmt: skip
def test_a_damaged_file_is_named(run, cache, file, old, new, error):
    content = (run / file).read_text()
    assert old in content
    (run / file).write_text(content.replace(old, new, 1))
    page = (run / "probe" / "report.html").read_bytes()
    assert error in evaluate(run, cache, f"text={SENTENCE}").error
    assert (run / "probe" / "report.html").read_bytes() == page


def pattern_of(story, other):
    """Return two stories, which differ from the pronoun on, as a pattern that ends with the payoff."""
    link, rival = story.link, other.link
    start = story.text[: link.query[0]]
    for letter, word in zip("AB", story.pair.split()[:: 1 - 2 * story.order], strict=True):
        start = re.sub(rf"\b{word}\b", f"{{{letter}}}", start)
    query = f"<{story.text[slice(*link.query)]}|{other.text[slice(*rival.query)]}>"
    payoff = f"[{story.text[slice(*link.payoff)]}|{other.text[slice(*rival.payoff)]}]"
    return start + query + story.text[link.query[1] : link.payoff[0]] + payoff


@pytest.fixture
def items(run, cache, tmp_path):
    """Return the number question of the stories as a file of one's own."""
    corpus = load_data(open_run(run, torch.device("cpu")), cache.removeprefix("cache_dir="))
    lines: list[dict] = [{"question": "mine", "description": "it or they, asked by me"}]
    for split, holdout in (("dev", "iid"), ("test", "headline")):
        asked = (holdout, "number")
        stories = [story for story in load_stories(corpus, split) if (story.holdout, story.link.question) == asked]
        for first, second, *reversed_order in zip(*[iter(stories)] * 4, strict=True):
            lines.append({
                "pattern": [pattern_of(first, second), pattern_of(*reversed_order)],
                "answers": [first.link.answers, second.link.answers],
                "words": first.pair.split(), "frame": first.frame, "split": split,
            })  # fmt: skip
    path = tmp_path / "mine.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_a_built_in_question_as_a_file_has_its_result(run, cache, items):
    folder = run / "probe/own/mine"
    out = output(evaluate(run, cache, f"items={items}"))
    assert "mine: it or they, asked by me" in out and f"{folder}/report.html" in out
    [own] = results_of(run, "own/mine/probe.json").findings
    number = results_of(run).finding("number")
    assert own.place == number.place and own.grids == number.grids
    # Selectivity is measured on halves of dev, because a file has no test blocks with the words of dev.
    for name in own.head.values.keys() - {"selectivity"}:
        assert own.head.values[name] == number.head.values[name], name

    # Its own words, in the claim and on the page.
    claim = (folder / "claims.md").read_text()
    assert "the query to its antecedent" in claim and "antecedents in training" not in claim
    page = (folder / "report.html").read_text()
    assert "links the query to its antecedent" in page and "a pronoun to its antecedent" not in page
    assert f"items={items}" in page  # the command that makes it again


def test_a_mistake_in_a_file_is_one_line(run, cache, items):
    items.write_text(items.read_text().replace(">", f"> {'and ' * 70}"))
    problem = f"model={run}: reads 64 tokens, but the sentences need "
    assert evaluate(run, cache, f"items={items}").error.startswith(problem)
    assert not (run / "probe/own/mine").exists()


def test_a_check_with_a_model_reads_its_tokenizer_alone_and_names_the_words_that_it_lacks(run, items):
    for file in (run / "checkpoints").glob("*.pt"):
        file.unlink()

    def check(items, model=run):
        return run_program("eval.py", f"items={items}", "check=true", f"model={model}")

    assert f"every word has tokens for itself in {run}" in output(check(items))
    lacking = check("docs/questions/er_sie.jsonl").error
    assert "not in this model's vocabulary: 'Er', 'Hund'" in lacking and lacking.count("'") == 1 + 2 * 10
    assert check(items, "./nowhere").error.startswith("model=./nowhere: no such model")


def compared_with(before):
    """Return the folder, in probe/, of a comparison with another run."""
    return f"compared/{folder_name(str(before))}"


def test_two_runs_are_compared_and_one_twice_is_refused(run, cache):
    copy = shutil.copytree(run, run.parent / "copy")
    assert f"before={copy}: has the weights of {run}" in evaluate(run, cache, f"before={copy}").error
    other = run.parent / "trained"
    for out, change, found in (
        (run.parent / "wider", "model.d_mlp=48", "before-yours-1"),
        (other, "seed=2", '"before":"'),
    ):
        train(out, cache, change)
        assert "p: paired, two-sided" in output(evaluate(run, cache, f"before={out}"))
        page = (run / "probe" / compared_with(out) / "report.html").read_text()
        assert f"What changed from {out.name} to {run.name}?" in page and found in page
    written = results_of(run, f"{compared_with(other)}/comparison.json")
    assert (written.before.run, written.model.run) == (str(other), str(run))
    effects = {change.head for change in written.changes if (change.question, change.measure) == ("number", "effect")}
    assert effects == {Head(0, 0), Head(0, 1)}
    train(run.parent / "deeper", cache, "model.n_layer=2")
    assert "has 2 layers of 2 heads" in evaluate(run, cache, f"before={run.parent / 'deeper'}").error


def test_a_run_on_english_prints_one_finding_and_another_text_has_its_own_folder(cache, tmp_path):
    text, run = tmp_path / "text.jsonl", tmp_path / "run"
    text.write_text("".join(json.dumps({"text": document}) + "\n" for _, document in documents(800)))
    arguments = ["model=nano", *SHORT, "probe_sequences=160", cache, f"out={run}"]
    data = ["data=text", f"data.path={text}", "data.vocab_size=600", "data.validation_fraction=0.6"]
    assert " swap " in output(run_program("train.py", *arguments, *data))
    out = output(evaluate(run, cache))
    assert re.search(r"^loss \d+\.\d+ nats/token", out, re.MULTILINE)
    assert len(out.splitlines()) <= 15 and out.count("weights exchanged") == 1
    results = results_of(run)
    (finding,) = results.findings
    assert finding.outcome == "edge" and load_metrics(run).probe[-1].questions.keys() == {finding.question}
    assert results.missing == []
    assert max(map(len, output(evaluate(run, cache, "verbose=true")).splitlines())) <= 200
    claim = (run / "probe/claims.md").read_text()
    assert "the gender of the people it attends to" in claim or "does not know" in claim

    # Another text, and one with too few passages
    output(evaluate(run, cache, f"path={text}"))
    [of_text] = results_of(run, "outside/text/probe.json").findings
    assert of_text.question == finding.question
    (tmp_path / "other.txt").write_text("Привет, мир. Lily met Tom. She ran home.", encoding="utf-8")
    error = evaluate(run, cache, f"path={tmp_path / 'other.txt'}").error
    assert "too little to test" in error and "passages with a woman and a man (needed: 40)" in error


@pytest.mark.slow
def test_a_sweep_is_tested_once_and_variants_are_compared(run, cache):
    sweep = run.parent / "sweep"
    shutil.copytree(run, sweep / "1")
    train(sweep / "2", cache, "seed=2")
    first_test = (sweep / "1" / "probe" / "probe.json").stat().st_mtime_ns
    output(evaluate(sweep, cache, mode="runs"))
    assert (sweep / "1" / "probe" / "probe.json").stat().st_mtime_ns == first_test
    assert variants_of(sweep)[0]["seeds"] == [1, 2]

    train(sweep / "3", cache, "variant=unscaled")
    output(evaluate(sweep, cache, mode="runs"))
    assert [variant["name"] for variant in variants_of(sweep)] == ["standard", "scale=none"]
    assert (sweep / "probe" / "sweep.md").is_file()


def exported(run, cache, *arguments):
    """Train a run on the default stories, export it, and return the folder of the export."""
    output(run_program("train.py", "model=nano", *SHORT, cache, f"out={run}", *arguments))
    output(export(run))
    return str(run / "export" / "hf")


@pytest.mark.slow
def test_models_of_two_seeds_have_the_numbers_of_their_runs(cache, tmp_path):
    pytest.importorskip("transformers")

    def compared(*models):
        arguments = [f"model={','.join(models)}", "items=stories", f"out={tmp_path / 'models'}"]
        return run_program("eval.py", *arguments, cache, *SMALL_PROBE, cwd=tmp_path)

    folders = [exported(tmp_path / "sweep" / seed, cache, f"seed={seed}") for seed in "12"]
    output(evaluate(tmp_path / "sweep", cache, mode="runs"))
    out = output(compared(*folders))
    assert "# Results over models 1, 2\n" in out and "differ in the training seed alone is not known" in out
    [of_runs], [of_models] = (variants_of(tmp_path / name) for name in ("sweep", "models"))
    assert of_models["runs"] == folders and of_models["seeds"] == of_runs["seeds"] and of_models["values"] == {}
    for found, expected in zip(of_models["questions"], of_runs["questions"], strict=True):
        assert (found["question"], found["heads"]) == (expected["question"], expected["heads"])
        assert found["values"].keys() == expected["values"].keys()
        for name, summary in found["values"].items():
            assert summary["by_run"] == pytest.approx(expected["values"][name]["by_run"], abs=1e-4), name

    # One with the same weights, and one of another shape
    copied = shutil.copytree(folders[0], tmp_path / "copied")
    for twice in (str(copied), folders[0]):
        assert f"model={twice}: has the weights of {folders[0]}" in compared(folders[0], twice).error
    run = str(tmp_path / "sweep" / "1")
    same = str(shutil.copytree(run, tmp_path / "same"))
    assert f"model={same}: has the weights of {run}" in compared(run, same).error
    other = exported(tmp_path / "other", cache, "model.n_head=1")
    assert f"model={other}: n_head is not that of {folders[0]}" in compared(folders[0], other).error
