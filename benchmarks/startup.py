"""How soon the doors answer and a model learns: python -m benchmarks.startup [data.path=FILE] [out=FILE.json].

Wall seconds of whole processes, from their start. The first training step is timed from outside, to the moment its
line lies in metrics.jsonl (log_every_steps=1, the file is looked at every 2 ms): before it come all imports, the
settings, the corpus from the cache, the model and, at step 0, an evaluation, a probe with its pictures and a
checkpoint. Then the process is killed. The files were read a moment before, by a run that is not counted.

Beside each --help runs Hydra alone: a script that does nothing, with the same configs.
"""

import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.rows import ROOT, Row, all_within, alone, repeats

MOST_TO_ANSWER, MOST_TO_LEARN = 0.5, 4.0  # seconds
_THREADS = 2
_ANSWERS = {
    "train.py --help": ["train.py", "--help"],
    "eval.py --help": ["eval.py", "--help"],
    "a typo in a name": ["train.py", "model.n_haed=3"],
    "a value of the wrong type": ["train.py", "max_steps=abc"],
    "an impossible combination": ["train.py", "model.n_head=5"],
}
_HYDRA = """
import hydra
@hydra.main(version_base="1.3", config_path={folder!r}, config_name={name!r})
def main(config): pass
main()
"""
_WORDS = "the cat dog saw ran sat on near and it was tired then they slept all day long by old warm mill".split()


def answer(arguments: Sequence[str]) -> float:
    """Return how many seconds a door takes to say what it says without a run; SystemExit where it does begin one."""
    began = time.monotonic()
    ran = subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, check=False)
    seconds = time.monotonic() - began
    if ran.returncode not in (0, 2) or b"Traceback" in ran.stderr:
        sys.exit(f"{' '.join(arguments)}: exit status {ran.returncode}")
    return seconds


def hydra_alone(arguments: Sequence[str], folder: Path) -> list[str]:
    """Return how Hydra alone is asked for the help of a door; nothing where it is not help that is asked for."""
    if "--help" not in arguments:
        return []
    name = Path(arguments[0]).stem
    script = folder / f"hydra_{name}.py"
    script.write_text(_HYDRA.format(folder=str(ROOT / "configs"), name=name))
    return [str(script), "--help"]


def first_step(arguments: Sequence[str], out: Path) -> float:
    """Return how many seconds train.py takes until its first step is written down, and end it there."""
    threads = {"OMP_NUM_THREADS": str(_THREADS)}
    began, records = time.monotonic(), out / "metrics.jsonl"
    process = subprocess.Popen(
        [sys.executable, "train.py", f"out={out}", "log_every_steps=1", *arguments],
        cwd=ROOT, env=os.environ | threads, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        while not (records.exists() and b'"split": "train"' in records.read_bytes()):
            if process.poll() is not None:
                sys.exit(f"train.py {' '.join(arguments)} ended before its first step")
            time.sleep(0.002)
        return time.monotonic() - began
    finally:
        process.kill()
        process.wait()


def some_text(path: Path) -> Path:
    """Write a text of a megabyte, about as long as tiny Shakespeare."""
    draw = random.Random(0)
    path.write_text("\n".join(" ".join(draw.choices(_WORDS, k=8)).capitalize() + "." for _ in range(30_000)))
    return path


def rows(given: dict[str, str]) -> list[Row]:
    """Measure what stands above: `data.path` names the text, without it one is made."""
    n = repeats(given)
    found = []
    with tempfile.TemporaryDirectory() as place:
        here = Path(place)
        for work, arguments in _ANSWERS.items():
            peer = hydra_alone(arguments, here)
            turns = [(answer(arguments), answer(peer) if peer else None) for _ in range(n + 1)][1:]  # the first reads
            theirs = [seconds for _, seconds in turns if seconds is not None]
            found.append(_row(f"start: {work}", [ours for ours, _ in turns], MOST_TO_ANSWER, "", theirs))
        text = Path(given["data.path"]).resolve() if "data.path" in given else some_text(here / "text.txt")
        for name, data in (("the stories", []), ("a text", ["experiment=shakespeare/cpu_quick", f"data.path={text}"])):
            arguments = [*data, f"cache_dir={here / 'cache'}"]
            first_step(arguments, here / f"{name} before")  # writes the corpus into the cache
            seconds = [first_step(arguments, here / f"{name} {i}") for i in range(n)]
            note = f"{' '.join(data[:1]) or 'the default'}, {_THREADS} threads; the corpus is in the cache"
            found.append(_row(f"start: first training step of {name}", seconds, MOST_TO_LEARN, note))
    return found


def _row(work: str, seconds: list[float], most: float, note: str, peer: Sequence[float] = ()) -> Row:
    return Row(
        work=work, goal=f"≤ {most} s", aim="", unit="s", ours=seconds, peer_name="Hydra alone" if peer else "",
        peer=list(peer), met=all_within(seconds, most), aim_met=None, note=note,
    )  # fmt: skip


if __name__ == "__main__":
    alone(rows, ["data.path"])
