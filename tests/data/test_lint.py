"""What can be known at a pronoun, told before any head is asked."""

from data.stories.lint import lint, words


def notes(text: str) -> list[tuple[tuple[str, ...], str | None, str]]:
    return [(one.candidates, text[slice(*one.clue)] if one.clue else None, one.note) for one in lint(text)]


def test_number_decides_before_the_pronoun() -> None:
    [(candidates, clue, note)] = notes("The cat sat near the buses. It")
    assert candidates == ("cat",) and clue is None
    assert "leaves one candidate: cat" in note


def test_a_clue_after_the_pronoun_is_named() -> None:
    [(candidates, clue, note)] = notes("The cat sat on the mat because it was tired.")
    assert candidates == ("cat", "mat") and clue == "tired"
    assert note.startswith("the clue comes after the pronoun") and 'read the row at "tired"' in note


def test_a_verb_of_one_candidate_is_a_clue_too() -> None:
    [(candidates, clue, _)] = notes("The cat sat near the dog. It barked.")
    assert candidates == ("cat", "dog") and clue == "barked"


def test_a_word_that_fits_two_of_four_decides_nothing() -> None:
    text = "The cat lay on the mat. The dog sat on the rug because it was soft."
    [(candidates, clue, note)] = notes(text)
    assert candidates == ("cat", "mat", "dog", "rug") and clue is None and "nothing in the sentence decides" in note


def test_what_nothing_decides_is_said() -> None:
    [(_, clue, note)] = notes("Lily met Anna at home. She smiled at once.")
    assert clue in (None, "smiled")
    [(_, clue, note)] = notes("The cat sat near the dog. It was late.")
    assert clue is None and "nothing in the sentence decides" in note


def test_a_pronoun_without_a_known_candidate_is_said() -> None:
    [(candidates, _, note)] = notes("Once it rained.")
    assert candidates == () and "no word known" in note


def test_every_pronoun_gets_its_own_note() -> None:
    assert [one[0] for one in notes("Lily saw the cats. She laughed. They purred.")] == [("Lily",), ("cats",)]


def test_words_come_with_their_places() -> None:
    assert words("It's a cat.") == [
        ("It", (0, 2)),
        ("'", (2, 3)),
        ("s", (3, 4)),
        ("a", (5, 6)),
        ("cat", (7, 10)),
        (".", (10, 11)),
    ]
