"""The notes about pronouns: candidates, and the word that decides."""

import pytest

from data.stories.lint import lint


@pytest.mark.parametrize(
    ("text", "read_at", "candidates"),
    [
        ("The cat sat near the buses. It", "It", "cat"),
        ("The cat sat on the mat because it was tired.", "it tired", "cat or mat"),
        ("The cat lay on the mat. The dog sat on the rug because it was soft.", "it", "cat or mat or dog or rug"),
        ("The cat sat near the dog. It was late.", "It", "cat or dog"),
        ("Before it purred, the cat stood at home.", "it", "no noun of the stories"),
        ("Lily saw the cats. They purred.", "They", "cats"),
    ],
)
def test_a_pronoun_has_its_candidates_and_the_word_that_decides(text: str, read_at: str, candidates: str) -> None:
    [note] = lint(text)
    assert " ".join(text[slice(*span)] for span in note.read_at) == read_at
    assert f"can refer to {candidates} by the text" in note.note
