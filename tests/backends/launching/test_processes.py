"""Local processes: calls, errors, ends; none of them outlives the process that started it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from backends.errors import LostProcessError
from backends.processes import BEAT, local_processes
from scenarios.sweep.workers import local_workers
from tests.processes import BOUND_S, ROOT, ended, first_line, needs_proc, started, until, workers

SLEEPERS = """
import time
from scenarios.sweep.workers import local_workers
with local_workers(2) as executor:
    calls = [executor.submit(time.sleep, 300) for _ in range(2)]
    print("submitted", flush=True)
    [call.result() for call in calls]
"""

SCRIPT = """
import sys
from concurrent.futures import ThreadPoolExecutor
from scenarios.sweep.workers import local_workers
print("script")
def both(number):
    with local_workers(2) as executor:
        return list(executor.map(divmod, (number, 9), (2, 4)))
with ThreadPoolExecutor(2) as threads:
    print(list(threads.map(both, (7, 8))), sys.modules["__main__"].SCRIPT_HAS_THIS)
"""


def test_a_script_runs_once_and_needs_no_guard(tmp_path) -> None:
    """Started processes do not run the script again, also where two threads start them; it stays what it was."""
    script = tmp_path / "script.py"
    script.write_text("SCRIPT_HAS_THIS = 3\n" + SCRIPT, encoding="utf-8")
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, script], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "script\n[[(3, 1), (2, 1)], [(4, 0), (2, 1)]] 3\n"


@needs_proc
def test_processes_answer_raise_and_end() -> None:
    """Results and errors of calls come back; a call that ends two processes breaks, and no other; then all are gone."""
    with local_workers(2) as executor:
        assert list(executor.map(divmod, (7, 9), (2, 4))) == [(3, 1), (2, 1)]
        with pytest.raises(ZeroDivisionError):
            executor.submit(divmod, 1, 0).result()
        with pytest.raises(LostProcessError, match="a process ended before its work was done"):
            executor.submit(os._exit, 3).result()
        until(lambda: len(workers(os.getpid())) == 2, "no other process takes the place of one that ended")
        assert list(executor.map(divmod, (7, 9), (2, 4))) == [(3, 1), (2, 1)]
    assert workers(os.getpid()) == []


def test_a_call_whose_process_ended_runs_once_more(tmp_path) -> None:
    """Where the system ends a process in the middle of a call, the answer comes all the same."""
    with local_workers(2) as executor:
        assert executor.submit(ended_at_first, tmp_path / "began").result() == "second"


def ended_at_first(began: Path) -> str:
    """End the process; say so at the second call."""
    if began.exists():
        return "second"
    began.touch()
    os.kill(os.getpid(), signal.SIGKILL)
    return "first"


@needs_proc
def test_an_error_ends_work_at_once() -> None:
    """An error in the block does not wait for calls that run for long."""

    def fail() -> None:
        with local_workers(2) as executor:
            executor.submit(time.sleep, 300)
            raise ZeroDivisionError

    began_s = time.monotonic()
    with pytest.raises(ZeroDivisionError):
        fail()
    assert time.monotonic() - began_s < BOUND_S
    assert workers(os.getpid()) == []


@needs_proc
@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM])
def test_processes_end_with_the_one_that_started_them(signum: signal.Signals) -> None:
    """A process that is ended without a chance to tidy up takes its workers with it, and they say nothing."""
    with started(SLEEPERS) as parent:
        assert first_line(parent) == "submitted"
        until(lambda: len(workers(parent.pid)) == 2, "both calls have a process")
        found = workers(parent.pid)
        parent.send_signal(signum)
        assert ended(parent, found) == ""
    assert (len(found), parent.returncode) == (2, -signum)


@needs_proc
def test_a_process_beats_before_it_has_work_and_is_ended_where_it_is_stopped() -> None:
    """Beats come from the start; SIGSTOP does not keep a process from its end."""

    def stop() -> None:
        with local_processes(1, beat_s=0.05) as (process,):
            assert [process.line.receive() for _ in range(3)] == [BEAT] * 3
            [pid] = workers(os.getpid())
            os.kill(pid, signal.SIGSTOP)
            raise ZeroDivisionError

    began_s = time.monotonic()
    with pytest.raises(ZeroDivisionError):
        stop()
    assert workers(os.getpid()) == []
    assert time.monotonic() - began_s < BOUND_S


AHEAD = """
from backends.processes import import_ahead
from scenarios.sweep.workers import local_workers
import_ahead(["wave"])
with local_workers(2, imported=["wave"]) as executor:
    print(*executor.map(eval, ["'wave' in __import__('sys').modules"] * 2), "wave" in __import__("sys").modules)
"""


def test_what_was_imported_ahead_is_there_when_processes_begin() -> None:
    """Processes have the modules that a server has begun to import before; the process that asks for them has not."""
    done = subprocess.run(
        [sys.executable, "-c", AHEAD], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "True True False\n")
