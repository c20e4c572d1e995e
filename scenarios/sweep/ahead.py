"""What worker processes of a command import: begun before the command is imported, on another core."""

from collections.abc import Mapping, Sequence
from typing import Final

from backends.processes import import_ahead
from scenarios.sweep.workers import available_cores

IMPORTED: Final[Mapping[str, tuple[str, ...]]] = {
    "plan": ("scenarios.planning.searched",),
    "sweep": ("scenarios.sweep.run",),
}
"""By command, what its work in other processes needs."""
_ELSEWHERE: Final = frozenset({"--help", "-h", "--scheduler"})
_JOBS: Final = "--jobs"


def import_ahead_of(args: Sequence[str]) -> tuple[str, ...]:
    """Begin to import what the processes of a command line will need; return that, () where it has none here."""
    names = {word.partition("=")[0] for word in args}
    if names & _ELSEWHERE or _jobs(args) == "1":
        return ()
    imported = IMPORTED.get(args[0], ())
    import_ahead(imported)
    return imported


def _jobs(args: Sequence[str]) -> str:
    """Return how many processes a command line asks for, as it is written; without the option, one per core."""
    words = [part for word in args for part in word.split("=", 1)]
    return words[words.index(_JOBS) + 1] if _JOBS in words[:-1] else str(available_cores())
