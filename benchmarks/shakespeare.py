"""Characters of tiny Shakespeare on one core: python -m benchmarks.shakespeare path=input.txt [seeds=1,2,3,4,5].

The whole process's CPU seconds are the operating system's own; OMP_NUM_THREADS=1 holds it to one thread.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent


def main() -> None:
    """Train once per seed and print a Markdown row each."""
    given = dict(argument.split("=", 1) for argument in sys.argv[1:])
    print("| seed | loss over the whole validation part | s of training | CPU-s of the process | steps | parameters |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for seed in given.get("seeds", "1,2,3,4,5").split(","):
            out = Path(folder) / seed
            before = os.times()
            ran = subprocess.run(
                [sys.executable, "train.py", "experiment=shakespeare", f"data.path={Path(given['path']).resolve()}",
                 f"seed={seed}", f"out={out}", f"cache_dir={folder}/cache", "sample_tokens=0"],
                cwd=ROOT, check=True, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"},
            )  # fmt: skip
            after = os.times()
            cpu = after.children_user + after.children_system - before.children_user - before.children_system
            last = json.loads((out / "metrics.jsonl").read_text().splitlines()[-1])
            assert last["split"] == "validation" and last["whole"]
            parameters = next(line for line in ran.stdout.splitlines() if line.startswith("model")).split()[1]
            print(
                f"| {seed} | {last['loss']:.4f} | {last['seconds']:.1f} | {cpu:.1f} | {last['step']} | {parameters} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
