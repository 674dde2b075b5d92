"""When the link head counts as there, and in which time."""

import pytest

from benchmarks import stories


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """What each run is made to be: seconds cold and after, and the head's scores."""
    made = {"cold": 19.0, "again": 11.0, "accuracy": 0.96, "block_accuracy": 0.91}
    monkeypatch.setattr(stories, "trained", lambda asked, out, cache: made["cold" if "cold" in out.name else "again"])
    monkeypatch.setattr(stories, "headline", lambda run, cache: (made["accuracy"], made["block_accuracy"]))
    return made


def test_both_kinds_are_timed_cold_and_again_each_with_its_own_seeds(runs: dict[str, float]) -> None:
    rows = stories.rows({"seeds": "3,4"})
    assert [(row.ours, row.met, row.aim_met) for row in rows] == [
        ([19.0, 19.0], True, False),
        ([11.0, 11.0], True, True),
    ] * 2
    assert "seeds 3,4: the head is there in 2 of 2" in rows[0].note and "seeds 23,24" in rows[2].note


@pytest.mark.parametrize("changed", [{"cold": 20.1}, {"accuracy": 0.949}, {"block_accuracy": 0.899}])
def test_too_slow_or_no_head_misses(runs: dict[str, float], changed: dict[str, float]) -> None:
    runs |= changed
    assert not stories.rows({"seeds": "3"})[0].met


def test_a_seed_is_a_whole_number() -> None:
    with pytest.raises(SystemExit, match="seeds=a: whole numbers"):
        stories.rows({"seeds": "a"})
