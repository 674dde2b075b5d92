"""antecedent_lab/progress.py: what long work prints about its time."""

import io
import time
from contextlib import redirect_stderr, redirect_stdout

import pytest

from antecedent_lab.progress import stages, time_left


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("stderr", [io.StringIO(), Terminal()])
def test_a_stage_is_a_line_in_a_log_and_overwritten_on_a_terminal(stderr: io.StringIO) -> None:
    lines: list[str] = []
    with redirect_stderr(stderr), stages("heads", lines.append) as show:
        for stage, share in (("reading", 0.0), ("reading", 0.1), ("testing", 0.2)):
            show(stage, share)
    on_terminal = isinstance(stderr, Terminal)
    assert [line.split(",")[0] for line in lines] == ([] if on_terminal else ["heads: reading", "heads: testing"])
    assert stderr.getvalue().count("\r") == (4 if on_terminal else 0)  # the last clears the line


class Buffered(io.StringIO):
    """A file whose reader sees only what was flushed."""

    seen = ""

    def flush(self) -> None:
        self.seen = self.getvalue()


def test_a_line_of_a_log_can_be_read_while_the_work_goes_on() -> None:
    stdout = Buffered()
    with redirect_stderr(io.StringIO()), redirect_stdout(stdout), stages("heads", print) as show:
        show("reading", 0.0)
        assert stdout.seen == "heads: reading\n"


def test_the_time_left_is_known_after_a_part_of_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 130.0)
    assert time_left(100.0, 0.0) == ""
    assert time_left(100.0, 0.25) == ", about 2 min left" and time_left(100.0, 0.5) == ", about 30 s left"
