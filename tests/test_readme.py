"""The README says what is so: its commands are those that are run, its numbers those that were measured."""

import json
import re
from pathlib import Path

import pytest

from benchmarks.link_head import RESULTS, tables

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def between(text: str, marker: str) -> list[str]:
    found = re.search(rf"<!-- {marker} -->\n(.*?)<!-- end -->", text, re.DOTALL)
    assert found, f"no {marker} in the text"
    return found[1].strip("\n").split("\n")


def test_two_commands_of_one_line_each_do_all_the_set_up() -> None:
    setting_up = [line for line in README.splitlines() if "pip install" in line]
    assert setting_up == [
        line for kind in ("train", "test") for line in between(README, f"{kind} command") if line[0] != "`"
    ]
    train, test = setting_up
    assert train.endswith("-r requirements.txt && .venv/bin/python train.py")
    assert test.endswith("-r requirements-dev.txt && .venv/bin/python -m pytest -n 2 --dist loadfile")


def test_ci_runs_the_commands_of_the_readme() -> None:
    script = (ROOT / ".ci" / "run").read_text()
    assert "<!-- $1 command -->" in script and "README.md" in script
    assert "readme_command train" in script and "readme_command test" in script


@pytest.mark.parametrize("place", list(tables(json.loads(RESULTS.read_text()))))
def test_tables_are_those_that_were_measured(place: tuple[str, str]) -> None:
    file, marker = place
    expected = tables(json.loads(RESULTS.read_text()))[place]
    assert between((ROOT / file).read_text(), marker) == expected


def test_the_measured_heads_meet_what_is_promised() -> None:
    kept = json.loads(RESULTS.read_text())
    results = kept["results"]
    supported = {name: 0 for name in ("number", "number", "gender")}
    for one in results:
        found = one["selected"]["number"]["test"]["headline"]
        assert found["baselines"]["nearest"]["accuracy"] == 0.5
        low, high = found["untrained"]["accuracy_interval"]
        assert low <= 0.5 <= high
        assert one["seconds"]["eval"] <= 60
        assert one["validation"]["gap"] > -3 * one["validation"]["gap_error"]  # nothing is below the floor
        for name in supported:
            asked = one["selected"][name]
            supported[name] += asked["verdict"] == "supported" and asked["evidence_level"] in ("E3", "E4")
    assert len(results) == 5 and min(supported.values()) >= 4
    known = {
        one["level"]: one["rho"]["mean"]
        for one in kept["seeds"]["behaviour"]
        if (one["family"], one["holdout"]) == ("agreement", "iid")
    }
    assert min(known["number"], known["gender"]) >= 0.95


def test_every_file_the_readme_names_is_there() -> None:
    for target in re.findall(r"\]\(([\w./-]+)\)", README):
        assert (ROOT / target).exists(), target
    tree = README[README.index("train.py eval.py    the two doors") : README.index("## Change something")]
    room, seen = "", 0
    for line in tree.splitlines()[2:]:
        if line.startswith("tests/"):
            break
        room = room if line.startswith(" ") else line.split()[0]
        for name in re.findall(r"\w+\.py", line):
            assert (ROOT / room / name).exists(), f"{room}{name}"
            seen += 1
    assert seen > 30


def test_the_readme_stays_short() -> None:
    assert len(README.splitlines()) < 150


def test_the_lock_pins_everything_exactly_and_fits_the_ranges() -> None:
    for name in ("requirements.txt", "requirements-dev.txt"):
        for line in (ROOT / name).read_text().splitlines():
            assert line[:1] in ("#", "-") or re.fullmatch(r"[\w.-]+==[\w.]+", line), line
    assert "torch==2.13.0" in (ROOT / "requirements.txt").read_text().splitlines()


def test_the_project_speaks_of_itself_alone() -> None:
    """No machine's paths anywhere in what is shipped."""
    for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.*"), *ROOT.glob("configs/**/*.yaml"), *ROOT.glob("*.toml")]:
        assert not re.search(r"/(work|root|home|tmp)/", path.read_bytes().decode(errors="ignore")), path
