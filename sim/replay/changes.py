"""Changes to a measured run."""

import math
import re
from collections.abc import Collection
from difflib import get_close_matches
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from costmodels.units import LARGEST_MULTIPLE, MULTIPLE
from traces.kineto.breakdown import COMMUNICATION, COMPUTE, MEMORY


class ChangeError(ValueError):
    """An impossible change: its key, the broken rule and the remedy."""

    def __init__(self, key: str, rule: str, remedy: str) -> None:
        super().__init__(f"{key}: {rule}; {remedy}")
        self.key, self.rule, self.remedy = key, rule, remedy


class RankChange(Struct, frozen=True):
    """The speed of a part of some ranks; ``selection``: the ranks as the user wrote them, ``3`` or ``0-7,12``."""

    selection: str
    ranks: tuple[range, ...]
    part: str
    speed: float


class Changes(Struct, frozen=True, kw_only=True):
    """The speed of each part relative to the measured one; 1: as measured. Only ``latency`` multiplies a time.

    ``compute``: kernels other than communication.
    ``copies``: copies and fills of memory.
    ``bandwidth`` and ``latency``: of the network.
    ``host``: the host's own time between and in its calls, without waits.
    ``kernels``: regular expressions for kernel names, each with a further speed; the first match counts.
    ``ranks``: further speeds of some ranks' parts.
    """

    compute: float = 1.0
    copies: float = 1.0
    bandwidth: float = 1.0
    latency: float = 1.0
    host: float = 1.0
    kernels: tuple[tuple[re.Pattern[str], float], ...] = ()
    ranks: tuple[RankChange, ...] = ()

    @property
    def touches_network(self) -> bool:
        """Return whether the network changes."""
        return self.bandwidth != 1.0 or self.latency != 1.0

    def of_kernel(self, name: str) -> float:
        """Return the speed for a kernel's name."""
        return next((speed for pattern, speed in self.kernels if pattern.search(name)), 1.0)

    def of_rank(self, rank: int) -> "Changes":
        """Return the changes for one rank."""
        result = self
        for change in self.ranks:
            if any(rank in chosen for chosen in change.ranks):
                result = replace(result, **{change.part: getattr(result, change.part) * change.speed})
        return result


HOST_SPEED: Final = "host.speed"
KEYS: Final = {
    "cluster.network.bandwidth": "bandwidth",
    "cluster.network.latency": "latency",
    "cluster.device.compute": "compute",
    "cluster.device.copies": "copies",
    f"cluster.{HOST_SPEED}": "host",
}
"""Keys that a user may set, with their fields."""

RANK_KEYS: Final = {"device.compute": "compute", "device.copies": "copies", HOST_SPEED: "host"}
"""Keys that a user may set for some ranks: ``ranks[3].device.compute``."""

_CHANGES: Final = {"bandwidth": COMMUNICATION, "latency": COMMUNICATION, "compute": COMPUTE, "copies": MEMORY}
"""The class of activities that each field changes."""

_WORDS: Final = {COMPUTE: "kernel that computes", MEMORY: "copies and fills of memory"}

_KERNELS: Final = re.compile(r"kernels\[(.+)\]")
_RANKS: Final = re.compile(r"ranks\[([^\]]*)\]\.(.+)")
_RANGE: Final = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")


def parse_changes(assignments: tuple[str, ...]) -> Changes:
    """Return the changes of ``KEY=FACTORx`` texts; of two changes of one key the later counts.

        parse_changes(["cluster.device.compute=2x", "cluster.network.latency=0.5x"])

    Raises ChangeError for an unknown key, and for a value that is no factor above 0.
    """
    values: dict[str, float] = {}
    kernels: dict[str, tuple[re.Pattern[str], float]] = {}
    ranks: dict[str, RankChange] = {}
    for text in assignments:
        written, separator, value = text.rpartition("=")
        key = written.strip()
        if not separator:
            raise ChangeError(text, "this is no change", "write KEY=2x")
        if named := _KERNELS.fullmatch(key):
            kernels[key] = _pattern(key, named[1]), _factor(key, value)
        elif chosen := _RANKS.fullmatch(key):
            ranks[key] = _rank_change(key, chosen[1], chosen[2], _factor(key, value))
        elif key in KEYS:
            values[KEYS[key]] = _factor(key, value)
        else:
            raise _unknown(key, [*KEYS, *(f"ranks[RANKS].{part}" for part in RANK_KEYS), "kernels[PATTERN]"])
    return Changes(**values, kernels=tuple(kernels.values()), ranks=tuple(ranks.values()))


def refuse_missing(changes: Changes, ranks: Collection[int], kernels: Collection[str]) -> None:
    """Raise ChangeError for changes of ranks or kernels that are missing from a recorded run."""
    for change in changes.ranks:
        absent = next((rank for chosen in change.ranks for rank in chosen if rank not in ranks), None)
        if absent is not None:
            there = f"there are {len(ranks):,}, from {min(ranks)} to {max(ranks)}"
            there = there if len(ranks) > 1 else f"there is rank {min(ranks)} alone"
            raise ChangeError(f"ranks[{change.selection}]", f"there is no rank {absent} here", there)
    for pattern, _ in changes.kernels:
        if not any(pattern.search(name) for name in kernels):
            rule, remedy = "no kernel of this run has such a name", "simulate trace shows the names of the longest"
            raise ChangeError(f"kernels[{pattern.pattern}]", rule, remedy)


def refuse_without_effect(changes: Changes, classes: Collection[str]) -> None:
    """Raise ChangeError for changes of a class of device activities that a run does not have.

    ``classes``: the classes of the run's activities, as a breakdown counts them.
    """
    for key, name in KEYS.items():
        if name in _CHANGES and getattr(changes, name) != 1.0 and (_CHANGES[name] not in classes):
            rule = f"this run has no {_WORDS.get(_CHANGES[name], _CHANGES[name])} that it could change"
            raise ChangeError(key, rule, "leave it out")


def _unknown(key: str, known: list[str]) -> ChangeError:
    close = get_close_matches(key, known, n=1)
    remedy = f"{'did you mean ' + close[0] + '? ' if close else ''}known: {', '.join(known)}"
    return ChangeError(key, "a measured run has no part of this name", remedy)


def _rank_change(key: str, selection: str, part: str, factor: float) -> RankChange:
    found = [_RANGE.fullmatch(piece.strip()) for piece in selection.split(",")]
    chosen = tuple(range(int(match[1]), int(match[2] or match[1]) + 1) for match in found if match)
    if len(chosen) < len(found) or not all(chosen):
        raise ChangeError(key, f"{selection!r} is no choice of ranks", "write ranks[3] or ranks[0-7,12]")
    if part not in RANK_KEYS:
        raise _unknown(key, [f"ranks[{selection}].{part}" for part in RANK_KEYS])
    return RankChange(selection, chosen, RANK_KEYS[part], factor)


def _factor(key: str, value: str) -> float:
    found = MULTIPLE.fullmatch(value.strip())
    factor = float(found[1]) if found else 0.0
    if not found or not 0.0 < factor < math.inf:
        raise ChangeError(key, f"{value!r} is no factor above 0", "write a multiple of the measured value: 2x, 0.5x")
    if not 1.0 / LARGEST_MULTIPLE <= factor <= LARGEST_MULTIPLE:
        rule = f"{value!r} is no factor from {1.0 / LARGEST_MULTIPLE:g} to {LARGEST_MULTIPLE:g}"
        raise ChangeError(key, rule, "1000000x makes a part almost free")
    return factor


def _pattern(key: str, text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        rule = f"{text!r} is no regular expression ({error})"
        raise ChangeError(key, rule, "write a part of the kernel's name") from error


def as_mapping(changes: Changes) -> dict[str, float]:
    """Return the changes by the user's keys."""
    given = {key: getattr(changes, name) for key, name in KEYS.items()}
    kernels = {f"kernels[{pattern.pattern}]": speed for pattern, speed in changes.kernels}
    parts = {field: part for part, field in RANK_KEYS.items()}
    ranks = {f"ranks[{change.selection}].{parts[change.part]}": change.speed for change in changes.ranks}
    return {key: value for key, value in {**given, **ranks, **kernels}.items() if value != 1.0}
