"""The size of the house: a commit may lower a number; raising one needs another that is lowered in the same commit."""

import ast
import re
from dataclasses import fields, is_dataclass

import antecedent_lab
from antecedent_lab.eval_settings import EvalSettings
from probe import results
from tests.program import ROOT

LINES = {
    ".": 143, "antecedent_lab": 1837, "data": 4546, "model": 1926, "probe": 3945, "report": 3328, "training": 2476,
    "tests": 10625,
}  # fmt: skip
DATA_CLASSES = 117  # in the program
RESULT_CLASSES = 12
EVAL_SETTINGS = 15  # outside the group probe
PUBLIC_NAMES = 10
KINDS = re.compile(r"next_pronoun|natural|own_question|own_items|english_blocks|after_pronoun|minimal_pairs|later_cue")
PROGRAM = [folder for folder in LINES if folder not in (".", "tests")]


def sources(folder: str) -> dict[str, str]:
    """Return the text of every source file of a folder by its path; "." has only its own files."""
    pattern = "*" if folder == "." else f"{folder}/**/*"
    files = [path for path in ROOT.glob(pattern) if path.suffix in (".py", ".js", ".css", ".html")]
    return {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in files}


def test_no_folder_grows() -> None:
    lines = {folder: sum(text.count("\n") for text in sources(folder).values()) for folder in LINES}
    assert {folder: n for folder, n in lines.items() if n > LINES[folder]} == {}


def test_there_are_no_more_classes_settings_and_public_names() -> None:
    n_classes = 0
    for folder in PROGRAM:
        for name, text in sources(folder).items():
            if name.endswith(".py"):
                classes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef)]
                n_classes += sum("dataclass" in ast.unparse(node.decorator_list or node.bases) for node in classes)
                n_classes += sum("NamedTuple" in map(ast.unparse, node.bases) for node in classes)
    assert n_classes <= DATA_CLASSES
    kinds = [
        value for value in vars(results).values() if isinstance(value, type) and value.__module__ == results.__name__
    ]
    assert sum(is_dataclass(kind) for kind in kinds) <= RESULT_CLASSES
    assert len(fields(EvalSettings)) <= EVAL_SETTINGS and len(antecedent_lab.__all__) <= PUBLIC_NAMES


def test_only_data_and_the_list_of_questions_name_a_kind_of_question() -> None:
    for folder in (".", *PROGRAM):
        for name, text in sources(folder).items():
            if not name.startswith("data/") and name != "probe/questions.py":
                assert not KINDS.search(text), name


def test_functions_have_at_most_60_lines() -> None:
    for folder in (".", *PROGRAM):
        for name, text in sources(folder).items():
            for node in ast.walk(ast.parse(text)) if name.endswith(".py") else ():
                if isinstance(node, ast.FunctionDef):
                    assert node.end_lineno and node.end_lineno - node.lineno < 60, f"{name}: {node.name}"
