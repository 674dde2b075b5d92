"""The probe from outside: what it writes of a run and of a sweep, and that it writes the same again."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

from tests.pages import content_of
from tests.reliability.doors import Doors

ROOT = Path(__file__).parent.parent
SCHEMA = json.loads((ROOT / "probe" / "probe.schema.json").read_text())
# Two models of two steps each: what a probe writes of them is all there is to see, not what they have learned.
TRAIN = [
    "model=nano", "threads=1", "max_steps=2", "eval_every_steps=2", "tokens_per_batch=256", "validation_tokens=200",
    "probe_sequences=0", "sample_tokens=0", "data.n_train_stories=4000", "data.n_validation_stories=40",
    "data.n_test_templates=2", "data.n_test_pairs=2",
]  # fmt: skip
PROBE = ["threads=1", "probe.n_bootstrap=100", "probe.n_untrained=2", "probe.n_controls=10"]
FILES = ["probe.json", "claims.json", "claims.md", "heads.csv", "items.jsonl", "report.html"]


@pytest.fixture(scope="module")
def sweep(doors: Doors, cache: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("sweep, of two")
    trained = doors.run("train.py", "-m", f"out={out}", cache, *TRAIN, "seed=1,2")
    assert trained.status == 0, trained.err
    return out


@pytest.fixture(scope="module")
def probed(sweep: Path, cache: str) -> Path:
    """The first run, probed by itself and by a Python of its own; what was printed stands beside."""
    command = [sys.executable, str(ROOT / "eval.py"), f"run={sweep / '0'}", cache, *PROBE]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    (sweep / "0" / "stdout").write_text(done.stdout)
    return sweep / "0"


def probe_files(run: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (run / "probe").iterdir() if path.name != ".lock"}


def strict(text: bytes | str) -> object:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    return json.loads(text, parse_constant=refuse)


def without_page(files: dict[str, bytes]) -> dict[str, bytes]:
    """Return all but the page, which knows of the sweep as soon as that has been compared."""
    return {name: content for name, content in files.items() if name != "report.html"}


def test_a_run_is_probed_into_files_of_strict_json_tables_and_a_page(probed: Path) -> None:
    files = probe_files(probed)
    assert set(files) == set(FILES)
    found = strict(files["probe.json"])
    Draft202012Validator(SCHEMA).validate(found)
    assert found["model"]["step"] == 2 and found["settings"]["n_bootstrap"] == 100
    questions = [one["question"] for one in found["selected"]]
    assert {"number", "number", "gender", "later_cue"} <= set(questions)
    assert found["contract"]["undecided"] == {"agreement_before_pronoun": 0, "later_cue_at_pronoun": 0}
    assert set(found["showcase"]) == {"number", "later_cue"}
    lines = [strict(line) for line in files["items.jsonl"].splitlines()]
    assert {line["question"] for line in lines} == {name for name in questions if "," not in name}
    rows = list(csv.DictReader(files["heads.csv"].decode().splitlines()))
    assert {row["question"] for row in rows} == {*questions, "agreement_before_pronoun", "later_cue_at_pronoun"}


def test_every_question_has_a_claim_card(probed: Path) -> None:
    files = probe_files(probed)
    selected, cards = strict(files["probe.json"])["selected"], strict(files["claims.json"])
    text = files["claims.md"].decode()
    for one, card in zip(selected, cards, strict=True):
        for name in ("question", "layer", "head", "verdict", "evidence_level", "criteria", "reasons"):
            assert card[name] == one[name]
        assert card["n_items"] == one["test"]["headline"]["n_items"] and card["holdout"] == "headline"
        assert f"## {card['question']}" in text and f"**{card['claim']}**" in text and card["does_not_show"]


def test_what_is_printed_names_every_question_and_what_knows_nothing(probed: Path) -> None:
    printed = (probed / "stdout").read_text()
    for one in strict(probe_files(probed)["probe.json"])["selected"]:
        assert f"{one['question']}: " in printed
    for word in ("headline", "nearest", "untrained", "rho", "it→cat", "tired"):
        assert word in printed
    folder = probed / "probe"
    page = (folder / "report.html").resolve().as_uri()
    assert printed.endswith(f"wrote    {', '.join(FILES)} to {folder}\nsee      {page}\n")


def test_the_same_run_is_probed_to_the_same_bytes_and_the_sweep_compared(
    doors: Doors, sweep: Path, probed: Path, cache: str
) -> None:
    """The run that was probed is probed again, for its files are gone; then neither is."""
    first = probe_files(probed)
    for name in FILES:
        os.unlink(probed / "probe" / name)
    asked = [f"runs={sweep}", cache, *PROBE]
    done = doors.run("eval.py", *asked)
    assert done.status == 0 and done.err == "", done.err
    assert done.out.count("probing  ") == 2
    assert without_page(probe_files(probed)) == without_page(first)
    found = strict((sweep / "probe" / "seeds.json").read_text())
    assert found["seeds"] == [1, 2]
    of_runs = [[one["question"] for one in strict(probe_files(sweep / n)["probe.json"])["selected"]] for n in "01"]
    assert [one["question"] for one in found["questions"]] == of_runs[0] == of_runs[1]
    assert (sweep / "probe" / "seeds.md").read_text() in done.out
    page = probe_files(probed)["report.html"]
    assert content_of(page)["seeds"]["rows"][0][0] == "number" and content_of(first["report.html"])["seeds"] is None
    again = doors.run("eval.py", *asked)
    assert again.status == 0 and "probing" not in again.out
    assert probe_files(probed)["report.html"] == page
    (sweep / "1" / "probe" / "probe.json").write_text("{}")  # not what a probe writes
    again = doors.run("eval.py", *asked)
    assert again.status == 0 and again.out.count("probing  ") == 1
    other = doors.run("eval.py", *asked, "probe.seed=5")
    assert other.status == 0 and other.out.count("probing  ") == 2
    assert doors.run("eval.py", *asked).status == 0
    assert strict((sweep / "probe" / "seeds.json").read_text()) == found
    assert without_page(probe_files(probed)) == without_page(first) and probe_files(probed)["report.html"] == page


def test_variants_are_compared_in_a_table_a_figure_and_hparams_and_each_run_is_probed_once(
    doors: Doors, cache: str, tmp_path: Path
) -> None:
    """Two seeds of the standard, of shares and of a model that cheats, two runs at a time by the joblib launcher."""
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
    out = tmp_path / "sweep"
    sweep = ["-m", f"out={out}", cache, *TRAIN, "seed=1,2", "variant=standard,shares,no_mask"]
    launcher = ["hydra/launcher=joblib", "hydra.launcher.n_jobs=2"]  # whose workers are no forks, and ask who began
    trained = subprocess.run(
        [sys.executable, "train.py", *sweep, *launcher], cwd=ROOT, capture_output=True, check=False
    )
    assert trained.returncode == 0, trained.stderr
    asked = [f"compare={out}", cache, *PROBE]
    done = doors.run("eval.py", *asked)
    assert done.status == 0 and done.err == "", done.err
    assert done.out.count("probing  ") == 4  # not the two that cheat
    found = strict((out / "probe" / "compare.json").read_text())
    assert [one["name"] for one in found["variants"]] == ["standard", "weighting=sum", "mask=none"]
    assert [one["seeds"] for one in found["variants"]] == [[1, 2]] * 3
    written = {path.name for path in (out / "probe").iterdir()}
    assert {"compare.json", "compare.md", "compare.csv", "tb"} <= written
    assert (out / "probe" / "compare.md").read_text() in done.out and "too few seeds to test" in done.out
    events = EventAccumulator(str(out / "probe" / "tb" / "0")).Reload()
    assert "gap" in events.Tags()["scalars"]
    started = events.summary_metadata["_hparams_/session_start_info"].plugin_data.content
    settings = HParamsPluginData.FromString(started).session_start_info.hparams
    assert settings["device"].string_value == "auto" and settings["optim.name"].string_value == "muon"
    pages = [out / str(i) / "probe" / "report.html" for i in range(6)]
    assert sum(path.exists() for path in pages) == 4  # a model that cheats has none
    lab = next(content_of(path.read_bytes())["lab"] for path in pages if path.exists())
    assert [row[0] for row in lab["rows"]] == ["standard", "weighting=sum", "mask=none"]
    again = doors.run("eval.py", *asked)
    assert again.status == 0 and "probing" not in again.out
    assert strict((out / "probe" / "compare.json").read_text()) == found
    alone = doors.run("eval.py", f"compare={out / '0'}", cache)
    assert alone.status == 2 and "is a single run" in alone.err and alone.err.count("\n") == 1
    assert not list((out / "probe" / "tb").glob("events*"))
    (out / "probe" / "compare.csv").unlink()
    (out / "probe" / "compare.csv").mkdir()
    blocked = doors.run("eval.py", *asked)
    assert blocked.status == 2 and blocked.err.count("\n") == 1, blocked.err
