"""The README: its commands are the ones CI runs, its tables are the measured ones, its links lead somewhere."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
WRITTEN = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]
PAGES = [*WRITTEN, *sorted((ROOT / "research").glob("**/*.md"))]
RESULTS = ROOT / "research" / "results"


def marked(name: str) -> list[str]:
    match = re.search(rf"<!-- {name} -->\n(.*?)<!-- end -->", README, re.DOTALL)
    assert match, f"README.md has no place marked {name}"
    return match[1].strip("\n").splitlines()


@pytest.mark.parametrize("page", PAGES[:1] + [ROOT / "docs/english.md"], ids=lambda page: page.name)
def test_the_english_text_claims_what_is_shown(page: Path) -> None:
    assert re.search(r"copies the gender of the people\s+it attends to", page.read_text())


def test_two_commands_of_one_line_do_all_the_set_up() -> None:
    train, test = [line for line in README.splitlines() if "pip install" in line]
    assert train in marked("train command") and test in marked("test command")
    assert train.endswith("-r requirements.txt && .venv/bin/python train.py")
    assert test.endswith("-r requirements-dev.txt && .venv/bin/python -m pytest -n 2 --dist loadfile")


def test_the_table_of_results_is_the_measured_one() -> None:
    assert "\n".join(["", "", *marked("results"), "", ""]) in (RESULTS / "link_head.md").read_text()


def test_the_published_loss_is_not_below_the_entropy_lower_bound() -> None:
    for training in json.loads((RESULTS / "link_head.json").read_text())["training"]:
        assert training["gap"] > -3 * training["gap_error"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_that_a_page_links_to_exists(page: Path) -> None:
    for target in re.findall(r"\]\(([\w./-]+)\)", page.read_text()):
        assert (page.parent / target).exists(), target


def test_every_folder_and_file_of_the_tree_exists() -> None:
    tree = README[README.index("train.py  eval.py     entry points") :].split("```")[0]
    for name in re.findall(r"^(\w+/)", tree, re.MULTILINE):
        assert (ROOT / name).is_dir(), name
    reading_order = re.search(r"this page, (.*?)\.\n\n", README.replace("\\_", "_"), re.DOTALL)
    assert reading_order
    for path in reading_order[1].replace("\n", " ").split(", "):
        assert (ROOT / path).is_file(), path


def test_the_readme_has_at_most_120_lines_and_all_pages_2500() -> None:
    assert len(README.splitlines()) <= 120
    assert sum(len(page.read_text().splitlines()) for page in WRITTEN) <= 2500


def test_no_page_or_setting_names_a_path_of_a_machine() -> None:
    for path in [*PAGES, *ROOT.glob("*.md"), *RESULTS.glob("*.json"), *ROOT.glob("configs/**/*.yaml")]:
        assert not re.search(r"/(work|root|home|tmp)/", path.read_text()), path
