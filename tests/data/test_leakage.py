"""The leakage report finds planted leaks; that the stories have none is tested in test_stories.py."""

from data.stories.leakage import leakage

TRAIN = [{"text": "One day, the cat sat. Its fur shone."}, {"text": "One day, the cats ran."}]


def probe_row(text: str, query: str, payoff: str | None, site: str = "pronoun", holdout: str = "iid") -> dict:
    query_span, payoff_span = (
        [text.index(word), text.index(word) + len(word)] if word else None for word in (query, payoff)
    )
    return {"text": text, "holdout": holdout, "links": [{"site": site, "query": query_span, "payoff": payoff_span}]}


def test_a_leaked_prefix_is_counted_per_link_and_once_as_a_text() -> None:
    leak = probe_row("One day, the cat sat. Its fur", "Its", "fur")
    rows = [leak, leak, probe_row("One day, the dog sat. It ran", "It", "ran", holdout="headline")]
    report = {"pronoun": {"headline": 0, "iid": 2}, "links": 3, "total": 2, "distinct": 1, "to_payoff": 2}
    assert leakage(TRAIN, rows) == report


def test_the_beginning_of_a_longer_word_is_no_leak() -> None:
    assert leakage(TRAIN, [probe_row("One day, the cat sat. It ran", "It", "ran")])["total"] == 0
    assert leakage(TRAIN, [probe_row("One day, the cat ran", "cat", None)])["total"] == 1
    assert leakage([], [probe_row("One day", "day", None)])["total"] == 0


def test_a_leak_up_to_the_query_can_end_before_the_payoff() -> None:
    rows = [probe_row("One day, the cats were", "cats", "were"), probe_row("One day, the cats met us", "cats", "us")]
    report = leakage(TRAIN, rows)
    assert (report["total"], report["distinct"], report["to_payoff"]) == (2, 1, 1)
