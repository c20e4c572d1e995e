"""Signals end every command soon, with one line and no traceback, and leave neither processes nor files behind."""

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from tests.processes import ROOT, children, ended, first_line, needs_proc, processor_s, started, until, workers
from traces.current_folders import collecting_temporary_folders
from traces.files import replacing
from traces.signals import undisturbed
from traces.temporary_folders import temporary_folder

TINY = str(ROOT / "scenarios" / "library" / "tiny-gpt-two-stages.yaml")
LARGE = str(ROOT / "scenarios" / "library" / "llama3-405b-16384-h100.yaml")
LARGEST = str(ROOT / "scenarios" / "library" / "clusters" / "llama3-405b-98304-fat-tree.yaml")
SEEDS = f"seed={','.join(map(str, range(100)))}"  # far more than the tests wait for
MEASURED = str(ROOT / "traces" / "published" / "megatron_sc21_table1.yaml")

COMMAND_LINE = "from scenarios.cli import main; main()"

LONG_WRITING = """
import hashlib
from scenarios import cli
from scenarios.results import outcome_files

def write(timeline, path):
    path.write_text("half")
    hashlib.pbkdf2_hmac("sha512", b"", b"", 2**31 - 1)  # a call of a library that takes minutes

outcome_files.write_perfetto = write
cli.main()
"""

SWALLOWING = """
import time
from scenarios.stopping import ended_by_signals

with ended_by_signals():
    while True:
        try:
            print("ready", flush=True)
            time.sleep(300)
        except BaseException:
            pass
"""


@needs_proc
@pytest.mark.parametrize(
    ("args", "num_workers", "signum"),
    [
        (("sweep", LARGE, "--set", SEEDS, "--jobs", "2"), 2, signal.SIGTERM),
        (("sweep", LARGE, "--set", SEEDS, "--jobs", "2"), 2, signal.SIGINT),
        (("fit", MEASURED, "--constant", "software.launch", "--jobs", "2"), 2, signal.SIGINT),
        (("execute", TINY, "--steps", "1000"), 2, signal.SIGINT),
    ],
    ids=["kill sweep", "Ctrl-C sweep", "Ctrl-C fit", "Ctrl-C execute"],
)
def test_commands_with_workers_end_soon(args: tuple[str, ...], num_workers: int, signum: signal.Signals) -> None:
    """While workers are busy, a signal ends the command and all of them, and only the command says so."""
    with started(COMMAND_LINE, *args) as command:
        until(lambda: len(workers(command.pid)) == num_workers, "there are too few workers", bound_s=180.0)
        found = workers(command.pid)
        until(lambda: min(map(processor_s, found)) > 0.5, "the workers do not work")
        if signum is signal.SIGINT:
            os.killpg(command.pid, signum)  # as a terminal does
        else:
            command.send_signal(signum)
        assert ended(command, found) == f"stopped by {signum.name}\n"
        assert command.returncode in {-signum, 128 + signum}


@needs_proc
def test_ctrl_c_ends_a_simulation_quietly() -> None:
    """In the middle of a long simulation Ctrl-C ends the command with one line; a shell sees exit code 130."""
    code = f"import subprocess\nwork = [{sys.executable!r}, '-c', {COMMAND_LINE!r}, {LARGEST!r}]\n"
    code += "shell = 'trap : INT; \"$@\"; echo $?'\n"
    code += "print(subprocess.run(['sh', '-c', shell, 'sh', *work], capture_output=True, text=True))\n"
    signals = "import signal\nsignal.signal(signal.SIGINT, lambda *_: None)\n"
    with started(signals + code) as process:
        until(lambda: any(processor_s(pid) > 0.5 for pid in _below(process.pid)), "nothing is simulated")
        os.killpg(process.pid, signal.SIGINT)
        assert ended(process) == ""
        assert process.stdout is not None
        assert "130\\n', stderr='stopped by SIGINT\\n'" in process.stdout.read()


def test_nothing_half_written_is_left(tmp_path: Path) -> None:
    """A signal while files are written removes them and their new folders, also in the middle of a long call."""
    out = tmp_path / "new" / "out"
    with started(LONG_WRITING, TINY, "--out", str(out)) as command:
        until(lambda: list(out.glob(".meshtwin-*/timeline.json.gz")), "nothing is written")
        time.sleep(0.2)
        command.send_signal(signal.SIGTERM)
        assert ended(command) == "stopped by SIGTERM\n"
        assert command.returncode == 128 + signal.SIGTERM
    assert list(tmp_path.iterdir()) == []


def test_a_swallowed_exception_does_not_keep_the_process() -> None:
    """Where some code goes on after the exception, the process ends all the same."""
    with started(SWALLOWING) as process:
        assert first_line(process) == "ready"
        process.send_signal(signal.SIGTERM)
        assert ended(process) == "stopped by SIGTERM\n"
        assert process.returncode == 128 + signal.SIGTERM


def test_signals_that_are_ignored_stay_ignored() -> None:
    """As under nohup: who starts the program with a signal ignored wants it to go on."""
    ignoring = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    with started(ignoring + SWALLOWING) as process:
        assert first_line(process) == "ready"
        process.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert ended(process) == "stopped by SIGINT\n"


def _below(parent: int) -> list[int]:
    """Return the processes that a process has started, and those that they have."""
    found = children(parent)
    return [*found, *(pid for child in found for pid in children(child))]


class _Told(BaseException):
    """What the handler of these tests raises."""


@pytest.fixture
def telling() -> None:
    """Let SIGTERM raise an exception, as in the command line."""

    def tell(*_: object) -> None:
        raise _Told

    before = signal.signal(signal.SIGTERM, tell)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.usefixtures("telling")
def test_signals_wait_for_a_short_block() -> None:
    """A signal within the block acts right after it, once."""
    done = []

    def work() -> None:
        with undisturbed():
            signal.raise_signal(signal.SIGTERM)
            done.append(1)

    with pytest.raises(_Told):
        work()
    assert done == [1]
    with pytest.raises(_Told):
        signal.raise_signal(signal.SIGTERM)


@pytest.mark.usefixtures("telling")
def test_a_signal_removes_temporary_files(tmp_path: Path) -> None:
    """The exception of a handler removes a temporary folder like any other error."""

    def work() -> None:
        with replacing(tmp_path / "file") as temporary:
            temporary.write_text("half")
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(_Told):
        work()
    assert list(tmp_path.iterdir()) == []


def test_folders_of_blocks_that_never_ended_can_be_removed(tmp_path: Path) -> None:
    """An exception between a block and its end leaves a folder, which the program knows and removes."""
    with collecting_temporary_folders() as folders:
        block = temporary_folder(tmp_path / "new", "x-", new_parents=[tmp_path / "new"])
        (block.__enter__() / "file").touch()
        assert len(list(tmp_path.glob("new/x-*/file"))) == 1
        folders.remove()
        assert list(tmp_path.iterdir()) == []
        with temporary_folder(tmp_path, "y-"):
            pass
        folders.remove()
