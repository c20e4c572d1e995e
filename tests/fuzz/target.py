"""Give one input to one reader, and tell what should not have happened."""

import random
import shutil
import signal
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from types import FrameType
from typing import Final

from scenarios.cli import main
from scenarios.commands.shared.refusals import INPUT_ERRORS, RUN_ERRORS
from scenarios.errors import printable
from tests.fuzz.mutate import Case, mutated

MOST_CPU_S: Final = 20.0
"""No small input may take longer."""
_OWN: Final = 0.6
"""How often an input is changed in a target's own way, where it has one."""
_MORE: Final = 0.25
"""How often one more change follows."""
MOST_WORDS: Final = 4_000
"""Characters of a message that a person reads."""
ROOMS: Final = ("scenarios", "backends", "sim", "costmodels", "traces")


class TooLongError(BaseException):
    """The reader took more than its time."""


class BadAnswerError(Exception):
    """The command line answered as it must not: another exit code, a traceback, signs that no terminal should get."""


@dataclass(frozen=True)
class Target:
    """A reader: ``seeds`` are good inputs, ``read`` takes the folder that holds one, and returns an exit code.

    ``change``: another way to change an input than those that know no more than its files' formats.
    """

    name: str
    seeds: Callable[[], list[Case]]
    read: Callable[[Path], int]
    change: Callable[[random.Random, Case], Case] | None = None


@dataclass(frozen=True)
class Finding:
    """What one input did: the error in short (``mark`` tells errors apart), and the traceback."""

    target: str
    case: Case
    mark: str
    words: str


def case_of(target: Target, seeds: list[Case], number: int, start: int = 0) -> Case:
    """Return the n-th input of a target: the same for the same numbers."""
    rng = random.Random(f"{target.name}:{start}:{number}")
    case, goes_on = rng.choice(seeds), True
    while goes_on:
        own = target.change is not None and rng.random() < _OWN
        case = target.change(rng, case) if own and target.change else mutated(rng, case, seeds)
        goes_on = rng.random() < _MORE
    return case


def attempt(target: Target, case: Case, folder: Path, most_cpu_s: float = MOST_CPU_S) -> Finding | None:
    """Return what is wrong with how a target takes an input; None where it reads or refuses it as it should."""
    try:
        taken(target, case, folder, most_cpu_s)
    except (*INPUT_ERRORS, *RUN_ERRORS) as error:
        if not str(error).strip():
            return Finding(target.name, case, f"{type(error).__name__} without words", "")
    except (Exception, TooLongError) as error:
        return Finding(target.name, case, _mark(error), "".join(traceback.format_exception(error))[-6_000:])
    return None


def taken(target: Target, case: Case, folder: Path, most_cpu_s: float = MOST_CPU_S) -> int:
    """Return the exit code of a target for an input, which is laid into a folder. Raises whatever the reader raises."""
    _empty(folder)
    for name, raw in case.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(raw)
    with limited(most_cpu_s), warnings.catch_warnings():
        warnings.simplefilter("error")
        return target.read(folder)


def _empty(folder: Path) -> None:
    """Make a folder, or leave nothing in it: to remove it and make it again would take milliseconds on a disk."""
    folder.mkdir(parents=True, exist_ok=True)
    for child in folder.iterdir():
        if child.is_dir() and not child.is_symlink():
            shutil.rmtree(child)
        else:
            child.unlink()


@contextmanager
def limited(most_cpu_s: float) -> Iterator[None]:
    """Raise TooLongError once so much processor time is used."""

    def stop(_signal: int, _frame: FrameType | None) -> None:
        raise TooLongError

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, most_cpu_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def run(*args: object) -> int:
    """Run ``simulate`` and return its exit code.

    Raises BadAnswerError for another answer than a result, or a message and its exit code.
    """
    out, err = StringIO(), StringIO()
    code = 0
    with redirect_stdout(out), redirect_stderr(err):
        try:
            main([str(arg) for arg in args])
        except SystemExit as done:
            code = done.code if isinstance(done.code, int) else 0
    words = err.getvalue()
    problem = ""
    if code not in {0, 1, 2}:
        problem = f"exit code {code}"
    elif code == 2 and not words.strip():
        problem = "no message"
    elif "Traceback" in words or "more memory than there is" in words:
        problem = "traceback or no memory"
    elif len(words) > MOST_WORDS and code == 2:
        problem = f"message of {len(words)} characters"
    else:
        for text in (out.getvalue(), words):
            if printable(text) != text:
                problem = "signs that are not to be printed"
    if problem:
        raise BadAnswerError(f"{problem}: {words[:600]!r}")
    return code


def _mark(error: BaseException) -> str:
    """Return what tells an error apart from others: its kind, and the innermost line of this project."""
    frames = traceback.extract_tb(error.__traceback__)
    inside = [
        f for f in frames if any(f"/{room}/" in f.filename for room in ROOMS) and "site-packages" not in f.filename
    ]
    place = f"{Path(inside[-1].filename).name}:{inside[-1].name}" if inside else "outside"
    words = str(error)[:80] if isinstance(error, BadAnswerError) else ""
    return f"{type(error).__name__} in {place} {words}".strip()
