"""antecedent_lab/progress.py: what long work prints about its time."""

import io
from contextlib import redirect_stderr, redirect_stdout

import pytest

from antecedent_lab.progress import stages


@pytest.mark.parametrize("is_terminal", [False, True])
def test_a_stage_is_a_line_that_is_read_at_once_in_a_log_and_overwritten_on_a_terminal(is_terminal: bool) -> None:
    log, stderr = Stream(), Stream()
    stderr.is_terminal = is_terminal
    with redirect_stderr(stderr), redirect_stdout(log), stages("heads", print) as show:
        for stage, share in (("reading", 0.0), ("reading", 0.1), ("testing", 0.2)):
            show(stage, share)
        lines = [line.split(",")[0] for line in log.seen.splitlines()]
    assert lines == ([] if is_terminal else ["heads: reading", "heads: testing"])
    assert stderr.getvalue().endswith("\r") == is_terminal  # the line is cleared


class Stream(io.StringIO):
    """A terminal or a file; `seen` is what was flushed."""

    seen = ""
    is_terminal = False

    def isatty(self) -> bool:
        return self.is_terminal

    def flush(self) -> None:
        self.seen = self.getvalue()
