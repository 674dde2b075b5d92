"""Imports go down only: programs, antecedent_lab, report, probe, training, and at the bottom model and data."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.program import ROOT

LEVELS = {"model": 0, "data": 0, "training": 1, "probe": 2, "report": 3, "antecedent_lab": 4}
LEVELS |= {"__main__.py": 5, "train": 5, "eval": 5, "tests": 6, "research": 6}
OPTIONAL = {"transformers", "safetensors", "sentencepiece", "pandas"}
SLOW = {
    "datasets",
    "huggingface_hub",
    "scipy",
    "antecedent_lab",
    "train",
    "eval",
}  # seconds to import, and only some commands need them
SLOW_PARTS = {"torch.utils.tensorboard"}
PACKAGES = [package for package, level in LEVELS.items() if level < 5]
FILES = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]


def imports(nodes: list[ast.stmt] | ast.AST) -> Iterator[str]:
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


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_imports_only_from_its_own_level_and_those_below(path: Path) -> None:
    level = LEVELS.get(path.name, LEVELS[path.relative_to(ROOT).parts[0]])
    modules = list(imports(ast.parse(path.read_text())))
    assert [name for name in modules if LEVELS.get(name.split(".")[0], 0) > level] == []
    assert not {"train", "eval", "tests"} & {name.split(".")[0] for name in modules}


def test_imports_inside_functions_are_those_of_optional_or_slow_packages() -> None:
    wrong = []
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                names = {name if name in SLOW_PARTS else name.split(".")[0] for name in imports(node.body)}
                wrong += [f"{path.relative_to(ROOT)}: {name}" for name in names - OPTIONAL - SLOW - SLOW_PARTS]
    assert wrong == []


@pytest.mark.parametrize("arguments", [["--help"], ["no_such_setting=1"]])
@pytest.mark.parametrize("program", ["train.py", "eval.py"])
def test_help_and_a_typo_do_not_wait_for_torch(program: str, arguments: list[str]) -> None:
    code = """
import runpy, sys
sys.argv = sys.argv[1:]
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
finally:
    assert not {"torch", "numpy", "datasets", "tokenizers"} & set(sys.modules)
"""
    command = [sys.executable, "-c", code, program, *arguments]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert "Traceback" not in result.stderr
    assert result.returncode == (0 if arguments == ["--help"] else 2)
