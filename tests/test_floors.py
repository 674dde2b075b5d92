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
    "probe": {"model", "data.links", "data.alignment"},
    "configs": {"model.config", "data.config", "run.config", "probe.config"},
    # What eval.py does once Hydra has done its part: it brings all rooms together, as a door, and lies above them.
    "probe/commands": {"model", "data", "run", "configs"},
}
# Libraries that only these places may import.
KEPT = {
    "hydra": {"train.py", "eval.py"},
    "datasets": {"data/"},
    "tokenizers": {"data/"},
    "huggingface_hub": {"data/"},
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
            allowed = ALLOWED["probe/commands" if name.startswith("probe/commands/") else room]
            for module in imports(path):
                top = module.split(".")[0]
                if top in ROOMS and top != room and not {module, top} & allowed:
                    wrong.append(f"{name} imports {module}")
    assert wrong == []


def test_nobody_but_the_door_imports_its_commands() -> None:
    commands = [path for path in sources(*ROOMS) if path.parent.name == "commands"]
    assert len(commands) > 1
    others = [path for path in sources(*ROOMS) if path not in commands]
    assert [path for path in others if any(one.startswith("probe.commands") for one in imports(path))] == []


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


def test_no_source_can_run_what_it_reads() -> None:
    """No pickle, eval or exec, no object built from a name in a config."""
    wrong = []
    for path in [*sources(*ROOMS), ROOT / "train.py", ROOT / "eval.py"]:
        wrong += [f"{path.name} imports {module}" for module in imports(path) & {"pickle", "yaml", "hydra.utils"}]
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("eval", "exec"):
                wrong.append(f"{path.name}:{node.lineno} calls {node.func.id}")
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "load":
                safe = any(
                    one.arg == "weights_only" and getattr(one.value, "value", 0) is True for one in node.keywords
                )
                if ast.unparse(node.func) == "torch.load" and not safe:
                    wrong.append(f"{path.name}:{node.lineno} loads more than weights")
    wrong += [path.name for path in (ROOT / "configs").rglob("*.yaml") if "_target_" in path.read_text()]
    assert wrong == []


def test_config_modules_are_light() -> None:
    heavy = {"torch", "numpy", "datasets", "tokenizers"}
    for room in ("model", "data", "run", "probe"):
        assert not imports(ROOT / room / "config.py") & heavy
        assert not imports(ROOT / room / "__init__.py") & heavy
