"""A real TensorBoard, on this machine alone, to be asked what it would show."""

import json
import re
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from training.board import earlier_scores, probe_scores
from training.checkpoint import write_set

DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # never by way of a proxy


def write_scores(run: Path, step: int, scores: dict[str, float]) -> None:
    """Put a probe's scores into a run's tb/ as a probe does, in place of an earlier one's."""
    gone = [f"tb/{name}" for name in earlier_scores(run)]
    name, content = probe_scores(run, step, scores)
    write_set(run, {f"tb/{name}": content}, gone=gone)


class Board:
    """A TensorBoard that runs, and what it answers."""

    def __init__(self, logdir: Path, *options: str) -> None:
        door = [sys.executable, "-m", "tensorboard.main", "--logdir", str(logdir), "--host", "127.0.0.1", "--port", "0"]
        self.process = subprocess.Popen([*door, *options], stderr=subprocess.PIPE, text=True)
        assert self.process.stderr
        said = ""
        for line in self.process.stderr:
            said += line
            if found := re.search(r"http://127\.0\.0\.1:\d+/", line):
                self.address = found[0]
                return
        raise AssertionError(f"TensorBoard did not start: {said}")

    def fetch(self, path: str, body: Any = None, **query: str) -> bytes:
        request = urllib.request.Request(
            f"{self.address}data/{path}?{urllib.parse.urlencode(query)}",
            None if body is None else json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with DIRECT.open(request, timeout=30) as answer:
            return answer.read()

    def ask(self, path: str, body: Any = None, **query: str) -> Any:
        return json.loads(self.fetch(path, body, **query))

    def scalars(self, run: str, tag: str) -> list[tuple[int, float]]:
        return [(step, value) for _, step, value in self.ask("plugin/scalars/scalars", run=run, tag=tag, format="json")]

    def wait(self, until: Callable[[], bool]) -> None:
        """Return once it is so: files are read in the background."""
        for _ in range(600):
            if until():
                return
            time.sleep(0.1)
        raise AssertionError("TensorBoard has not read what was written")

    def end(self) -> None:
        self.process.terminate()
        self.process.communicate()

    def session_groups(self) -> list[dict[str, Any]]:
        """The rows of the HParams table."""
        every = ["STATUS_UNKNOWN", "STATUS_SUCCESS", "STATUS_FAILURE", "STATUS_RUNNING"]
        body = {"allowedStatuses": every, "colParams": [], "startIndex": 0, "sliceSize": 10, "experimentName": ""}
        return self.ask("plugin/hparams/session_groups", body)["sessionGroups"]
