"""The leakage report finds planted leaks; that the stories have none is tested in test_stories.py."""

from data.pairs import Link, LinkedText
from data.stories.leakage import leakage

TRAIN = ["One day, the cat sat. Its fur shone.", "One day, the cats ran."]


def probe_row(text: str, query: str) -> LinkedText:
    span = (text.index(query), text.index(query) + len(query))
    link = Link("number", "pronoun", span, span, (), (), None, None, (), ())
    return LinkedText(text, (link,), "agreement", "iid", "a", "a b", 0, 0)


def test_every_leaked_link_is_counted() -> None:
    leak = probe_row("One day, the cat sat. Its fur", "Its")
    rows = [leak, leak, probe_row("One day, the dog sat. It ran", "It")]
    assert leakage(TRAIN, rows) == {"links": 3, "leaked": 2}


def test_the_beginning_of_a_longer_word_is_no_leak() -> None:
    assert leakage(TRAIN, [probe_row("One day, the cat sat. It ran", "It")])["leaked"] == 0
    assert leakage(TRAIN, [probe_row("One day, the cat ran", "cat")])["leaked"] == 1
    assert leakage([], [probe_row("One day", "day")])["leaked"] == 0
