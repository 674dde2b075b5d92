"""Packaging: the lock, the extras, the image and the workflow agree with pyproject.toml and the Makefile."""

import os
import re
import runpy
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from email import message_from_string
from pathlib import Path

import pytest
import yaml
from markdown_it import MarkdownIt

from tests.program import ROOT, SMALL, SMALL_PROBE, run_program, run_python
from tests.test_docs import cells_of, tour

README = ROOT / "README.md"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def package_names(requirements):
    return {re.split(r"[<>=!~\[; ]", requirement)[0].lower().replace("_", "-") for requirement in requirements}


def test_the_lock_pins_every_requirement_to_one_version():
    lines = [line for name in ("", "-dev") for line in (ROOT / f"requirements{name}.txt").read_text().splitlines()]
    pins = [line for line in lines if not line.startswith(("#", "-"))]
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", pin) for pin in pins)
    project, extras = PROJECT["project"], PROJECT["project"]["optional-dependencies"]
    required = [*project["dependencies"], *PROJECT["dependency-groups"]["dev"]]
    required += [package for extra in extras.keys() - {"interop"} for package in extras[extra]]
    assert package_names(required) <= package_names(pins)


def test_the_image_copies_only_files_that_exist_and_runs_as_another_user_than_root():
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    sources = [line.split()[1] for line in lines if line.startswith("COPY")]
    assert sources and all((ROOT / source).exists() for source in sources)
    assert "USER 1000" in lines and 'CMD ["python", "train.py"]' in lines


USE = """
import sys
from antecedent_lab import HeadEdit, OwnModel, open_model, probe_model
result = probe_model(open_model(sys.argv[1]), n_bootstrap=100, n_untrained=2, n_controls=10, cache_dir=sys.argv[2])
print(result.save("report").is_file(), HeadEdit.__module__, OwnModel.__module__)
short = ("data", "extras", "model", "probe", "training")
print(sorted(name for name in sys.modules if name.partition(".")[0] in short))
"""
PIP = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check"]


UNKNOWN = {name: value for name, value in os.environ.items() if not name.startswith("GITHUB_")}
REPOSITORY, PUBLISHED = "https://github.com/someone/some-lab", "https://someone.github.io/some-lab/"
KNOWN = UNKNOWN | {"GITHUB_SERVER_URL": "https://github.com", "GITHUB_REPOSITORY": "someone/some-lab"}


def build(folder, environment):
    """Return the unpacked wheel of a checkout; beside it are the source archive and, in again/, the wheel of that."""
    source = folder / "source"
    ignored = shutil.ignore_patterns("runs", ".*", "probes", "build", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT, source, ignore=ignored)  # the build writes to its source folder
    make_wheel = [*PIP, "wheel", "--no-deps", "--no-build-isolation", "-w"]
    subprocess.run([*make_wheel, folder, source], check=True, env=environment)
    [wheel] = folder.glob("*.whl")

    # The source archive, and the wheel that it gives
    code = f"from setuptools.build_meta import build_sdist; build_sdist({str(folder)!r})"
    python = [sys.executable, "-W", "ignore", "-c", code]
    subprocess.run(python, cwd=source, check=True, capture_output=True, env=environment)
    [archive] = folder.glob("*.tar.gz")
    subprocess.run([*make_wheel, folder / "again", archive], check=True, env=environment)
    zipfile.ZipFile(wheel).extractall(folder / "site")
    return folder / "site"


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """Returns a folder that holds the unpacked wheel and nothing else; the project's address was not known."""
    return build(tmp_path_factory.mktemp("wheel"), UNKNOWN)


@pytest.mark.slow
def test_the_source_archive_builds_the_same_wheel(installed):
    wheels = [next(folder.glob("*.whl")) for folder in (installed.parent, installed.parent / "again")]
    first, second = (zipfile.ZipFile(wheel) for wheel in wheels)
    names = set(first.namelist())
    assert names == set(second.namelist()) and any(name.endswith("train.txt.gz") for name in names)
    assert [name for name in names if not name.endswith("RECORD") and first.read(name) != second.read(name)] == []


@pytest.mark.slow
def test_the_source_archive_has_neither_tests_nor_docs(installed):
    [archive] = installed.parent.glob("*.tar.gz")
    with tarfile.open(archive) as files:
        folders = {Path(name).parts[1] for name in files.getnames() if len(Path(name).parts) > 2}
        documents = {
            Path(name).parts[2]
            for name in files.getnames()
            if Path(name).parts[1:2] == ("docs",) and len(Path(name).parts) > 2
        }
    assert {"data", "model"} <= folders and not {"tests", "research"} & folders and documents == {"questions"}


def description_of(site):
    """Return the metadata of the unpacked wheel, after a check that those of the source archive describe the same."""
    [wheel], [archive] = site.glob("*.dist-info/METADATA"), site.parent.glob("*.tar.gz")
    metadata = message_from_string(wheel.read_text())
    with tarfile.open(archive) as files:
        name = f"{archive.name.removesuffix('.tar.gz')}/PKG-INFO"
        in_archive = message_from_string(files.extractfile(name).read().decode())
    assert in_archive.get_payload() == metadata.get_payload()
    assert in_archive.get_all("Project-URL") == metadata.get_all("Project-URL")
    return metadata


@pytest.mark.slow
def test_a_package_that_knows_its_address_names_it_in_urls_links_and_citation(tmp_path):
    site = build(tmp_path, KNOWN)
    metadata = description_of(site)
    urls = dict(url.split(", ") for url in metadata.get_all("Project-URL"))
    assert urls.keys() >= {"Homepage", "Source", "Issues", "Changelog", "Pages"} and urls["Pages"] == PUBLISHED
    assert all(url.startswith((REPOSITORY, PUBLISHED)) for url in urls.values())
    assert metadata["Author"] == "Antecedent contributors" and metadata["Keywords"] and metadata.get_all("Classifier")

    # Each link and picture is that of README, at the repository.
    html, shown = (MarkdownIt("commonmark").render(text) for text in (metadata.get_payload(), README.read_text()))
    [links, names] = (re.findall(r'(href|src)="([^"]+)"', text) for text in (html, shown))
    roots = {"href": f"{REPOSITORY}/blob/HEAD/", "src": f"{REPOSITORY}/raw/HEAD/"}
    assert links == [(kind, name if "://" in name else roots[kind] + name) for kind, name in names]
    assert len({*links}) > 20

    citation = yaml.safe_load((site / "antecedent_lab/CITATION.cff").read_text())
    assert (citation["repository-code"], citation["url"]) == (REPOSITORY, PUBLISHED) and citation["date-released"]


@pytest.mark.parametrize(
    ("server", "name", "pages"),
    [
        ("https://github.com", "someone/some-lab", PUBLISHED),
        ("https://github.com", "Someone/someone.github.io", "https://someone.github.io/"),
        ("https://git.example.org", "someone/some-lab", ""),
    ],
)
def test_pages_are_where_github_publishes_them(monkeypatch, server, name, pages):
    monkeypatch.setenv("GITHUB_SERVER_URL", server)
    monkeypatch.setenv("GITHUB_REPOSITORY", name)
    address = runpy.run_path(str(ROOT / "settings/address.py"))
    assert (address["REPOSITORY"], address["PAGES"]) == (f"{server}/{name}", pages)


@pytest.mark.slow
def test_a_package_that_does_not_know_its_address_names_none(installed):
    metadata = description_of(installed)
    assert metadata["Project-URL"] is None and metadata["Author"] == "Antecedent contributors"
    assert metadata.get_payload() == README.read_text()
    assert (installed / "antecedent_lab/CITATION.cff").read_text() == (ROOT / "CITATION.cff").read_text()


def test_the_notes_of_a_release_are_its_section_of_the_changelog(tmp_path):
    steps = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())["jobs"]["notes"]["steps"]
    [script] = [step["run"] for step in steps if "notes.md" in step.get("run", "") and "gh " not in step["run"]]
    text = "# Changelog\n\n## [Unreleased]\n- c\n\n## [0.1.10] - 2027-01-02\n### Added\n- b\n\n## [0.1.1]\n- a\n"
    (tmp_path / "CHANGELOG.md").write_text(text)
    for version, expected in (("0.1.10", "### Added\n- b\n\n"), ("0.1.1", "- a\n"), ("0.1", "")):
        environment = os.environ | {"GITHUB_REF_NAME": f"v{version}"}
        made = subprocess.run(["bash", "-ec", script], cwd=tmp_path, env=environment, check=False)
        assert (tmp_path / "notes.md").read_text() == expected
        assert (made.returncode == 0) == bool(expected)


@pytest.fixture
def elsewhere(tmp_path):
    """Returns a user's folder, with files that have the names of ours."""
    (tmp_path / "data").mkdir()
    for name in ("model.py", "train.py", "data/__init__.py"):
        (tmp_path / name).write_text("raise ImportError('a file of the user')")
    return tmp_path


@pytest.mark.slow
def test_the_wheel_runs_the_commands_of_the_readme_elsewhere(installed, elsewhere, cache):
    english = ["experiment=english", "model=nano", "max_steps=2", "validation_tokens=200", "probe_sequences=0"]
    induction = ["experiment=induction", "max_steps=2", "data.n_documents=200", "validation_tokens=200", "out=own"]
    asked = ["items=docs/questions/induction.jsonl", "run=own"]
    for arguments in (
        ["train", *SMALL], ["eval", *SMALL_PROBE], ["train", *english], ["train", *induction], ["eval", *asked],
    ):  # fmt: skip
        process = run_python("-m", "antecedent_lab", *arguments, cache, cwd=elsewhere, path=installed)
        assert process.returncode == 0, process.stderr
    [report] = elsewhere.glob("runs/*/probe/report.html")
    folder = cache.removeprefix("cache_dir=")
    process = run_python("-c", USE, str(report.parents[1]), folder, cwd=elsewhere, path=installed)
    lines = process.stdout.splitlines()[-2:]
    assert lines == ["True antecedent_lab.model.observe antecedent_lab.extras.others.own_model", "[]"], process.stderr


@pytest.mark.slow
def test_the_notebooks_run_from_the_wheel_in_an_empty_folder(installed, cache, tmp_path, monkeypatch):
    pytest.importorskip("transformers")
    monkeypatch.setenv("MPLBACKEND", "agg")
    exercises = "\n".join("".join(cell["source"]) for cell in cells_of("exercises"))
    for script, printed in (
        (tour(cache, tmp_path / "runs"), "exchanged [("),
        (exercises, "score: not yet. It returns"),
    ):
        process = run_python("-c", script, cwd=tmp_path, path=installed)
        assert process.returncode == 0, process.stderr
        assert printed in process.stdout
    assert (tmp_path / "runs/probes/tour/probe/report.html").stat().st_size > 10_000


@pytest.mark.slow
def test_an_editable_installation_runs_elsewhere(installed, elsewhere, cache):
    venv.create(elsewhere / "venv", symlinks=True)
    [python, command] = (elsewhere / "venv/bin" / name for name in ("python", "antecedent-lab"))
    [packages] = (elsewhere / "venv").glob("lib/*/site-packages")
    (packages / "torch_and_others.pth").write_text(sysconfig.get_path("purelib"))
    install = ["--python", python, "install", "--no-deps", "--no-build-isolation", "-e", installed.parent / "source"]
    subprocess.run([*PIP, *install], check=True)
    subprocess.run([command, "train", "out=run", *SMALL, cache], cwd=elsewhere, check=True)
    subprocess.run(
        [python, "-c", "from antecedent_lab import open_model; open_model('run')"], cwd=elsewhere, check=True
    )


@pytest.mark.slow
def test_the_wheel_has_types_and_a_command(installed, tmp_path):
    package = installed / "antecedent_lab"
    assert (package / "py.typed").is_file()
    entry_points = next(installed.glob("antecedent_lab-*.dist-info")) / "entry_points.txt"
    assert "antecedent-lab = antecedent_lab.__main__:main" in entry_points.read_text()
    code = "from antecedent_lab.settings.errors import extra; print(extra('export'))"
    assert run_python("-c", code, cwd=tmp_path, path=installed).stdout == "'antecedent-lab[export]'\n"
    expected = run_program("antecedent_lab/__main__.py", "--version").out
    assert run_python("-m", "antecedent_lab", "--version", cwd=tmp_path, path=installed).stdout == expected != ""
    wrong = run_python("-m", "antecedent_lab", "trian", cwd=tmp_path, path=installed)
    assert wrong.returncode == 2 and wrong.stderr.startswith("error: trian: no such command")
