"""Several processes that train one model, started as torchrun starts them."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from torch.distributed import TCPStore

from benchmarks.ranks import ranks
from tests.reliability.doors import ROOT, Doors, Running
from tests.reliability.faults import speak_soon

_STORES: list[TCPStore] = []  # they last as long as this process


def start_ranks(doors: Doors, size: int, *arguments: str) -> list[Running]:
    """Start `size` ranks of train.py, each told its place by its environment; the first in the list is rank 0.

    Where they meet outlives them, as torchrun's does.
    """
    _STORES.append(TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False))
    common = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_STORES[-1].port)}
    common["TORCHELASTIC_USE_AGENT_STORE"] = "True"
    return [
        doors.start(
            "train.py",
            *arguments,
            before=speak_soon,
            environment={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(size)
    ]


@dataclass
class Launched:
    """A torchrun at work."""

    process: subprocess.Popen
    said: Path

    def ranks(self) -> dict[int, int]:
        """Return the process of each rank that is there."""
        return ranks(self.process.pid)

    def wait(self, seconds: float = 120.0) -> tuple[int, str]:
        """Return the exit status of torchrun and all that it and its ranks have said."""
        try:
            status = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(40)
            raise
        return status, self.said.read_text()


def torchrun(said: Path, size: int, *arguments: str) -> Launched:
    """Start torchrun, which says to a file of its own what its ranks say."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(size)]
    with said.open("w") as stream:
        process = subprocess.Popen(
            [*command, str(ROOT / "train.py"), *arguments],
            cwd=ROOT, stdout=stream, stderr=stream, env=os.environ | {"OMP_NUM_THREADS": "1"},
        )  # fmt: skip
    return Launched(process, said)


def wait_for_step(run: Path, step: int, seconds: float = 120.0) -> None:
    """Return once a run has recorded a step; TimeoutError where it does not."""
    end, file = time.monotonic() + seconds, run / "metrics.jsonl"
    while time.monotonic() < end:
        text = file.read_text() if file.exists() else ""
        if any(json.loads(line)["step"] >= step for line in text.splitlines(keepends=True) if line.endswith("\n")):
            return
        time.sleep(0.005)
    raise TimeoutError(f"{run} has not come to step {step}")
