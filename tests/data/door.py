"""train.py many times over, each command a fork of one process that has loaded its libraries.

A command is the same as `python train.py ...` but for the seconds that imports take.
"""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
_LOOP = """
import json, os, runpy, signal, sys, traceback
import datasets, huggingface_hub, torch, torch._dynamo
import data.corpus, data.download, training.trainer
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for line in sys.stdin:
    command = json.loads(line)
    if child := os.fork():
        os.write(1, f"{child}\\n".encode())
        continue
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.chdir(command["cwd"])
    for number, name in ((0, os.devnull), (1, command["log"] + ".out"), (2, command["log"] + ".err")):
        os.dup2(os.open(name, os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    for name, value in command["constants"].items():
        setattr(data.download, name, value)
    sys.argv = ["train.py", *command["arguments"]]
    status = 1
    try:
        runpy.run_path(command["script"], run_name="__main__")
        status = 0
    except SystemExit as end:
        status = end.code or 0
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    with open(command["log"] + ".status", "w") as stream:
        stream.write(str(status))
    os._exit(status)
"""


@dataclass
class Command:
    """A train.py that has been started."""

    pid: int
    log: str

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        while Path(f"/proc/{self.pid}").exists():
            time.sleep(0.01)

    def wait(self, seconds: float = 60.0) -> tuple[int, str, str]:
        """Return exit status, stdout and stderr."""
        end, path = time.monotonic() + seconds, Path(f"{self.log}.status")
        while not path.exists() or not path.read_text():
            assert time.monotonic() < end, f"still running: {Path(f'{self.log}.err').read_text()}"
            time.sleep(0.02)
        return int(path.read_text()), *(Path(f"{self.log}.{name}").read_text() for name in ("out", "err"))


class Door:
    """Starts commands in folders of their own."""

    def __init__(self, logs: Path, environment: dict[str, str]) -> None:
        self.logs, self.count = logs, 0
        self.process = subprocess.Popen(
            [sys.executable, "-c", _LOOP],
            env=environment | {"PYTHONPATH": str(ROOT)},
            cwd=logs,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def start(self, cwd: Path, *arguments: str, **constants: Any) -> Command:
        """Start train.py in `cwd`; `constants` are of data/download.py, shorter so that a test need not wait."""
        assert self.process.stdin and self.process.stdout
        cwd.mkdir(exist_ok=True)
        self.count += 1
        log = str(self.logs / str(self.count))
        command = {"cwd": str(cwd), "arguments": arguments, "log": log, "constants": constants}
        print(json.dumps(command | {"script": str(ROOT / "train.py")}), file=self.process.stdin, flush=True)
        return Command(int(self.process.stdout.readline()), log)

    def close(self) -> None:
        """Let no more commands in."""
        assert self.process.stdin and self.process.stdout
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()
