"""The leakage report finds what was planted, and nothing in the stories."""

import json
import time

from data.stories.leakage import leakage
from tests.data.test_stories import full_stories

TRAIN = [{"text": "One day, the cat sat. Its fur shone."}, {"text": "One day, the cats ran."}]


def probe(text: str, query: str, payoff: str | None, site: str = "pronoun", holdout: str = "iid") -> dict:
    at = text.index(query)
    link = {"site": site, "query": [at, at + len(query)], "payoff": None}
    if payoff:
        link["payoff"] = [text.index(payoff), text.index(payoff) + len(payoff)]
    return {"text": text, "holdout": holdout, "links": [link]}


def test_a_planted_leak_is_counted_once_for_each_question_and_once_as_a_text() -> None:
    leak = probe("One day, the cat sat. Its fur", "Its", "fur")
    found = leakage(TRAIN, [leak, leak, probe("One day, the dog sat. It ran", "It", "ran", holdout="headline")])
    assert found == {"pronoun": {"headline": 0, "iid": 2}, "asked": 3, "total": 2, "distinct": 1, "to_payoff": 2}
    assert json.loads(json.dumps(found)) == found


def test_a_beginning_of_a_word_is_no_prefix() -> None:
    assert leakage(TRAIN, [probe("One day, the cat sat. It ran", "It", "ran")])["total"] == 0
    assert leakage(TRAIN, [probe("One day, the cat ran", "cat", None, site="before_pronoun")])["before_pronoun"] == {
        "iid": 1
    }
    assert leakage([], [probe("One day", "day", None)])["total"] == 0


def test_a_leak_up_to_the_query_may_end_before_the_payoff() -> None:
    found = leakage(
        TRAIN, [probe("One day, the cats were", "cats", "were"), probe("One day, the cats met us", "cats", "us")]
    )
    assert (found["total"], found["distinct"], found["to_payoff"]) == (2, 1, 1)


def test_no_question_of_dev_or_test_begins_a_training_story() -> None:
    rows = full_stories()
    for split in ("dev", "test"):
        began = time.perf_counter()
        known = [row for row in rows[split] if row["links"] and row["links"][0]["level"] != "cataphora"]
        found = leakage(rows["train"], known)
        assert time.perf_counter() - began < 3
        assert found["total"] == 0 and found["asked"] > 150
    assert leakage(rows["test"], known)["total"] == found["asked"]  # the report sees what is there
