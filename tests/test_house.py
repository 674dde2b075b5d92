"""The house: where files are and which names they may know; imports go down only, and importing does nothing."""

import ast
import re
import subprocess
from pathlib import Path

import pytest

from probe.outcomes import OUTCOMES
from tests.program import ROOT, run_python

KINDS = re.compile(r"next_pronoun|natural|own_question|own_items|english_blocks|after_pronoun|minimal_pairs")

# The names or suffixes of the files in each folder of the repository
PLACES = {
    ".": ".dockerignore .gitignore AGENTS.md CHANGELOG.md CITATION.cff CONTRIBUTING.md Dockerfile LICENSE MANIFEST.in "
    "Makefile README.md SECURITY.md eval.py pyproject.toml requirements-dev.txt requirements.txt setup.py train.py",
    ".ci": "run", ".github": ".md .yml", "antecedent_lab": ".py .typed", "configs": ".yaml",
    "data": ".gz .py .txt LICENSE", "docs": ".html .ipynb .jsonl .md .png .svg .txt", "model": ".py", "probe": ".py",
    "extras": ".css .html .js .json .py .svg .txt .wat", "research": ".css .json .md .py", "settings": ".py",
    "tests": ".py", "training": ".py",
}  # fmt: skip


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="no repository")
def test_every_file_of_the_repository_has_a_known_place():
    names = subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).split()
    assert "train.py" in names
    for path in map(Path, names):
        folder = path.parts[0] if len(path.parts) > 1 else "."
        kind = path.name if folder == "." else path.suffix or path.name
        assert kind in PLACES.get(folder, "").split(), path


LEVELS = {"settings": -1, "model": 0, "data": 0, "training": 1, "probe": 2, "extras": 3, "antecedent_lab": 4}
LEVELS |= {"__main__.py": 5, "train": 5, "eval": 5, "tests": 6, "research": 6}
OPTIONAL = {"transformers", "safetensors", "sentencepiece", "pandas"}
# Seconds to import, and only some commands need them.
SLOW = {"datasets", "huggingface_hub", "scipy", "antecedent_lab", "extras", "train", "eval"}
SLOW_PARTS = {"torch.utils.tensorboard"}
PACKAGES = [package for package, level in LEVELS.items() if level < 5]
FILES = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]


def test_only_questions_name_a_kind_only_outcomes_decide_by_their_name_and_functions_have_at_most_60_lines():
    may_name = ("data/", "settings/data.py", "probe/questions.py", "extras/english/")
    may_decide = ("probe/questions.py", "probe/by_attention.py", "extras/english/", "data/", "model/")
    pages = [path for path in ROOT.glob("extras/**/*") if path.suffix in (".js", ".css", ".html")]
    for path in [*ROOT.glob("*.py"), *FILES, *pages]:
        name, text = path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")
        assert name.startswith(may_name) or not KINDS.search(text), name
        for node in ast.walk(ast.parse(text)) if path.suffix == ".py" else ():
            if isinstance(node, ast.FunctionDef):
                assert node.end_lineno and node.end_lineno - node.lineno < 60, f"{name}: {node.name}"
            parts = [node.left, *node.comparators] if isinstance(node, ast.Compare) else []
            parts += node.keys if isinstance(node, ast.Dict) else []
            names = {part.value for part in parts if isinstance(part, ast.Constant)}
            assert name.startswith(may_decide) or not names & OUTCOMES.keys(), name


def imports(nodes):
    """Yields the modules that statements import at run time, without those of a command line of a module's own."""
    for node in nodes if isinstance(nodes, list) else ast.iter_child_nodes(nodes):
        if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "__name__ == '__main__'"):
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""
        else:
            yield from imports(node)


def test_imports_go_down_only_and_inside_functions_are_those_of_optional_or_slow_packages():
    for path in FILES:
        tree = ast.parse(path.read_text())
        level = LEVELS.get(path.name, LEVELS[path.relative_to(ROOT).parts[0]])
        roots = {name.split(".")[0] for name in imports(tree)}
        assert [name for name in roots if LEVELS.get(name, -1) > level] == [], path
        _, extra, *_ = (*path.relative_to(ROOT).parts, "")
        others = {name.split(".")[1] for name in imports(tree) if name.startswith("extras.")}
        assert level != LEVELS["extras"] or others <= {extra}, f"{path}: an extra imports no other"
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                names = {name if name in SLOW_PARTS else name.split(".")[0] for name in imports(node.body)}
                assert names <= OPTIONAL | SLOW | SLOW_PARTS, f"{path}: {node.name}"


def test_importing_a_module_prints_nothing_and_sets_nothing():
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in FILES if path.stem[0] != "_"]
    code = f"""
import importlib, os, random, signal, warnings
import datasets, hydra, numpy, scipy.stats, tensorboard, tokenizers, torch, transformers
def state():
    handlers = [signal.getsignal(number) for number in (2, 15)]
    return dict(os.environ), handlers, random.getstate(), torch.get_rng_state().tolist(), [*warnings.filters]
old = state(), torch.get_num_threads()
for name in {names}:
    importlib.import_module(name)
assert (state(), torch.get_num_threads()) == old
"""
    result = run_python("-c", code)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


CHECK = "eval.py items=docs/questions/er_sie.jsonl check=true"


@pytest.mark.parametrize(
    "arguments", ["train.py --help", "eval.py --help", "train.py no_such=1", "eval.py no_such=1", CHECK]
)
def test_help_and_a_check_of_items_do_not_wait_for_torch(arguments):
    packages = "torch scipy datasets" if arguments == CHECK else "torch numpy datasets tokenizers"
    code = f"""
import runpy, sys
sys.argv = sys.argv[1:]
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
finally:
    assert not {{*{packages.split()}}} & set(sys.modules)
"""
    result = run_python("-c", code, *arguments.split())
    assert (result.returncode, "Traceback" in result.stderr) == (2 if "no_such" in arguments else 0, False)
    assert ("smallest p that is possible: 0.0039" in result.stdout) == (arguments == CHECK)
