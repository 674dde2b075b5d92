"""The notes about pronouns: candidates, and the word that decides."""

import pytest

from data.stories.lint import lint


@pytest.mark.parametrize(
    ("text", "candidates", "clue"),
    [
        ("The cat sat near the buses. It", ("cat",), None),
        ("The cat sat on the mat because it was tired.", ("cat", "mat"), "tired"),
        ("The cat sat near the dog. It barked.", ("cat", "dog"), "barked"),
        ("The cat lay on the mat. The dog sat on the rug because it was soft.", ("cat", "mat", "dog", "rug"), None),
        ("The cat sat near the dog. It was late.", ("cat", "dog"), None),
        ("Once it rained.", (), None),
        ("Before it purred, the cat stood at home.", (), None),
        ("him", (), None),
        ("A girl named Zak met a boy named Kit. He", ("Kit",), None),
        ("Zak the girl met Kit the boy. She", ("Zak",), None),
        ("Lily met Tom near the bus. They sang.", ("Lily and Tom",), None),
        ("Lily met Tom near the buses. They honked.", ("buses", "Lily and Tom"), "honked"),
        ("Lily was at home. Tom was away. They", (), None),
        ("The hungry cat sat near the thirsty dog. It feasted.", ("cat", "dog"), "feasted"),
        ("Arthur met Ralph. Ralph washed him", ("Arthur",), None),
        ("Lily met Anna. Anna liked her, so Lily was glad.", ("Lily",), None),
        ("The cat sat near the dog. Its look was new. So everybody liked the cat.", ("cat", "dog"), "cat"),
        ("The cat sat near the dog. It sat. The cat was there.", ("cat", "dog"), None),
        ("The cat sat near the dog. The cat was soft. It", ("cat", "dog"), None),
    ],
)
def test_candidates_and_clue_of_the_first_pronoun(text: str, candidates: tuple[str, ...], clue: str | None) -> None:
    note = lint(text)[0]
    assert note.candidates == candidates
    assert (text[slice(*note.clue)] if note.clue else None) == clue


@pytest.mark.parametrize(
    ("text", "owned"),
    [
        ("Tom had a cat and Mia had a dog. She called it", ("dog",)),
        ("The cat belonged to Tom, but the dog went to Mia. She fed it", ("dog",)),
        ("Tom had a cat and Mia saw a dog. She called it", ("cat", "dog")),
    ],
)
def test_the_owner_decides_which_animal_is_meant(text: str, owned: tuple[str, ...]) -> None:
    assert [note.candidates for note in lint(text)] == [("Mia",), owned]


def test_every_pronoun_has_its_own_note() -> None:
    notes = lint("Lily saw the cats. She laughed. They purred.")
    assert [note.candidates for note in notes] == [("Lily",), ("cats",)]


def test_a_later_candidate_is_named_only_if_it_agrees() -> None:
    assert "cat" in lint("Before it purred, the cat stood at home.")[0].note
    assert "cat" not in lint("Before they purred, the cat stood at home.")[0].note
