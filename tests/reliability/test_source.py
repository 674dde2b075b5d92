"""What our own source may not do: nothing that it reads can become code, a command or another's file."""

import ast
import re
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_SHIPPED = ("configs", "data", "model", "probe", "run", "benchmarks")
_MODULES = {
    "pickle",
    "cPickle",
    "_pickle",
    "dill",
    "cloudpickle",
    "marshal",
    "shelve",
    "joblib",
    "code",
    "codeop",
    "pty",
}
_BUILTINS = {"eval", "exec", "compile", "__import__", "input", "breakpoint"}
_CALLS = {
    "os.system", "os.popen", "os.execv", "os.execvp", "os.spawnl", "os.spawnv", "tempfile.mktemp",
    "subprocess.getoutput",
    "subprocess.getstatusoutput", "yaml.load", "yaml.unsafe_load", "yaml.full_load", "torch.jit.load", "torch.hub.load",
    "torch.package.PackageImporter", "pandas.read_pickle", "importlib.import_module", "runpy.run_path",
    "runpy.run_module",
    "numpy.fromregex", "np.fromregex", "instantiate", "hydra.utils.instantiate", "get_class", "get_method",
    "get_object",
}  # fmt: skip

# A page of our own documentation is run as a reader would run it, to see that it prints what it says. nanoGPT reads a
# pickle, which is written for it and never read.
_KNOWN = ["benchmarks/attention.py: exec", "benchmarks/shakespeare.py: pickle"]


def shipped() -> list[Path]:
    files = [ROOT / "train.py", ROOT / "eval.py", *(path for room in _SHIPPED for path in (ROOT / room).rglob("*.py"))]
    assert len(files) > 80, "no source found: the test would pass by seeing nothing"
    return files


def forbidden(source: str) -> list[str]:
    """Return what in `source` could turn what is read into code."""
    return [f"{node.lineno}: {what}" for node in ast.walk(ast.parse(source)) if (what := _wrong(node))]


def _wrong(node: ast.AST) -> str | None:
    if isinstance(node, ast.Import):
        return next((one.name for one in node.names if _unsafe_module(one.name)), None)
    if isinstance(node, ast.ImportFrom):
        names = [f"{node.module}.{one.name}" for one in node.names]
        bad = [name for name in names if name in _CALLS]
        return node.module if node.module and _unsafe_module(node.module) else next(iter(bad), None)
    if not isinstance(node, ast.Call):
        return None
    name, given = ast.unparse(node.func), {one.arg: one.value for one in node.keywords}
    if (isinstance(node.func, ast.Name) and name in _BUILTINS) or name in _CALLS:
        return name
    if name == "torch.load" and not _is(given.get("weights_only"), True):
        return "torch.load that may run code"
    if "allow_pickle" in given and not _is(given["allow_pickle"], False):
        return "allow_pickle"
    if "shell" in given and not _is(given["shell"], False):
        return "shell"
    if "trust_remote_code" in given and not _is(given["trust_remote_code"], False):
        return "trust_remote_code"
    if any(one.arg is None for one in node.keywords) and name.startswith(("subprocess.", "torch.load", "np.load")):
        return f"{name} with what cannot be read here"
    return None


def _unsafe_module(name: str) -> bool:
    return name.split(".")[0] in _MODULES or name == "hydra.utils" or name == "yaml"


def _is(node: ast.expr | None, value: bool) -> bool:
    return isinstance(node, ast.Constant) and node.value is value


PLANTED = [
    "import pickle", "from pickle import loads", "import marshal as m", "import shelve", "from joblib import load",
    "import yaml", "from hydra.utils import instantiate", "import hydra.utils", "eval('1')", "exec('1')",
    "compile('1', '', 'eval')",
    "__import__('os')", "import torch\ntorch.load('x')", "torch.load('x', weights_only=False)",
    "torch.load('x', weights_only=safe)", "np.load('x', allow_pickle=True)", "np.load('x', allow_pickle=maybe)",
    "subprocess.run('ls', shell=True)", "subprocess.Popen('ls', shell=how)", "subprocess.run(['ls'], **how)",
    "tempfile.mktemp()", "from tempfile import mktemp", "os.system('ls')", "from os import system", "os.popen('ls')",
    "load_dataset('x', trust_remote_code=True)", "torch.jit.load('x')", "breakpoint()", "importlib.import_module(name)",
]  # fmt: skip
FINE = [
    "torch.load('x', weights_only=True)", "np.load('x', mmap_mode='r')", "subprocess.run(['git'], check=False)",
    "model.eval()", "re.compile('x')", "tempfile.mkdtemp()", "json.load(stream)", "torch.compile(model)",
]  # fmt: skip


@pytest.mark.parametrize("line", PLANTED)
def test_a_planted_line_is_found(line: str) -> None:
    assert len(forbidden(f"def f():\n    {line.replace(chr(10), chr(10) + '    ')}")) == 1


@pytest.mark.parametrize("line", FINE)
def test_what_is_fine_is_let_through(line: str) -> None:
    assert forbidden(line) == []


def test_nothing_that_is_read_can_become_code(figure: Callable[[str, str, str, bool], None]) -> None:
    every = [(path.relative_to(ROOT), what) for path in shipped() for what in forbidden(path.read_text())]
    known = [(path, what) for path, what in every if f"{path}:{what.split(':')[1]}" in _KNOWN]
    assert len(known) == len(_KNOWN)
    assert set(re.findall(r"pickle\.\w+", (ROOT / "benchmarks/shakespeare.py").read_text())) == {"pickle.dumps"}
    found = [f"{path}:{what}" for path, what in every if (path, what) not in known]
    built = [path.name for path in (ROOT / "configs").rglob("*.yaml") if "_target_" in path.read_text()]
    measured = f"{len(found) + len(built)} in {len(shipped())} files {' '.join([*found, *built])}".rstrip()
    figure("own source: pickle, eval, yaml.load, shell, _target_ ...", "0", measured, not found and not built)
