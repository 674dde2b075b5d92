"""antecedent_lab/progress.py: what long work prints about its time."""

import io
import time
from contextlib import redirect_stderr, redirect_stdout

import pytest

from antecedent_lab.progress import stages, time_left


@pytest.mark.parametrize("is_terminal", [False, True])
def test_a_stage_is_a_line_that_is_read_at_once_in_a_log_and_overwritten_on_a_terminal(is_terminal: bool) -> None:
    log, stderr = Stream(), Stream()
    stderr.is_terminal = is_terminal
    with redirect_stderr(stderr), redirect_stdout(log), stages("heads", print) as show:
        for stage, share in (("reading", 0.0), ("reading", 0.1), ("testing", 0.2)):
            show(stage, share)
        lines = [line.split(",")[0] for line in log.seen.splitlines()]
    assert lines == ([] if is_terminal else ["heads: reading", "heads: testing"])
    assert stderr.getvalue().count("\r") == (4 if is_terminal else 0)  # the last clears the line


class Stream(io.StringIO):
    """A terminal or a file; `seen` is what was flushed."""

    seen = ""
    is_terminal = False

    def isatty(self) -> bool:
        return self.is_terminal

    def flush(self) -> None:
        self.seen = self.getvalue()


def test_the_time_left_is_known_after_a_part_of_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 130.0)
    assert time_left(100.0, 0.0) == ""
    assert time_left(100.0, 0.25) == ", about 2 min left" and time_left(100.0, 0.5) == ", about 30 s left"
