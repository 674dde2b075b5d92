"""report/minimal_pairs.py: minimal_pairs_lines."""

from probe.minimal_pairs import Accuracy, Coverage, FileScores, MinimalPairs
from report.minimal_pairs import minimal_pairs_lines

COVERAGE = Coverage(1200, 0.5, 0.25, 0.125)
FILE = FileScores(
    file="folder/gender.txt",
    n_pairs=8,
    n_too_long=1,
    coverage=COVERAGE,
    accuracy=Accuracy(0.75, (0.5, 0.875)),
    n_ties=2,
    n_covered=0,
    accuracy_covered=None,
    context_free_ceiling=0.5,
    above_ceiling=False,
)


def test_each_file_is_a_row_below_the_coverage() -> None:
    lines = minimal_pairs_lines(MinimalPairs([FILE], COVERAGE), "the training text")
    seen = "50.0 % (25.0 % of the distinct ones) are in the training text"
    assert lines[0] == f"coverage of all files: 1,200 words, {seen}, 12.5 % unknown tokens"
    cells = [cell.strip() for cell in lines[4].strip("|").split("|")]
    assert cells == ["gender", "8", "75.0", "[50.0, 87.5]", "2", "0", "-", "50.0", "no"]


def test_without_the_training_text_its_share_is_unknown() -> None:
    lines = minimal_pairs_lines(MinimalPairs([], Coverage(3, None, None, 0.0)), "not in the cache")
    assert "share seen in training unknown (not in the cache)" in lines[0]
