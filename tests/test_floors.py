"""The imports go down only: what each room may know, read from its own source."""

import ast
from pathlib import Path

ROOT = Path(__file__).parent.parent
ROOMS = ("model", "data", "run", "probe", "configs")
# What a room may import of ours, besides itself.
ALLOWED = {
    "model": set(),
    "data": set(),
    "run": set(),
    "probe": {"model", "data.links", "data.links"},
    "configs": {"model.config", "data.config", "training.settings", "probe.config"},
    # What the doors do once Hydra has done its part: they bring all rooms together and lie above them.
    "run/commands": {"model", "data", "probe", "configs"},
    "probe/commands": {"model", "data", "run", "configs"},
}
# Libraries that only these places may import.
KEPT = {
    "hydra": {"train.py", "eval.py", "configs/sweeps.py"},  # whose check composes every run of a sweep
    "datasets": {"data/"},
    "tokenizers": {"data/"},
    "huggingface_hub": {"data/"},
    "gguf": {"model/export.py"},
    "transformers": {"model/imported.py", "model/folder.py", "data/tokenizer.py"},
    "tensorboard": {"run/board.py"},
    "torch.utils.tensorboard": {"run/board.py"},
    "PIL": {"probe/report/"},
    "omegaconf": {"configs/", "train.py", "eval.py"},
}


def sources(*rooms: str) -> list[Path]:
    files = [path for room in rooms for path in (ROOT / room).rglob("*.py")]
    assert len(files) >= len(rooms), "no source found: the test would pass by seeing nothing"
    return files


def imports(path: Path) -> set[str]:
    """Return every module a file imports at run time, leaving out type checking and its own `__main__` door."""
    found: set[str] = set()

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.If) and ("TYPE_CHECKING" in ast.dump(node.test) or "__main__" in ast.dump(node.test)):
            return
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(ast.parse(path.read_text()))
    return found


def test_rooms_import_only_what_lies_below_them() -> None:
    wrong = []
    for room in ROOMS:
        for path in sources(room):
            name = path.relative_to(ROOT).as_posix()
            allowed = ALLOWED[f"{room}/commands" if name.startswith(f"{room}/commands/") else room]
            for module in imports(path):
                top = module.split(".")[0]
                if top in ROOMS and top != room and not {module, top} & allowed:
                    wrong.append(f"{name} imports {module}")
    assert wrong == []


def test_nobody_but_the_door_imports_its_commands() -> None:
    commands = [path for path in sources(*ROOMS) if path.parent.name == "commands"]
    assert len(commands) > 1
    others = [path for path in sources(*ROOMS) if path not in commands]
    inside = [path for path in others if any(".commands" in one for one in imports(path))]
    other_doors = [
        path
        for path in commands
        for room, other in (("run", "probe"), ("probe", "run"))
        if path.is_relative_to(ROOT / room) and any(one.startswith(f"{other}.commands") for one in imports(path))
    ]
    assert inside == other_doors == []


def test_libraries_are_seen_only_where_they_belong() -> None:
    wrong = []
    for path in [*sources(*ROOMS), ROOT / "train.py", ROOT / "eval.py"]:
        name = path.relative_to(ROOT).as_posix()
        for module in imports(path):
            for library, places in KEPT.items():
                inside = module == library or module.startswith(library + ".")
                if inside and not any(
                    name == place or (place[-1] == "/" and name.startswith(place)) for place in places
                ):
                    wrong.append(f"{name} imports {module}")
    assert wrong == []


def test_nobody_but_tests_imports_the_doors() -> None:
    assert [path for path in sources(*ROOMS) if {"train", "eval"} & imports(path)] == []


def test_config_modules_are_light() -> None:
    heavy = {"torch", "numpy", "datasets", "tokenizers"}
    for room in ("model", "data", "run", "probe"):
        assert not imports(ROOT / room / "config.py") & heavy
        assert not imports(ROOT / room / "__init__.py") & heavy
