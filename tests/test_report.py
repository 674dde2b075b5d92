"""The page from outside: what a probe and a sentence of one's own put into it, and what it says where there is none."""

import json
import math
import os
import shutil
from base64 import b64decode
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.pages import content_of
from tests.report.browser import opened, running
from tests.reliability.doors import Doors, Ended

ROOT = Path(__file__).parent.parent
TRAIN = [
    "threads=1", "max_steps=4", "eval_every_steps=4", "tokens_per_batch=256", "validation_tokens=200",
    "probe_sequences=40", "sample_tokens=0",
]  # fmt: skip
STORIES = [
    "data.n_train_stories=4000", "data.n_validation_stories=40", "data.n_test_templates=2", "data.n_test_pairs=2",
]  # fmt: skip
PROBE = ["threads=1", "probe.n_bootstrap=100", "probe.n_untrained=2", "probe.n_controls=10"]
DRAWS = str(find_spec("matplotlib") is not None).lower()
NO_HEADS = '{"model": {"step": 4}, "schema_version": 5, "data": {"fingerprint": "FINGERPRINT"}}'
CAT = "The cat sat on the mat because it was tired."


@pytest.fixture(scope="module")
def place(doors: Doors, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of the stories, one of a text, and one of a model that cheats; none has been probed."""
    here = tmp_path_factory.mktemp("pages, several")
    (here / "text.txt").write_text("The cat saw the dog. It ran. Ann hurt herself, and he left her.\n" * 60)
    of_text = ["data=text", f"data.path={here / 'text.txt'}", "data.vocab_size=280", "model.context_length=128"]
    runs = {"stories": STORIES, "text": of_text, "cheats": [*STORIES, "model.mask=none"]}
    for name, data in runs.items():
        trained = doors.run("train.py", f"out={here / name}", f"cache_dir={here / 'cache'}", *TRAIN, *data)
        assert trained.status == 0, trained.err
    return here


@pytest.fixture(scope="module")
def probed(doors: Doors, place: Path) -> Path:
    """A copy of the run of the stories that has been probed, with figures; what was printed stands beside."""
    run = place / "probed"
    shutil.copytree(place / "stories", run)
    done = doors.run("eval.py", f"run={run}", f"cache_dir={place / 'cache'}", f"figures={DRAWS}", *PROBE)
    assert done.status == 0 and done.err == "", done.err
    (place / "stdout").write_text(done.out)
    return run


def page_of(run: Path) -> dict[str, Any]:
    return content_of((run / "probe" / "report.html").read_bytes())


def look(doors: Doors, run: Path, text: str, *overrides: str, **environment: str) -> Ended:
    return doors.run("eval.py", f"run={run}", f"text={text}", "threads=1", *overrides, environment=environment)


def weights(sentence: dict[str, Any], n_layer: int, n_head: int) -> np.ndarray:
    """Return the dense weights [L, H, T, T] of a sentence of a page."""
    assert sentence["weights"]["kept"] is None
    length = len(sentence["pieces"])
    packed = np.frombuffer(b64decode(sentence["weights"]["data"]), "<u2").reshape(n_layer, n_head, -1) / 65535
    found = np.zeros((n_layer, n_head, length, length))
    found[..., *np.tril_indices(length)] = packed
    return found


def to_word(sentence: dict[str, Any], rows: np.ndarray, word: int) -> float:
    """Return the weight from the asked word on another, given one head's weights [T, T]."""
    owner = np.array(sentence["owner"])
    query = np.flatnonzero(owner == sentence["asked"][0])[-1]
    return float(rows[query, owner == word].sum())


def test_the_page_says_of_every_question_what_the_probe_wrote(probed: Path) -> None:
    page = page_of(probed)
    found = json.loads((probed / "probe" / "probe.json").read_text())
    cards = json.loads((probed / "probe" / "claims.json").read_text())
    assert page["notes"] == [] and page["run"]["step"] == 4 and page["run"]["name"] == "probed"
    for shown, one, card in zip(page["questions"], found["selected"], cards, strict=True):
        assert shown["claim"] == card["claim"] and shown["does_not_show"] == card["does_not_show"]
        for name in ("layer", "head", "verdict", "evidence_level", "reasons", "site"):
            assert shown[name] == one[name]
        larger = np.maximum(one["heads"]["p_pair_accuracy"], one["heads"]["p_pronoun_contrast"])
        assert np.allclose(shown["heads"]["p"], larger, rtol=0, atol=5e-7)
        assert np.allclose(shown["heads"]["accuracy"], one["heads"]["accuracy"], rtol=0, atol=5e-7)
        assert [holdout["name"] for holdout in shown["holdouts"]] == list(one["test"])
        for holdout in shown["holdouts"]:
            assert holdout["luck"] == round(one["test"][holdout["name"]]["chance_level"], 6)
        turned = next(effect for effect in shown["causal"] if effect["name"] == "attention_swap")
        known = one["causal"]["attention_swap"]  # None of a head whose model answers by luck
        assert turned["value"] == (None if known is None else pytest.approx(known, rel=0, abs=5e-7))


def test_every_number_of_the_page_is_finite_and_short(probed: Path) -> None:
    def walk(value: Any, digits: int) -> None:
        if isinstance(value, dict | list):
            for one in value.values() if isinstance(value, dict) else value:
                walk(one, digits)
        elif isinstance(value, float):
            assert math.isfinite(value) and value in (round(value, digits), float(f"{value:.{digits}g}"))

    for name, value in page_of(probed).items():
        walk(value, 6 if name == "questions" else 4)  # the page rounds what its tables print to three once more
    assert (probed / "probe" / "report.html").stat().st_size < 3_000_000


def test_median_blocks_look_as_their_lines_of_items_jsonl_say(probed: Path) -> None:
    """The line, its text and candidates, and what the chosen head of that line's question does there."""
    page = page_of(probed)
    shape = page["run"]["n_layer"], page["run"]["n_head"]
    lines = [json.loads(line) for line in (probed / "probe" / "items.jsonl").read_text().splitlines()]
    sentences = {one["id"]: one for one in page["sentences"]}
    for question in page["questions"]:
        medians = [one for one in (sentences[each] for each in question["sentences"]) if one["group"] == "median"]
        assert len(medians) == 4 and question["holdout"] == "headline"
        for one in medians:
            line = lines[one["item"]["line"] - 1]
            assert line["question"] == one["item"]["question"] == question["name"].partition(",")[0]
            assert line["text"] == one["text"] and line["holdout"] == "headline"
            seen = weights(one, *shape)[line["layer"], line["head"]]
            antecedent = sum(to_word(one, seen, word) for word in one["antecedents"])
            distractor = sum(to_word(one, seen, word) for word in one["distractors"])
            assert antecedent + distractor == pytest.approx(line["mass"], abs=1e-4)
            assert math.log(antecedent / distractor) == pytest.approx(line["preference"], abs=2e-3)


def test_the_showcase_stands_with_its_question_and_with_its_film(probed: Path) -> None:
    page = page_of(probed)
    sentences = {one["id"]: one for one in page["sentences"]}
    first, *_ = page["questions"]
    cells = [sentences[each] for each in first["sentences"] if each.startswith("cells")]
    assert len(cells) == 4 and all(one["next"] for one in cells)
    shown = json.loads((probed / "probe" / "probe.json").read_text())["showcase"]["number"]
    film, shape = page["emergence"]["film"], (page["run"]["n_layer"], page["run"]["n_head"])
    assert film["steps"][-1] == page["run"]["step"] and film["steps"][0] == 0
    for one, asked in zip(cells, shown, strict=True):
        every = weights(one, *shape)
        seen = every[first["layer"], first["head"]]
        named = {one["words"][place]: to_word(one, seen, place) for place in one["antecedents"] + one["distractors"]}
        assert named == pytest.approx(asked["weights"], abs=1e-4)
        assert film["texts"][one["film"]] == one["text"]
        last = np.frombuffer(b64decode(film["data"][-1][one["film"]]), np.uint8) / 255
        assert np.allclose(last.reshape(*shape, -1), every[..., *np.tril_indices(every.shape[-1])], atol=1 / 255)


def test_figures_and_tensorboards_scores_are_written_beside_the_page(place: Path, probed: Path) -> None:
    pytest.importorskip("matplotlib")
    pictures = sorted(path.name for path in (probed / "probe" / "figures").iterdir())
    assert {"map.png", "four_cells.png", "emergence.png"} <= set(pictures)
    assert all(f"figures/{name}" in (place / "stdout").read_text() for name in pictures)
    (events,) = (probed / "tb").glob("*.probe")
    tags = EventAccumulator(str(events)).Reload().Tags()["scalars"]
    assert {"probe/Sel@1 number", "probe/F4 number", "probe/Sel@1 later_cue"} <= set(tags)


def test_a_sentence_is_added_to_the_page_and_nothing_is_probed_for_it(doors: Doors, probed: Path) -> None:
    kept = {name: (probed / "probe" / name).read_bytes() for name in ("probe.json", "items.jsonl", "claims.json")}
    before = page_of(probed)
    done = look(doors, probed, CAT)
    assert done.status == 0 and done.err == "", done.err
    assert (
        'at "it"' in done.out and "<- chosen for number" in done.out and "the clue comes after the pronoun" in done.out
    )
    assert done.out.endswith(f"see      {(probed / 'probe' / 'report.html').resolve().as_uri()}#own-1\n")
    page = page_of(probed)
    assert page["questions"] == before["questions"] and page["emergence"] == before["emergence"]
    (one,) = [each for each in page["sentences"] if each["group"] == "own"]
    assert one["text"] == CAT and [one["words"][place] for place in one["asked"]] == ["tired", "it"]
    assert "the clue comes after the pronoun" in one["notes"][0]
    assert {name: (probed / "probe" / name).read_bytes() for name in kept} == kept


def test_a_page_keeps_the_twelve_newest_sentences_each_once(doors: Doors, place: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(place / "stories", run)
    (run / "probe").mkdir()
    (run / "probe" / "sentences.json").write_text(json.dumps([f"It is {i}." for i in range(12)]))
    assert look(doors, run, "It is 5.").status == 0
    assert look(doors, run, "They are new.").status == 0
    texts = [one["text"] for one in page_of(run)["sentences"] if one["group"] == "own"]
    assert texts == ["They are new.", "It is 5.", *(f"It is {i}." for i in (0, 1, 2, 3, 4, 6, 7, 8, 9, 10))]


def test_of_a_run_that_was_not_probed_the_page_has_the_sentence_and_says_how_to_get_the_rest(
    doors: Doors, place: Path, tmp_path: Path
) -> None:
    run = tmp_path / "a run"
    shutil.copytree(place / "stories", run)
    done = look(doors, run, "the dog barked at zorgon")
    assert done.status == 0 and "no pronoun in text" in done.out and "only the page shows it" in done.out
    page = page_of(run)
    (note,) = page["notes"]
    assert "has not been probed" in note and f"python eval.py 'run={run}'" in note and page["questions"] == []
    own, *others = page["sentences"]
    assert own["asked"] == [] and "does not know zorgon" in own["notes"][0]
    assert {one["group"] for one in others} == {"cells", "twins"}
    assert page["emergence"]["curves"]["number"]["accuracy"]


def test_a_run_of_a_sweep_bears_its_sweeps_name_and_every_run_its_seed(
    doors: Doors, place: Path, tmp_path: Path
) -> None:
    for folder, name in (("four seeds/3", "four seeds/3"), ("runs/3", "3"), ("four seeds/mine", "mine")):
        shutil.copytree(place / "stories", tmp_path / folder)
        assert look(doors, tmp_path / folder, CAT).status == 0
        about = page_of(tmp_path / folder)["run"]
        assert about["name"] == name
        assert about["seed"] == json.loads((tmp_path / folder / "config.json").read_text())["run"]["seed"]


@pytest.mark.parametrize(
    ("name", "damaged", "remedy"),
    [
        ("probe.json", "{", "writes it anew"),
        ("probe.json", "heads", "writes it anew"),
        ("claims.json", "{}", "writes it anew"),
        ("claims.json", "[]", "writes it anew"),
        ("claims.json", "[{", "writes it anew"),
        ("claims.json", None, "writes it anew"),
        ("items.jsonl", "", "writes it anew"),
        ("items.jsonl", "half", "writes it anew"),
        ("items.jsonl", None, "writes it anew"),
        ("sentences.json", "[", "delete it"),
        ("../environment.json", "{", "delete it"),
        ("../environment.json", "[]", "delete it"),
        ("../environment.json", '{"packages": 1}', "delete it"),
    ],
)
def test_a_damaged_or_missing_file_is_one_line_that_says_what_to_do(
    doors: Doors, probed: Path, tmp_path: Path, name: str, damaged: str | None, remedy: str
) -> None:
    run = tmp_path / "run"
    shutil.copytree(probed, run)
    path = run / "probe" / name
    if damaged == "heads":
        found = json.loads(path.read_text())
        del found["selected"][0]["heads"]
        damaged = json.dumps(found)
    elif damaged == "half":
        damaged = path.read_text()[: path.stat().st_size // 2]
    if damaged is None:
        path.unlink()
    else:
        path.write_text(damaged)
    done = look(doors, run, CAT)
    assert done.status == 2 and done.err.count("\n") == 1, done.err
    assert path.name in done.err and remedy in done.err
    again = f"python eval.py run={run}"
    assert remedy == "delete it" or again in done.err


def test_without_metrics_a_page_has_no_curves(doors: Doors, probed: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(probed, run)
    (run / "metrics.jsonl").unlink()
    done = look(doors, run, CAT)
    assert done.status == 0, done.err
    page = page_of(run)
    assert page["emergence"] is None and all(one["curve"] is None for one in page["questions"])


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
@pytest.mark.parametrize("folder", [".", "probe", "tb"])
def test_a_sweep_with_a_run_that_cannot_be_written_is_refused_before_anything_begins(
    doors: Doors, probed: Path, place: Path, tmp_path: Path, folder: str
) -> None:
    run = tmp_path / "sweep" / "run"
    shutil.copytree(probed, run)
    locked = run / folder
    locked.chmod(0o555)
    try:
        done = doors.run("eval.py", f"runs={run.parent}", f"cache_dir={place / 'cache'}", *PROBE)
        assert done.status == 2 and done.err.count("\n") == 1, done.err
        assert f"{locked} cannot be written" in done.err and done.out == ""
    finally:
        locked.chmod(0o755)


@pytest.mark.parametrize("asked", ["open=true", "figures=true"])
def test_of_a_model_that_cheats_there_is_no_page_and_that_is_said(doors: Doors, place: Path, asked: str) -> None:
    if asked == "figures=true":
        pytest.importorskip("matplotlib")
    done = doors.run("eval.py", f"run={place / 'cheats'}", f"cache_dir={place / 'cache'}", asked, *PROBE)
    (note,) = [line for line in done.out.splitlines() if line.startswith("note     ") and "page" in line]
    assert done.status == 0 and asked in note


def test_nothing_of_a_text_steers_the_terminal_or_becomes_markup(doors: Doors, place: Path, tmp_path: Path) -> None:
    run, text = tmp_path / "run", "\033[31mIt\x07 ran</script><script>alert(1)</script> \u2028 \u202eit"
    shutil.copytree(place / "stories", run)
    done = look(doors, run, text)
    assert done.status == 0 and "\033" not in done.out and "\x07" not in done.out, done.err
    assert page_of(run)["sentences"][0]["text"] == text
    assert "<script>alert" not in (run / "probe" / "report.html").read_text()


@pytest.mark.parametrize(("change", "said"), [({"step": 2}, "of step 2"), ({"schema": 3}, "another version")])
def test_a_probe_of_another_checkpoint_or_version_is_left_out_and_that_is_said(
    doors: Doors, probed: Path, tmp_path: Path, change: dict[str, int], said: str
) -> None:
    run = tmp_path / "run"
    shutil.copytree(probed, run)
    path = run / "probe" / "probe.json"
    found = json.loads(path.read_text())
    found["model"]["step"] = change.get("step", 4)
    found["schema_version"] = change.get("schema", found["schema_version"])
    path.write_text(json.dumps(found))
    done = look(doors, run, CAT)
    assert done.status == 0 and "<- chosen" not in done.out
    page = page_of(run)
    assert page["questions"] == [] and said in page["notes"][0]


def test_a_run_of_a_text_has_a_page_of_sentences_without_claims(doors: Doors, place: Path) -> None:
    done = doors.run("eval.py", f"run={place / 'text'}", f"cache_dir={place / 'cache'}", *PROBE)
    assert done.status == 0 and "report.html" in done.out, done.err
    assert look(doors, place / "text", "The cat saw the dog, and it ran. " * 2).status == 0
    page = page_of(place / "text")
    assert page["questions"] == [] and "without gold links" in page["notes"][0] and page["run"]["data"] == "text"
    own = page["sentences"][0]
    pieces = [piece for piece, word in zip(own["pieces"], own["owner"], strict=True) if word == own["asked"][0]]
    assert "".join(pieces).strip() == "it"
    assert page["emergence"]["curves"] == {} and page["emergence"]["loss"]["validation"]


def test_of_a_long_text_the_largest_weights_are_kept_and_the_page_says_so(
    doors: Doors, place: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(place / "text", run)
    assert look(doors, run, "It ran. " * 20).status == 0
    page = page_of(run)
    own = page["sentences"][0]
    kept, length = own["weights"]["kept"], len(own["pieces"])
    assert 64 < length <= 128 and kept >= 4
    pairs = np.frombuffer(b64decode(own["weights"]["data"]), "<u2")
    assert pairs.size == page["run"]["n_layer"] * page["run"]["n_head"] * length * kept * 2
    assert any("largest weights" in one for one in page["caps"])


@pytest.mark.parametrize(
    ("run", "damaged", "text", "said"),
    [
        ("cheats", {}, CAT, "mask"),
        ("stories", {}, " ", "text is empty"),
        ("stories", {}, "It is. " * 30, "tokens long; this model reads 63"),
        ("stories", {"probe/sentences.json": "{}"}, CAT, "sentences.json is damaged"),
        ("stories", {"probe/probe.json": "[]"}, CAT, "probe.json is damaged"),
        ("stories", {"probe/probe.json": NO_HEADS}, CAT, "probe.json is damaged"),
        ("stories", {"attention.jsonl": "{}\n"}, CAT, "attention.jsonl is damaged"),
    ],
)
def test_what_does_not_fit_is_one_line_and_no_page_is_written(
    doors: Doors, place: Path, tmp_path: Path, run: str, damaged: dict[str, str], text: str, said: str
) -> None:
    copy = tmp_path / "run"
    shutil.copytree(place / run, copy)
    fingerprint = json.loads((copy / "config.json").read_text())["data_fingerprint"]
    for name, content in damaged.items():
        (copy / name).parent.mkdir(exist_ok=True)
        (copy / name).write_text(content.replace("FINGERPRINT", fingerprint))
    done = look(doors, copy, text)
    assert done.status == 2 and done.err.count("\n") == 1 and said in done.err, done.err
    assert not (copy / "probe" / "report.html").exists() and "see " not in done.out
    assert (copy / "probe" / "sentences.json").exists() == ("probe/sentences.json" in damaged)


def test_a_probe_that_could_not_write_its_page_is_refused_before_it_begins(
    doors: Doors, place: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "run"
    shutil.copytree(place / "stories", copy)
    (copy / "attention.jsonl").write_text("no JSON\n")
    done = doors.run("eval.py", f"run={copy}", f"cache_dir={place / 'cache'}", *PROBE)
    assert done.status == 2 and done.err.count("\n") == 1 and "attention.jsonl is damaged" in done.err
    assert "question" not in done.out and not (copy / "probe").exists()


@pytest.mark.parametrize("run", ["stories", "text"])
def test_damaged_sentences_are_left_as_they_are_and_a_probe_goes_on_without(
    doors: Doors, place: Path, tmp_path: Path, run: str
) -> None:
    copy = tmp_path / "run"
    shutil.copytree(place / run, copy)
    (copy / "probe").mkdir(exist_ok=True)
    (copy / "probe" / "sentences.json").write_text("no JSON")
    done = doors.run("eval.py", f"run={copy}", f"cache_dir={place / 'cache'}", *PROBE)
    assert done.status == 0 and done.err.count("\n") == 1, done.err
    assert done.err.startswith("warning: ") and "sentences.json is damaged" in done.err
    assert not any(one["group"] == "own" for one in page_of(copy)["sentences"])
    assert (copy / "probe" / "sentences.json").read_text() == "no JSON"


def test_a_browser_is_asked_to_open_the_page_and_its_absence_is_said(doors: Doors, place: Path, tmp_path: Path) -> None:
    run, opened = tmp_path / "run", tmp_path / "opened"
    shutil.copytree(place / "stories", run)
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > {opened}\n')
    browser.chmod(0o755)
    page = (run / "probe" / "report.html").resolve().as_uri()
    done = look(doors, run, CAT, "open=true", BROWSER=f"{browser} %s")
    assert done.status == 0 and opened.read_text().strip() == f"{page}#own-1"
    done = look(doors, run, CAT, "open=true", BROWSER=f"{tmp_path / 'none'} %s", PATH=str(tmp_path), DISPLAY="")
    assert done.status == 0 and "no browser" in done.out and page in done.out


@pytest.mark.parametrize(
    "settings",
    [
        ["open=true", "runs=x"],
        ["open=true", "task=links", "path=x"],
        ["figures=true", "text=It"],
        ["figures=true", "compare=x"],
    ],
)
def test_settings_that_mean_nothing_together_are_refused(doors: Doors, settings: list[str]) -> None:
    done = doors.run("eval.py", *settings)
    assert done.status == 2 and done.err.count("\n") == 1 and "goes with none of" in done.err


def test_in_a_browser_the_median_blocks_look_as_their_lines_of_items_jsonl_say(probed: Path, tmp_path: Path) -> None:
    html = (probed / "probe" / "report.html").read_text(encoding="utf-8")
    sentences = {one["id"]: one for one in page_of(probed)["sentences"]}
    lines = [json.loads(line) for line in (probed / "probe" / "items.jsonl").read_text().splitlines()]
    with running() as browser, opened(browser, html, tmp_path) as one:
        for question in page_of(probed)["questions"]:
            one.page.get_by_role("radio", name=f"{question['name']} {question['verdict']}", exact=True).check()
            one.page.get_by_role("radio", name="The median block").check()
            medians = [sentences[each] for each in question["sentences"] if sentences[each]["group"] == "median"]
            assert one.page.locator(".mini").count() == len(medians) == 4
            for place, sentence in enumerate(medians):
                one.page.locator(".mini").nth(place).click()
                line = lines[sentence["item"]["line"] - 1]
                one.page.locator(f"[data-head=L{line['layer']}H{line['head']}]").click()
                bars = one.page.locator(".mini").nth(place).locator(".bar-value").all_inner_texts()
                antecedent, distractor = (float(text) for text in bars)
                assert antecedent + distractor == pytest.approx(line["mass"], abs=0.0101)
                assert f"line {sentence['item']['line']} of items.jsonl" in one.page.locator(".about").inner_text()
        one.check()
