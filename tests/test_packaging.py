"""What others install and run: the same commands everywhere, and only what is there."""

import fnmatch
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
WORKFLOW = (ROOT / ".github" / "workflows" / "test.yml").read_text()
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def recipes() -> dict[str, list[str]]:
    """Return the commands of every target of the Makefile."""
    found: dict[str, list[str]] = {}
    for line in (ROOT / "Makefile").read_text().splitlines():
        if match := re.match(r"([\w./ -]+):(?!=)", line):
            found[target := match[1]] = []
        elif line.startswith("\t"):
            found[target].append(line.strip().replace("$(PYTHON)", ".venv/bin/python"))
    return found


def job() -> dict[str, Any]:
    # GitHub's own ${{…}} would be interpolations to OmegaConf, which reads YAML as it is read elsewhere.
    whole: Any = OmegaConf.to_container(OmegaConf.create(WORKFLOW.replace("${{", "<").replace("}}", ">")))
    return whole["jobs"]["test"]


def names(requirements: list[str]) -> set[str]:
    """Return the packages that requirements name, all in one spelling."""
    return {re.split(r"[<>=!~\[; ]", one)[0].lower().replace("_", "-") for one in requirements}


def locked() -> dict[str, str]:
    lines = [line for name in ("", "-dev") for line in (ROOT / f"requirements{name}.txt").read_text().splitlines()]
    return {next(iter(names([line]))): line.partition("==")[2] for line in lines if "==" in line}


def test_the_workflow_runs_what_make_runs_and_nothing_else_of_ours() -> None:
    commands = [step["run"] for step in job()["steps"] if "run" in step]
    made = [command for command in commands if command.startswith("make ")]
    assert made == ["make install check test"] and set(made[0].split()[1:]) <= recipes().keys()
    assert len(commands) == 2 and "chromium" in commands[0]
    assert f"make {'check test'}" in (ROOT / "CONTRIBUTING.md").read_text()


def test_the_workflow_asks_for_every_python_that_is_promised_and_for_macos_without_obligation() -> None:
    matrix = job()["strategy"]["matrix"]
    oldest = tuple(map(int, re.findall(r"\d+", PROJECT["project"]["requires-python"])))
    assert [tuple(map(int, one.split("."))) for one in matrix["python"]] == [oldest, (3, 12), (3, 13)] == [
        (3, 11), (3, 12), (3, 13)
    ]  # fmt: skip
    assert matrix["machine"] == ["ubuntu-latest"] and matrix["required"] == [True]
    assert [(one["machine"], one["required"]) for one in matrix["include"]] == [("macos-latest", False)]
    assert job()["continue-on-error"] == "< !matrix.required >"


def test_ci_and_the_readme_run_the_words_of_the_makefile() -> None:
    """Both install the same and test the same, and .ci/run takes the commands from the README."""
    (told,) = re.findall(r"<!-- test command -->\n```\n(.*)\n```", (ROOT / "README.md").read_text())
    made = [*recipes()["install"], *recipes()["test"]]
    words = [set(re.split(r" && ", told)[i].split()) - {".venv/bin/pip"} for i in (1, 2)]
    assert [set(one.split()) - {"-m", "pip"} for one in made] == [
        words[0] | {".venv/bin/python"},
        words[1] - {"-m"},
    ]
    ci = (ROOT / ".ci" / "run").read_text()
    assert 'readme_command test)"' in ci and "make --no-print-directory check" in ci


def test_every_folder_and_file_of_the_image_is_there_and_nothing_that_it_runs_is_left_out() -> None:
    lines = [line for line in (ROOT / "Dockerfile").read_text().splitlines() if not line.startswith("#")]
    assert lines[0].startswith("FROM python:3.11")
    copied = [line.split()[1] for line in lines if line.startswith("COPY")]
    assert copied == ["requirements.txt", "."] and all((ROOT / one).exists() for one in copied)
    command = next(line for line in lines if line.startswith("CMD"))
    assert command == 'CMD ["python", "train.py"]'
    assert lines.index(command) > next(i for i, line in enumerate(lines) if line.startswith("USER")) > 0
    ignored = (ROOT / ".dockerignore").read_text().split()
    kept = [ROOT / "train.py", ROOT / "eval.py", ROOT / "requirements.txt"]
    kept += [path for room in ("configs", "data", "model", "probe", "run") for path in (ROOT / room).rglob("*.*")]
    for path in kept:
        parts = path.relative_to(ROOT).parts
        if "__pycache__" not in parts:
            assert not any(fnmatch.fnmatch(parts[0], one) for one in ignored), path
    listed = (ROOT / ".gitignore").read_text().replace("/", "").split()
    assert set(listed) - {one.removeprefix("**/") for one in ignored} == set()  # what git leaves out, Docker does


def test_who_cites_cites_this_version_and_licence() -> None:
    told: Any = OmegaConf.to_container(OmegaConf.load(ROOT / "CITATION.cff"))
    project = PROJECT["project"]
    assert (told["version"], told["license"]) == (project["version"], project["license"])
    assert {"cff-version", "message", "title", "authors"} <= told.keys()
    assert told["authors"] == [{"name": "Antecedent contributors"}]


def test_every_extra_that_is_named_anywhere_exists_and_every_one_is_explained() -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    told = {
        one for page in PAGES for some in re.findall(r"\.\[([\w,]+)\]", page.read_text()) for one in some.split(",")
    }
    assert {"figures", "sweep", "cluster"} <= told <= extras.keys()
    table = dict(re.findall(r"^\| (\w+) \| ([\w, -]+) \|", (ROOT / "docs" / "install.md").read_text(), re.MULTILINE))
    explained = {extra: names(table[extra].split(", ")) for extra in extras}
    assert explained == {extra: names(some) for extra, some in extras.items()}


def test_what_the_project_asks_for_is_in_the_lock() -> None:
    """But for the extra whose packages open an export: they are many, and its tests run where they are."""
    project, pins = PROJECT["project"], locked()
    asked = [*project["dependencies"], *PROJECT["dependency-groups"]["dev"]]
    asked += [one for extra, some in project["optional-dependencies"].items() if extra != "interop" for one in some]
    assert names(asked) <= pins.keys()


def test_pip_can_install_the_folder() -> None:
    """Without being told so, setuptools would take every room for a package and refuse."""
    assert PROJECT["tool"]["setuptools"]["packages"] == []
    assert PROJECT["build-system"]["build-backend"] == "setuptools.build_meta"


@pytest.mark.parametrize("name", ["Dockerfile", ".dockerignore", "CITATION.cff", ".github/workflows/test.yml"])
def test_what_packaging_needs_is_kept_by_git(name: str) -> None:
    ran = subprocess.run(["git", "check-ignore", "-q", "--no-index", name], cwd=ROOT, check=False)
    assert (ROOT / name).is_file() and ran.returncode != 0
