"""The order of the files: what takes longest is begun first."""

from tests.conftest import LONGEST, ROOT


def test_the_files_that_are_begun_first_are_there() -> None:
    assert len(set(LONGEST)) == len(LONGEST)
    assert all((ROOT / name).is_file() for name in LONGEST)
