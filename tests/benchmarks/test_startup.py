"""How soon a model learns: what the clock is stopped by, and what a training need not import."""

import subprocess
import sys
from pathlib import Path

from benchmarks.startup import ROOT, answer, first_step, hydra_alone, some_text

# What takes a second to import and what no training on a CPU has a use for, in a real process, after all of a run.
_AFTER = """
import runpy, sys
sys.argv = ["train.py", *sys.argv[1:]]
sys.path.insert(0, ".")
runpy.run_path("train.py", run_name="__main__")
print("imported", *({"torch._dynamo", "datasets", "pandas", "tensorflow", "scipy.stats"} & set(sys.modules)))
"""
_SHORT = ["threads=1", "max_steps=2", "model=nano", "tokens_per_batch=256", "validation_tokens=200", "sample_tokens=2"]


def test_a_training_on_a_cached_corpus_imports_neither_torchs_compiler_nor_datasets(cache: str, tmp_path: Path) -> None:
    stories = ["data.n_train_stories=4000", "data.n_validation_stories=40", "data.n_test_templates=2"]
    asked = [*_SHORT, *stories, "probe_sequences=40", cache]
    for name in ("before", "run"):
        command = [sys.executable, "-c", _AFTER, *asked, f"out={tmp_path / name}"]
        ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines()[-1] == "imported"


def test_the_clock_stops_when_the_first_step_is_written_down_and_the_run_with_it(tmp_path: Path) -> None:
    text = some_text(tmp_path / "text.txt")
    asked = ["experiment=shakespeare/cpu_quick", f"data.path={text}", f"cache_dir={tmp_path / 'cache'}", "model=nano"]
    assert 0.5 < first_step(asked, tmp_path / "run") < 120
    records = (tmp_path / "run" / "metrics.jsonl").read_text()
    assert '"step": 1, "split": "train"' in records and '"step": 100, "split": "train"' not in records
    assert 0 < answer(["train.py", "model.n_haed=3"]) < 30


def test_hydra_alone_says_what_the_same_configs_are(tmp_path: Path) -> None:
    command = [sys.executable, *hydra_alone(["eval.py", "--help"], tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0 and "Probe a trained run." in ran.stdout
    assert hydra_alone(["train.py", "max_steps=abc"], tmp_path) == []
