"""The request to stop by a signal."""

import signal
import subprocess
import sys
import time

import pytest

from tests.program import ROOT, process_state
from training.device import StopRequest


def test_an_ignored_signal_and_a_handler_of_another_library_stay() -> None:
    calls: list[int] = []
    with process_state():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, lambda number, _: calls.append(number))
        stop = StopRequest()
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
    assert stop.signal is None and calls == [signal.SIGTERM]


WAIT = (
    "import signal, time\nfor number in (2, 15): signal.signal(number, signal.SIG_DFL)\n"
    "from training.device import StopRequest\nstop = StopRequest()\nprint('ready', flush=True)\n"
    "while True: time.sleep(0.01)"
)


@pytest.mark.slow
def test_a_second_signal_ends_the_process_unless_it_is_an_echo_of_the_first() -> None:
    """torchrun passes Ctrl-C on to processes that got it from the terminal too."""
    with subprocess.Popen([sys.executable, "-c", WAIT], cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout and process.stdout.readline() == "ready\n"
        statuses = []
        for seconds in (0.2, 2.2, 0.5):
            process.send_signal(signal.SIGTERM)
            time.sleep(seconds)
            statuses.append(process.poll())
        process.kill()
    assert statuses == [None, None, -signal.SIGTERM]
