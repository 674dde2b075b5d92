"""The kinds of words are the lexicon's own."""

import pytest

from data.kinds import KINDS, kind_of
from data.stories.lexicon import names, nouns, referents, rests


@pytest.mark.parametrize(
    ("word", "kind"),
    [("cat", "animate"), ("oxen", "animate"), ("buses", "object"), ("mat", "object"), ("Lily", "name"),
     ("Zor", "name"), ("It", "pronoun"), ("him", "pronoun"), ("purred", "other"), ("tired", "other"),
     (".", "other"), ("Cat", "other"), ("<|endoftext|>", "other"), ("", "other")],
)  # fmt: skip
def test_a_word_has_its_kind(word: str, kind: str) -> None:
    assert kind_of(word) == kind


def test_every_mention_has_a_kind_of_its_own() -> None:
    kinds = [kind_of(word) for word in referents()]
    assert set(kinds) == set(KINDS) - {"pronoun", "other"}
    assert kinds.count("name") == len(names()[0] + names()[1])
    assert kinds.count("animate") + kinds.count("object") == 2 * len(nouns()) + len(rests())
