"""Real processes that tests start, signal and look for in /proc."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
AS_FROM_A_TERMINAL = "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
"""A shell starts its background jobs with Ctrl-C ignored; a test that sends it must not inherit that."""
BOUND_S = 20.0
"""What tests allow for an end that takes 2 to 5 s: a busy machine must not fail them."""

needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds processes in /proc")


@contextmanager
def started(code: str, *args: str, **variables: str) -> Iterator[subprocess.Popen[str]]:
    """Yield a Python process that runs code of this repository, in a group of its own as a shell would start it.

    ``variables``: more of the environment.
    """
    environment = os.environ | {"PYTHONPATH": str(ROOT)} | variables
    with subprocess.Popen(
        [sys.executable, "-c", AS_FROM_A_TERMINAL + code, *args], cwd=ROOT, env=environment, text=True,
        start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            process.kill()


def first_line(process: subprocess.Popen[str]) -> str:
    """Wait for the first line that a process prints, and return it."""
    assert process.stdout is not None
    return process.stdout.readline().rstrip()


def children(parent: int) -> list[int]:
    """Return the processes that a process has started, oldest first."""
    return sorted(pid for pid in _processes() if _parent(pid) == parent)


def workers(parent: int) -> list[int]:
    """Return the processes that work for a process, oldest first: its own, and those of a server that forks for it."""
    own = [pid for pid in children(parent) if is_worker(pid)]
    return [worker for pid in own for worker in (children(pid) if _forks(pid) else [pid])]


def _forks(pid: int) -> bool:
    return "forkserver" in Path(f"/proc/{pid}/cmdline").read_text()


def is_worker(pid: int) -> bool:
    """Return whether a process exists and is one that was started to work for another."""
    try:
        return any(start in Path(f"/proc/{pid}/cmdline").read_text() for start in ("spawn_main", "forkserver"))
    except OSError:
        return False


def processor_s(pid: int) -> float:
    """Return the processor time that a process has taken, 0 where there is none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def until(condition: Callable[[], object], what: str, bound_s: float = 60.0) -> float:
    """Wait until a condition holds; return how long that took. Fails the test where it takes too long."""
    began_s = time.monotonic()
    while not condition():
        if time.monotonic() - began_s > bound_s:
            pytest.fail(f"waited {bound_s:g} s in vain: {what}")
        time.sleep(0.05)  # to look is to read all of /proc
    return time.monotonic() - began_s


def ended(process: subprocess.Popen[str], pids: Sequence[int] = (), bound_s: float = BOUND_S) -> str:
    """Wait until a process and others have ended, all within the bound; return its standard error."""
    until(lambda: process.poll() is not None and not any(map(is_worker, pids)), "some processes live on", bound_s)
    assert process.stderr is not None
    return process.stderr.read()


def _processes() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdigit())


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
    except OSError:
        return -1
