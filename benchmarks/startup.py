"""How soon the doors answer: python -m benchmarks.startup. Wall seconds of whole processes, the median of 9."""

import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
CASES = {
    "train.py --help": ["train.py", "--help"],
    "eval.py --help": ["eval.py", "--help"],
    "a typo in a name": ["train.py", "model.n_haed=3"],
    "a value of the wrong type": ["train.py", "max_steps=abc"],
    "an impossible combination": ["train.py", "model.n_head=5"],
}


def main() -> None:
    """Time every case after one run that is not counted."""
    print("| command | s, median of 9 (range) | exit status |")
    print("|---|---|---|")
    for name, arguments in CASES.items():
        seconds = []
        for _ in range(10):
            began = time.monotonic()
            ran = subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, check=False)
            seconds.append(time.monotonic() - began)
        counted = seconds[1:]
        print(
            f"| {name} | {statistics.median(counted):.2f} ({min(counted):.2f}-{max(counted):.2f}) | {ran.returncode} |"
        )


if __name__ == "__main__":
    main()
