"""What worker processes of a command import: begun before the command is imported, on another core."""

from collections.abc import Mapping, Sequence
from typing import Final

from backends.processes import import_ahead
from scenarios.sweep.workers import available_cores

OF_PLAN: Final = ("scenarios.planning.searched",)
OF_SWEEP: Final = ("scenarios.sweep.run",)
"""What the work of a command in other processes needs."""
IMPORTED: Final[Mapping[str, tuple[str, ...]]] = {"plan": OF_PLAN, "sweep": OF_SWEEP}
"""The same by command."""
_ELSEWHERE: Final = frozenset({"--help", "-h", "--scheduler"})
_JOBS: Final = "--jobs"


def import_ahead_of(args: Sequence[str]) -> None:
    """Begin to import what the processes of a command line will need, where it has such processes."""
    names = {word.partition("=")[0] for word in args}
    if args[0] in IMPORTED and not names & _ELSEWHERE and _jobs(args) != "1":
        import_ahead(IMPORTED[args[0]])


def _jobs(args: Sequence[str]) -> str:
    """Return how many processes a command line asks for, as it is written; without the option, one per core."""
    words = [part for word in args for part in word.split("=", 1)]
    return words[words.index(_JOBS) + 1] if _JOBS in words[:-1] else str(available_cores())
