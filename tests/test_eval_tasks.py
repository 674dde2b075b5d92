"""eval.py task= from outside: tables, files, and one line for what does not fit."""

import json
from pathlib import Path

import pytest

from tests.reliability.doors import Doors, Ended

TEXT = 'The cat saw the dog. It ran, and the dog saw itself. Ann hurt herself, he said. "He left," she said.\n'
TRAIN = [
    "model=nano", "threads=1", "max_steps=2", "eval_every_steps=2", "tokens_per_batch=256", "validation_tokens=200",
    "probe_sequences=0", "sample_tokens=0",
]  # fmt: skip
PROBE = ["threads=1", "probe.n_bootstrap=100", "probe.n_untrained=2", "probe.n_controls=10"]
ROW = {
    "doc": "a", "context": "The cat saw the dog . It".split(), "pron_pos": 6, "antecedents": [[0, 2]],
    "other_mentions": [[3, 5, "1"]],
}  # fmt: skip


@pytest.fixture(scope="module")
def place(doors: Doors, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of byte-level BPE, one of the stories, and files to ask them about."""
    here = tmp_path_factory.mktemp("tasks")
    (here / "text.txt").write_text(TEXT * 40)
    cache = f"cache_dir={here / 'cache'}"
    of_text = ["data=text", f"data.path={here / 'text.txt'}", "data.vocab_size=280", "model.context_length=64"]
    of_stories = ["data.n_train_stories=4000", "data.n_validation_stories=40"]
    for name, data in (("bpe", of_text), ("stories", of_stories)):
        trained = doors.run("train.py", f"out={here / name}", cache, *TRAIN, *data)
        assert trained.status == 0, trained.err
    pairs = [("Ann hurt herself.", "Ann hurt himself."), ("The dog saw itself.", "The dog saw herself.")]
    lines = [json.dumps({"sentence_good": good, "sentence_bad": bad}) for good, bad in pairs]
    (here / "pairs.jsonl").write_text("\n".join(lines) + "\n")
    (here / "links.jsonl").write_text("".join(json.dumps(ROW | {"doc": f"d{i}"}) + "\n" for i in range(12)))
    return here


def asked(doors: Doors, place: Path, run: str, *overrides: str) -> Ended:
    return doors.run("eval.py", f"run={place / run}", f"cache_dir={place / 'cache'}", *PROBE, *overrides)


@pytest.mark.parametrize(
    ("task", "path"), [("minimal_pairs", "pairs.jsonl"), ("links", "links.jsonl")]
)
def test_every_task_begins_with_coverage_and_is_written_as_it_is_printed(
    doors: Doors, place: Path, task: str, path: str
) -> None:
    done = asked(doors, place, "bpe", f"task={task}", f"path={place / path}")
    assert done.status == 0 and done.err == "", done.err
    assert done.out.splitlines()[1].startswith("coverage of ")
    folder = place / "bpe" / "probe" / "outside"
    found = json.loads((folder / f"{task}.json").read_text())
    assert found["task"] == task and found["step"] == 2 and found["settings"]["n_bootstrap"] == 100
    assert (folder / f"{task}.md").read_text() in done.out
    assert done.out.endswith(f"to {folder}\n")


def test_of_english_the_stories_words_cover_little_and_the_training_text_nearly_all(doors: Doors, place: Path) -> None:
    seen = {}
    for run in ("bpe", "stories"):
        assert asked(doors, place, run, "task=minimal_pairs", f"path={place / 'pairs.jsonl'}").status == 0
        (found,) = json.loads((place / run / "probe" / "outside" / "minimal_pairs.json").read_text())["files"]
        seen[run] = found["coverage"]["seen_words"], found["n_covered"]
    assert seen["bpe"] == (pytest.approx(17 / 18), 1) and seen["stories"][1] == 0  # himself alone is new
    assert seen["stories"][0] < 0.7


def test_without_the_cache_the_coverage_is_said_to_be_unknown(doors: Doors, place: Path, tmp_path: Path) -> None:
    done = doors.run(
        "eval.py", f"run={place / 'bpe'}", f"cache_dir={tmp_path}", *PROBE, "task=minimal_pairs",
        f"path={place / 'pairs.jsonl'}",
    )  # fmt: skip
    assert done.status == 0 and "the training text is no longer in the cache" in done.out
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["task=minimal_pairs"], "path= is missing"),
        (["path=x.jsonl"], "task= is missing"),
        (["task=links", "path=x.jsonl", "text=It"], "goes with none of runs=, compare= and text="),
        (["task=lynx", "path=x.jsonl"], "lynx"),
        (["task=links", "path=nothing.jsonl"], "path=nothing.jsonl"),
        (["task=links", "path={place}/pairs.jsonl"], "pairs.jsonl line 1: no field doc"),
    ],
)
def test_what_does_not_fit_is_one_line_and_status_2_and_nothing_is_written(
    doors: Doors, place: Path, settings: list[str], said: str
) -> None:
    folder = place / "bpe" / "probe" / "outside"
    before = {path: path.read_bytes() for path in folder.glob("*")}
    done = asked(doors, place, "bpe", *(one.format(place=place) for one in settings))
    assert done.status == 2 and done.err.count("\n") == 1, done.err
    assert said in done.err
    assert {path: path.read_bytes() for path in folder.glob("*")} == before
