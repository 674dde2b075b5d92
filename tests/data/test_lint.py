"""The notes about pronouns: candidates, and the word that decides."""

import pytest

from data.stories.lint import lint


@pytest.mark.parametrize(
    ("text", "candidates", "clue"),
    [
        ("The cat sat near the buses. It", ("cat",), None),
        ("The cat sat on the mat because it was tired.", ("cat", "mat"), "tired"),
        ("The cat lay on the mat. The dog sat on the rug because it was soft.", ("cat", "mat", "dog", "rug"), None),
        ("The cat sat near the dog. It was late.", ("cat", "dog"), None),
        ("Before it purred, the cat stood at home.", (), None),
        ("him", (), None),
        ("A girl named Zak met a boy named Kit. He", ("Kit",), None),
        ("Zak the girl met Kit the boy. She", ("Zak",), None),
    ],
)
def test_candidates_and_clue_of_the_first_pronoun(text: str, candidates: tuple[str, ...], clue: str | None) -> None:
    note = lint(text)[0]
    assert note.candidates == candidates
    assert (text[slice(*note.clue)] if note.clue else None) == clue


def test_every_pronoun_has_its_own_note() -> None:
    notes = lint("Lily saw the cats. She laughed. They purred.")
    assert [note.candidates for note in notes] == [("Lily",), ("cats",)]
