"""The request to stop by a signal."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from tests.program import ROOT, SIGNALS
from training.device import StopRequest


@pytest.fixture
def handlers() -> Iterator[None]:
    """Restores the handlers of the signals after the test."""
    old_handlers = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in old_handlers.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_is_remembered_and_gives_the_exit_status_of_a_shell(number: int, handlers: None) -> None:
    signal.signal(number, signal.SIG_DFL)  # nohup ignores SIGHUP
    stop = StopRequest()
    assert stop.signal is None and stop.exit_status == 0
    signal.raise_signal(number)
    assert stop.signal == number and stop.exit_status == 128 + number


def test_an_ignored_signal_and_a_handler_of_another_library_stay(handlers: None) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    calls: list[int] = []
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
