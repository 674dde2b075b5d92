"""Whatever a door is told: it does it, or says in one line why not and has written nothing."""

import os
import re
import shutil
import string
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data.config import SCHEMAS
from model.config import ModelConfig
from probe.config import ProbeConfig
from tests.reliability.calls import Called, call, told
from tests.reliability.counts import counted
from tests.reliability.doors import Doors
from training.settings import EvalConfig, GenerateConfig, OptimConfig, RunConfig

pytestmark = pytest.mark.slow

_GROUPS = {
    "model": ["tiny", "nano", "small", "base", "nowhere"],
    "data": ["stories", "stories_full", "text", "hub", "shakespeare", "wikitext2", "tinystories"],
    "optim": ["muon", "adamw", "sgd"],
    "experiment": ["english", "full", "skewed", "lab/heads", "lab/_base", "lab", "null"],
    "variant": ["no_mask", "one_head", "shares", "four_layers", "learned_position"],
    "probe": ["standard", "quick"],
}


def names_of(prefix: str, schema: type) -> list[str]:
    return [prefix + field.name for field in fields(schema)]


_TRAIN = [
    *names_of("", RunConfig), *names_of("model.", ModelConfig), *names_of("optim.", OptimConfig),
    *(name for schema in SCHEMAS.values() for name in names_of("data.", schema)),
]  # fmt: skip
_NAMES = {
    "train.py": _TRAIN,
    "eval.py": [*names_of("", EvalConfig), *names_of("probe.", ProbeConfig)],
    "model/generate.py": names_of("", GenerateConfig),
}
_HYDRA = [
    "hydra.run.dir=x", "hydra.sweep.dir=x", "hydra.output_subdir=.hydra", "hydra.job.chdir=true",
    "hydra/launcher=basic",
    "hydra.launcher.nothing=1", "+hydra.launcher.other=x", "hydra.launcher.a.b=1",
    "hydra/launcher=nowhere", "hydra.verbose=true", "hydra.mode=MULTIRUN", "hydra.launcher._target_=os.system",
    "hydra.searchpath=[file:///]", "hydra/job_logging=default", "hydra.job.name=x", "hydra.sweep.subdir=../..",
    "hydra=null", "hydra.sweeper.max_batch_size=0", "hydra.callbacks.x._target_=os.getcwd", "hydra.job.env_set.A=b",
]  # fmt: skip
_FLAGS = [
    "-m", "--multirun", "-h", "--help", "--hydra-help", "--version", "--cfg", "--cfg job", "--cfg all", "-c",
    "-c hydra",
    "--cfg nothing", "--resolve", "--info", "--info searchpath", "--info x", "-i", "--run", "-r", "--package",
    "--package model", "-p", "-p x.y", "--cfg job --package model", "--config-name eval", "--config-path /", "-cn x",
    "--config-dir=/", "-cd", "--shell-completion", "-sc", "--", "-", "---", "-hm", "-mr", "--he", "-1", "--cfg=job",
    "--experimental-rerun x", "-cjob", "--cfg job --resolve", "-m -h", "-m --cfg job", "--info=config", "-m --info",
]  # fmt: skip
_VALUES = [
    "-1", "0", "1", "2", "3", "7", "64", "0.5", "1e308", "1e-400", "-0.0", "nan", "inf", "-inf", ".inf", "1e999",
    str(10**6), str(10**9), str(10**12), str(10**18), str(2**63), str(10**30), str(10**400), "9" * 5000, "1_000",
    "0x10", "1e3", "+5", " 5", "5 ", "٣", "true", "false", "null", "None", "", "[]", "{}", "[1,2]", "{a:1}",
    "[[[[1]]]]",
    "{a:{b:[1]}}", "[" * 40, "{" * 2000, "[" * 3000 + "]" * 3000, "(", ")", "'", '"', "''", '""', "'a", '"a\\', "\\",
    "a,b", ",", ",,", "1,", "range(1,3)", "range(0,1e9)", "choice(1,2)", "interval(0,1)", "glob(*)", "sort(3,1)",
    "int(a)", "str(1)", "shuffle(1,2)", "extend_list(1)", "glob(", "f(x)", "${oc.env:HOME}", "${oc.env:NOT_THERE}",
    "${now:%Y}", "${now:}", "${seed}", "${out}", "${nowhere}", "${", "${}", "${oc.decode:1}", "${oc.create:{a:1}}",
    "${hydra:run.dir}", "$", "???", "??", "=", "==", "a=b", "a b", "~", "@", "é", "日本", "🙂", "\u202ecba", "\u200b",
    "\u2028", "\x1b[31mred", "\x07", "\r", "\n", "a\nb", "\t", "\x7f", "\x85", "\udcff", "\udc80\udc81", "\ufeff1",
    "x" * 300, "x/" * 3000, "x" * 100_000, "..", ".", "~", "~nobody", "%s", "{0}", "cpu", "cuda", "auto", "graphs",
    "default", "words", "bpe", "characters", "file", "none", "sum", "learned", "no/such", "own/name", "*.txt",
    "here.txt",
    "here.jsonl", "here.bin", "here", "trained", "trained/config.json", "full", "gone", "**", "[", "a[b", "text",
    "links",
]  # fmt: skip
_NOT_HERE = re.compile(r"/(?!\w)|^/|\.\.")  # what might lead out of the sandbox


def near(name: str) -> st.SearchStrategy[str]:
    """Spell a name wrongly."""
    places = st.integers(0, len(name) - 1)
    return st.one_of(
        places.map(lambda i: name[:i] + name[i + 1 :]),
        places.map(lambda i: name[:i] + name[i] + name[i:]),
        st.just(name.upper()),
        st.just(name + "."),
        st.just("." + name),
        st.just(name + ".x"),
        st.just(name.replace(".", "/")),
        st.just(f"{name}@x"),
        st.just(f"{name}[0]"),
        st.just(f"{name}:"),
    )


def argument(door: str) -> st.SearchStrategy[list[str]]:
    """Return one thing that a command line may hold, mostly a setting that exists with a value that may not."""
    known = st.sampled_from(_NAMES[door])
    free = st.text(st.characters(exclude_characters="\0/.", exclude_categories=["Cs"]), max_size=30)
    value = st.one_of(
        st.sampled_from(_VALUES), st.sampled_from(_VALUES), free, st.integers().map(str), st.floats().map(repr)
    )
    setting = st.tuples(known, value).map("=".join)
    prefixed = st.tuples(st.sampled_from(["+", "++", "~", "+++", "~~", "-", "--", " ", "'", "@"]), setting).map("".join)
    missed = st.tuples(known.flatmap(near), value).map("=".join)
    soup = st.text(st.sampled_from(string.printable + "=${}[]~+,'\"\\é\u202e\udcff"), max_size=20)
    mixed = [setting] * 6 + [prefixed, missed, soup, known]
    if door == "model/generate.py":
        return st.one_of(mixed).map(lambda one: [one])
    groups = [name for name in _GROUPS if (name == "probe") == (door == "eval.py")]
    choice = st.sampled_from([f"{name}={one}" for name in groups for one in _GROUPS[name]])
    odd = st.tuples(st.sampled_from(groups), value).map("=".join)
    flags = st.sampled_from(_FLAGS).map(str.split)
    return st.one_of(
        st.one_of([*mixed, *mixed, choice, odd, st.sampled_from(_HYDRA)]).map(lambda one: [one]),
        st.one_of([*mixed, choice]).map(lambda one: [one]),
        st.one_of(flags, st.one_of(mixed).map(lambda one: [one])),
    )


_STORIES = (
    "data.n_train_stories=6000", "data.n_validation_stories=40", "data.n_test_templates=3", "data.n_test_pairs=2",
    "threads=1", "max_steps=2", "tokens_per_batch=128", "validation_tokens=50", "probe_sequences=8", "sample_tokens=2",
    "model=nano",
)  # fmt: skip
_TEXT = (
    "data=text", "data.path=here.txt", "data.tokenizer=characters", "model=nano", "model.context_length=8",
    "threads=1", "max_steps=2", "tokens_per_batch=64", "validation_tokens=50", "sample_tokens=2",
)  # fmt: skip


@dataclass
class Sandbox:
    """A folder with a text and a small run, and what calls in it come to."""

    doors: Doors
    folder: Path  # the working directory, deep inside what is watched
    cache: Path  # beside it
    trained: Path  # the run as it was
    seen: list[Called]

    def paths(self) -> set[str]:
        found = set()
        for where, folders, files in os.walk(os.fsencode(self.folder.parents[2])):
            found |= {os.path.join(where, name) for name in (*folders, *files)}
        return {os.fsdecode(one) for one in found}

    def check(self, door: str, arguments: list[str], seconds: float) -> None:
        before = self.paths()
        called = call(self.doors, self.folder, door, *arguments, seconds=seconds)
        self.seen.append(called)
        error = called.err
        assert called.status in (0, 2, 130, 143), (arguments, called.status, error[-3000:])
        assert "Traceback" not in error and "Error executing job" not in error, (arguments, error[-3000:])
        assert called.status != 143 or called.was_stopped, (arguments, error)
        assert not called.was_stopped or called.seconds < seconds + 10, (arguments, error)
        if called.status == 2:
            told(called)
            assert not re.search(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]", error[:-1]), (
                arguments,
                error,
            )
            assert self.paths() == before, (arguments, self.paths() - before)
        self.tidy(before)

    def tidy(self, before: set[str]) -> None:
        for path in sorted(self.paths() - before, key=len):
            if os.path.isdir(path):
                shutil.rmtree(path, ignore_errors=True)
            elif os.path.exists(path) or os.path.islink(path):
                os.unlink(path)
        manifests = (folder / "checkpoints" / "manifest.json" for folder in (self.trained, self.folder / "trained"))
        if len({path.read_bytes() if path.exists() else b"" for path in manifests}) > 1:  # it has been gone on with
            shutil.rmtree(self.folder / "trained")
            shutil.copytree(self.trained, self.folder / "trained")


@pytest.fixture(scope="module")
def sandbox(doors: Doors, tmp_path_factory: pytest.TempPathFactory) -> Sandbox:
    top = tmp_path_factory.mktemp("fuzz")
    folder = top / "watched" / "a" / "b" / "c"
    folder.mkdir(parents=True)
    (folder / "here.txt").write_text("Tom ran. He sat.\n" * 60)
    (folder / "here.jsonl").write_text('{"text": "Tom ran. He sat."}\n' * 60)
    (folder / "here.bin").write_bytes(bytes(range(256)) * 8)
    (folder / "full").mkdir()
    (folder / "full" / "thesis.tex").write_text("mine")
    made = Sandbox(doors, folder, top / "cache", top / "trained", [])
    for arguments in (_STORIES, (*_TEXT, "out=trained")):
        called = call(doors, folder, "train.py", *arguments, f"cache_dir={made.cache}")
        assert called.status == 0, called.err
    shutil.copytree(folder / "trained", made.trained)
    return made


def few(one: str) -> str:
    """Keep what leads out of the sandbox from doing so: a value is not to be written to the machine's own folders."""
    return one if one.startswith("hydra") else _NOT_HERE.sub("_", one)


# What can be done as it stands, so that many a case gets as far as a run.
_SOUND = {
    "train.py": [
        "max_steps=1", "max_steps=3", "seed=0", "seed=4294967295", "model.n_layer=2", "model.n_head=4", "model.d_mlp=7",
        "model.dropout=0.9", "model.norm_eps=1e-30", "model.rope_theta=1e30", "variant=no_mask", "variant=shares",
        "variant=unscaled", "variant=learned_position", "variant=tied_key_value", "optim=adamw", "optim.beta_2=0.0",
        "optim.learning_rate=1000", "optim.learning_rate=1e-30", "optim.weight_decay=1000", "optim.clip_norm=1e-30",
        "optim.decay_power=1e30", "optim.warmup_steps=0", "optim.warmup_steps=9223372036854775807",
        "precision=bfloat16",
        "gradient_accumulation_steps=3", "log_every_steps=1", "eval_every_steps=1", "tokens_per_batch=1", "validation_tokens=1",
        "probe_sequences=0", "probe_sequences=9", "sample_tokens=0", "sample_prompt=\u202e<|endoftext|>",
        "out=made", "out=a b/c,d", "out=\u65e5\u672c", "-m", "device=cpu", "++max_steps=2", "threads=2",
        "model.scale=inverse_sqrt",
    ],
    "eval.py": [
        "text=The cat saw it.", "text=\x1b[31mTom saw him", "text='It'", "task=links", "path=here.txt", "open=true",
        "threads=2",
        "device=cpu", "probe.seed=3", "probe.tokens_per_batch=1", "figures=true", "path=here.jsonl",
    ],
    "model/generate.py": [
        "n_tokens=1", "n_tokens=40", "temperature=0", "temperature=100", "temperature=0.01", "seed=4294967295",
        "prompt=Tom ran", "prompt=\x1b[31m", "prompt=<|endoftext|>",
    ],
}  # fmt: skip


def commands(door: str) -> st.SearchStrategy[list[str]]:
    """Return command lines: what can be done, and beside it a few arguments of any kind."""
    wild = st.lists(argument(door), max_size=3).map(lambda every: [few(one) for part in every for one in part])
    sound = st.lists(st.sampled_from(_SOUND[door]), max_size=4, unique=True)
    bases = [_STORIES, _TEXT, _TEXT] if door == "train.py" else [(), ("run=trained",), ("run=trained",)]
    parts = st.tuples(st.sampled_from(bases), sound, st.one_of(st.just([]), wild))
    return parts.map(lambda three: [*three[0], *three[1], *three[2]])


def test_whatever_a_door_is_told_it_does_or_says_in_one_line_why_not(
    sandbox: Sandbox, full: bool, figure: Callable[[str, str, str, bool], None]
) -> None:
    for door, n_cases in (("train.py", 1400), ("eval.py", 400), ("model/generate.py", 200)):
        beside = [] if door == "model/generate.py" else [f"cache_dir={sandbox.cache}"]

        @settings(
            max_examples=n_cases if full else n_cases // 40,
            deadline=None,
            database=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        )
        @given(st.just(door), st.just(beside), commands(door))
        def holds(door: str, beside: list[str], arguments: list[str]) -> None:
            arguments = [one for one in arguments if "\0" not in one]  # no command line can hold it
            sandbox.check(door, [*beside, *arguments], seconds=6)

        holds()
    found = Counter(called.status for called in sandbox.seen)
    counts = ", ".join(f"{n:,} x {status}" for status, n in sorted(found.items()))
    measured = f"{found.total():,} cases, exit status {counts}; 0 tracebacks, 0 files left by what was refused"
    target = f"{counted(2000 if full else 50, 2000)} cases, exit 0 or 2 (143 where the test ends it), never a traceback"
    met = set(found) <= {0, 2, 143} and found.total() >= (2000 if full else 50)
    figure("fuzz of overrides: train, eval, generate", target, measured, met)


# Found by the fuzz, or by hand: what once was a traceback, many lines, or a machine out of memory.
ODD = [
    ("train.py", ["--cfg"], "--cfg needs a value, one of job, hydra, all"),
    ("train.py", ["--cfg", "nothing"], "--cfg needs a value, one of job, hydra, all"),
    ("train.py", ["--info", "x"], "--info needs a value, one of all, config"),
    ("train.py", ["-m", "--cfg", "job"], "-m and --cfg cannot go together"),
    ("train.py", ["--resolve"], "it needs --cfg job"),
    ("train.py", ["--package", "model"], "--package is not a flag"),
    ("train.py", ["--config-dir=/"], "--config-dir=/ is not a flag"),
    ("train.py", ["experiment=6.5e+16"], "experiment=6.5e+16 is not one of"),
    ("eval.py", ["probe=0.0"], "probe=0.0 is not one of standard"),
    ("eval.py", ["-m"], "eval.py has no sweeps: runs=DIR"),
    ("train.py", ["compile=\x07"], "compile=\ufffd: a value here is one word or number"),
    ("train.py", ["seed=" + "9" * 5000], "seed: a value of 5,000 characters is too long"),
    ("train.py", ["max_steps=${seed}"], "a value here is one word or number"),
    ("train.py", ["seed=[1,2]"], "a value here is one word or number"),
    ("train.py", ["out=a\x1b[31mb"], "a control character is in it"),
    ("train.py", ["hydra.output_subdir=.hydra"], "of Hydra's own settings only hydra/launcher"),
    ("train.py", ["hydra.launcher._target_=os.system"], "of Hydra's own settings only hydra/launcher"),
    ("train.py", ["-m", "hydra/launcher=joblib", "hydra.launcher.n_jobs=0"], "is not a number of runs at a time"),
    ("train.py", ["-m", "hydra/launcher=joblib", "hydra.launcher.n_jobs=1,2"], "several values are several runs"),
    ("train.py", ["-m", "hydra.launcher.nothing=1", "seed=1,2"], "nothing"),
    ("train.py", ["-m", "seed=range(0,1e9)"], "asks for more than 10,000 runs"),
    ("train.py", ["-m", "seed=range(0,x)"], "write range(FIRST,END)"),
    ("train.py", ["-m", "max_steps=-1,2"], "max_steps must be 1 or more, got -1"),
    ("train.py", [*_TEXT, "-m", "out=swept", "seed=1,2", "data.path=gone.txt"], "no text found at gone.txt"),
    ("train.py", [*_TEXT, "optim.learning_rate=1e308"], "optim.learning_rate must be 1e+18 or less"),
    ("train.py", [*_TEXT, "optim.weight_decay=1e308"], "optim.weight_decay must be 1e+18 or less"),
    ("train.py", [*_TEXT, "model.rope_theta=nan"], "model.rope_theta must be a number that is finite, got nan"),
    ("train.py", [*_TEXT, f"max_steps={10**30}"], "max_steps must be below 2**63"),
    ("train.py", [*_TEXT, "model.d_model=1000000"], "needs at least"),
    ("train.py", [*_TEXT, "model.n_layer=1000000000000"], "needs at least"),
    ("train.py", [*_TEXT, "model.context_length=1000000000000"], "needs at least"),
    ("train.py", [*_TEXT, "tokens_per_batch=1000000000000"], "needs at least"),
    ("train.py", [*_TEXT, "gradient_accumulation_steps=1000000000000"], "needs at least"),
    ("train.py", [*_STORIES, "model.context_length=1000000000000"], "needs at least"),
    ("train.py", [*_STORIES, "data.n_train_stories=1000000000000"], "needs at least"),
    ("train.py", [*_STORIES, "data.n_validation_stories=1000000000000"], "needs at least"),
    ("train.py", [*_STORIES, "data.n_test_pairs=1000000000000"], "needs at least"),
    ("train.py", [*_TEXT, "data.tokenizer=bpe", "data.vocab_size=1000000000000"], "16,777,216 or less"),
    ("train.py", [*_TEXT, "threads=1000000"], "threads must be 1 to 1,024, got 1000000"),
    ("train.py", [*_TEXT, "sample_tokens=1000000000000"], "sample_tokens must be 65,536 or less"),
]  # fmt: skip


@pytest.mark.parametrize("door, arguments, message", ODD, ids=[ascii(" ".join(one[1]))[-60:] for one in ODD])
def test_what_was_found_is_said_in_one_line_and_nothing_is_written(
    sandbox: Sandbox, door: str, arguments: list[str], message: str
) -> None:
    before = sandbox.paths()
    cache = [f"cache_dir={sandbox.cache}"] if arguments[0] not in ("--cfg", "--info") else []
    called = call(sandbox.doors, sandbox.folder, door, *cache, *arguments)
    assert message in told(called) and called.seconds < 10
    assert sandbox.paths() == before


def test_a_want_of_memory_in_the_midst_of_a_run_is_said_in_one_line(sandbox: Sandbox) -> None:
    arguments = [*_TEXT, "model.d_model=20000", f"cache_dir={sandbox.cache}"]
    called = call(sandbox.doors, sandbox.folder, "train.py", *arguments, memory=6 << 30)
    assert "too little memory" in told(called)


def test_weights_that_are_not_finite_are_said_to_be_that(sandbox: Sandbox) -> None:
    arguments = [*_TEXT, "optim.weight_decay=1e6", "optim.learning_rate=1e6", "max_steps=9", "out=spoiled"]
    called = call(sandbox.doors, sandbox.folder, "train.py", *arguments, f"cache_dir={sandbox.cache}")
    assert "Traceback" not in called.err, called.err
    called = call(sandbox.doors, sandbox.folder, "model/generate.py", "run=spoiled")
    assert called.status in (0, 2) and "Traceback" not in called.err
