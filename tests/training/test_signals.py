"""Signals as a wish to stop, and the end of whoever shares out runs side by side as one of them."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from training.signals import Stopped, StopRequest, is_orphan

ROOT = Path(__file__).parents[2]
_WORKER = """
import multiprocessing, time
from pathlib import Path

def work(log):
    from training.signals import StopRequest
    stop = StopRequest()
    log.write_text("begun")
    end = time.monotonic() + 20
    while stop.signal is None and time.monotonic() < end:
        time.sleep(0.01)
    log.write_text(f"status {stop.exit_status}")

if __name__ == "__main__":
    multiprocessing.get_context("fork").Process(target=work, args=[Path(LOG)]).start()
    time.sleep(30)
"""


def becomes(log: Path, said: str) -> None:
    end = time.monotonic() + 20
    while not log.exists() or log.read_text() != said:
        assert time.monotonic() < end, log.read_text() if log.exists() else "it has not begun"
        time.sleep(0.01)


def test_a_worker_whose_parent_was_ended_is_asked_to_stop_as_if_by_the_signal(tmp_path: Path) -> None:
    log = tmp_path / "log"
    parent = subprocess.Popen([sys.executable, "-c", _WORKER.replace("LOG", repr(str(log)))], cwd=ROOT)
    try:
        becomes(log, "begun")
    finally:
        parent.kill()
        parent.wait()
    becomes(log, "status 143")


def test_a_process_that_no_launcher_has_started_outlives_its_shell() -> None:
    """As under nohup: only a worker hangs on who started it."""
    assert not is_orphan()


def test_a_batch_that_comes_after_a_signal_is_not_given_out() -> None:
    before = {one: signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)}
    try:
        stop, given = StopRequest(), []
        assert stop.signal is None
        with pytest.raises(Stopped):
            for one in stop.before_each(range(5)):
                given.append(one)
                if one == 2:
                    signal.raise_signal(signal.SIGTERM)
        assert given == [0, 1, 2] and stop.exit_status == 143
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL  # a second one ends the process
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


_PASSED_ON = """
import os, run.signals, signal, time
training.signals._ONE = 0.5
stop = training.signals.StopRequest(is_shared=True)
for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGINT, signal.SIGINT):
    os.kill(os.getpid(), number)
stop.close()
os.kill(os.getpid(), signal.SIGTERM)
print("saved", stop.exit_status, flush=True)
time.sleep(0.6)
os.kill(os.getpid(), signal.SIGTERM)
print("still here")
"""


def test_a_signal_that_torchrun_has_passed_on_is_one_with_the_first_and_a_later_one_ends_the_process() -> None:
    ran = subprocess.run([sys.executable, "-c", _PASSED_ON], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout, ran.stderr) == (-signal.SIGTERM, "saved 143\n", "")


def test_a_closed_terminal_is_a_wish_to_stop_but_not_under_nohup() -> None:
    """In a process of its own, for its handlers stay."""
    code = "import os, signal; from training.signals import StopRequest; stop = StopRequest()\n"
    code += "os.kill(os.getpid(), signal.SIGHUP); print(stop.signal, stop.exit_status)"
    for before, said in (([], "1 129"), (["nohup"], "None 128")):
        door = [*before, sys.executable, "-c", code]
        ran = subprocess.run(door, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        assert ran.stdout.strip() == said, ran.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_that_comes_while_python_tidies_up_changes_the_exit_status_no_more(number: int) -> None:
    code = "import os, sys; from training.signals import StopRequest\n"
    code += f"class Late:\n    def __del__(self, kill=os.kill, me=os.getpid()): kill(me, {int(number)})\n"
    code += "late = Late(); stop = StopRequest(); print('done')\n"
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "done\n", "")


_OF_A_QUEUE = """
import os, signal
signal.signal(signal.SIGUSR2, lambda *_: print("put back"))
from training.signals import StopRequest
stop = StopRequest()
os.kill(os.getpid(), signal.SIGUSR2)
print(stop.signal, signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL)
stop.close()
print("saved")
stop.pass_on()
"""


def test_a_queue_whose_signal_was_heard_has_its_way_once_everything_is_saved() -> None:
    """And a signal that nobody waits for is left alone; without a queue nothing is passed on."""
    ran = subprocess.run([sys.executable, "-c", _OF_A_QUEUE], cwd=ROOT, capture_output=True, text=True, check=False)
    expected = f"{int(signal.SIGUSR2)} True\nsaved\nput back\n"
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, expected, "")
    before = {one: signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        stop = StopRequest()
        signal.raise_signal(signal.SIGTERM)
        stop.close()
        stop.pass_on()
        assert stop.exit_status == 143
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGUSR2, 7)])
def test_a_job_that_sigterm_is_not_to_end_waits_for_what_does_once_everything_is_saved(
    number: int, status: int, tmp_path: Path
) -> None:
    """Its second SIGTERM or its queue's own signal; and what one run of a sweep has set is no queue's to the next."""
    code = "import os, signal, sys, pathlib\n"
    code += "signal.signal(signal.SIGTERM, lambda *_: None); signal.signal(signal.SIGUSR2, lambda *_: sys.exit(7))\n"
    code += "from training.signals import StopRequest; stop = StopRequest()\n"
    code += "os.kill(os.getpid(), signal.SIGTERM); stop.close()\n"
    code += f"pathlib.Path({str(tmp_path / 'saved')!r}).touch(); stop.pass_on(); print('gone on')"
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True) as job:
        end = time.monotonic() + 20
        while not (tmp_path / "saved").exists():
            assert time.monotonic() < end
            time.sleep(0.01)
        time.sleep(0.2)
        assert job.poll() is None
        job.send_signal(number)
        assert job.communicate(timeout=20)[0] == "" and job.returncode == status
    again = "from training.signals import StopRequest; import signal\nStopRequest().close(); stop = StopRequest()\n"
    again += "signal.raise_signal(signal.SIGTERM); stop.close(); stop.pass_on(); print('gone on')"
    ran = subprocess.run(
        [sys.executable, "-c", again], cwd=ROOT, capture_output=True, text=True, timeout=20, check=False
    )
    assert ran.stdout == "gone on\n"
