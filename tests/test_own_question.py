"""eval.py items=FILE.jsonl: a question of the user's own, by the engine of the built-in ones."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from antecedent_lab.opened import load_data, open_run
from data.corpus import load_stories
from tests.program import SMALL_PROBE, run_program

ABOUT = {"question": "mine", "description": "it or they, asked by me", "link": "a pronoun to my noun"}


@pytest.fixture
def items(run: Path, cache: str, tmp_path: Path) -> Path:
    """Return the number question of the stories as a file of one's own."""
    corpus = load_data(open_run(run, torch.device("cpu")), cache.removeprefix("cache_dir="))
    lines: list[dict[str, Any]] = [ABOUT]
    for split, holdout in (("dev", "iid"), ("test", "headline")):
        for story in load_stories(corpus, split):
            links = [link for link in story.links if (link.level, link.site) == ("number", "pronoun")]
            if story.family != "agreement" or story.holdout != holdout or not links:
                continue
            (link,) = links
            assert link.payoff
            lines.append({
                "text": story.text, "query": link.query, "antecedents": link.antecedents,
                "distractors": link.distractors, "payoff": link.payoff, "answers": link.answers, "foils": link.foils,
                "block": (len(lines) - 1) // 4, "order": story.order, "meant": story.meant, "frame": story.frame,
                "words": story.pair.split(), "split": split,
            })  # fmt: skip
    path = tmp_path / "mine.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_the_number_question_as_a_file_has_the_result_of_the_built_in_one(run: Path, items: Path, cache: str) -> None:
    for arguments in ([], [f"items={items}"]):
        result = run_program("eval.py", f"run={run}", cache, *SMALL_PROBE, *arguments)
        assert result.status == 0, result.err
    assert "mine: it or they, asked by me" in result.out and f"{run}/probe/own/mine/report.html" in result.out
    built_in = json.loads((run / "probe/probe.json").read_text())["selected"]
    (own,) = json.loads((run / "probe/own/mine/probe.json").read_text())["selected"]
    (number,) = [entry for entry in built_in if entry["question"] == "number"]
    # Selectivity is measured on halves of dev, because a file has no test blocks with the words of dev.
    for name in ("layer", "head", "dev", "heads", "causal"):
        assert own[name] == number[name], name
    for name in ("accuracy", "block_accuracy", "accuracy_interval", "p_corrected"):
        assert own["test"]["headline"][name] == number["test"]["headline"][name], name

    # Its own words, in the claim and on the page.
    claim = json.loads((run / "probe/own/mine/claims.json").read_text())[0]["claim"]
    assert "a pronoun to my noun" in claim and "antecedents in training" not in claim
    page = (run / "probe/own/mine/report.html").read_text()
    live = json.loads(page.split('type="application/json" id="content">')[1].split("</script>")[0])["live"]["model"]
    sentence = own["median"]["sentences"][0]["text"]
    assert sentence.startswith(live["text"]) and live["text"].split()[-1] in ("It", "They") and live["pair"] == []
    assert live["head"] == [own["layer"], own["head"]]
    assert "Which attention head links a pronoun to my noun?" in page and "to its antecedent?" not in page
    assert "asked by me" in page and f"items={items}" in page  # the command that makes it again


def test_a_guard_that_is_off_is_no_criterion(run: Path, items: Path, cache: str) -> None:
    criteria = []
    for guards in ([], ["rests_without_antecedent"]):
        _, *rows = items.read_text().splitlines(keepends=True)
        items.write_text(json.dumps(ABOUT | {"guards_off": guards}) + "\n" + "".join(rows))
        result = run_program("eval.py", f"run={run}", f"items={items}", cache, *SMALL_PROBE)
        assert result.status == 0, result.err
        (own,) = json.loads((run / "probe/own/mine/probe.json").read_text())["selected"]
        criteria.append({criterion["name"]: criterion["outcome"] for criterion in own["criteria"]})
    assert criteria[0].pop("rests_without_antecedent") == "not measured"
    assert criteria[0] == criteria[1]


def test_a_mistake_is_one_line_and_nothing_is_written(run: Path, items: Path, cache: str) -> None:
    written = items.read_text()
    items.write_text("{\n")
    result = run_program("eval.py", f"run={run}", f"items={items}", cache, *SMALL_PROBE)
    assert result.status == 2 and f"error: {items} line 1: not JSON" in result.err
    assert not (run / "probe/own/mine").exists()
    _, *rows = [json.loads(line) for line in written.splitlines()]
    for change, problem in (
        ({"text": rows[0]["text"] + " and" * 70}, "tokens; the model reads 64"),
        ({"query": [rows[0]["query"][0], rows[0]["query"][1] - 1]}, "has no tokens for itself"),
    ):
        items.write_text("".join(json.dumps(row) + "\n" for row in [rows[0] | change, *rows[1:]]))
        result = run_program("eval.py", f"run={run}", f"items={items}", cache, *SMALL_PROBE)
        assert f"{items} line 1: " in result.error and problem in result.error
        assert not (run / "probe/own/mine").exists()
    result = run_program("eval.py", f"run={run}", f"items={items}.jsonl", cache)
    assert result.status == 2 and result.err.count("\n") == 1
    result = run_program("eval.py", f"run={run}", "items=klingon", cache)
    assert result.status == 2 and "FILE.jsonl" in result.err
