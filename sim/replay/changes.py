"""What is to be different from the measured run."""

import math
import re
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final


class ChangeError(ValueError):
    """A change that cannot be made: its key, the rule it breaks and what to write instead."""

    def __init__(self, key: str, rule: str, remedy: str) -> None:
        super().__init__(f"{key}: {rule}; {remedy}")
        self.key, self.rule, self.remedy = key, rule, remedy


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """How many times as fast as measured each part is; 1: as measured. ``latency`` alone multiplies a time.

    ``compute``: kernels other than communication; ``copies``: copies and fills of memory; ``bandwidth`` and
    ``latency``: of the network; ``host``: everything the host does between and in its calls, waiting excepted.
    ``kernels``: patterns of kernels' names (searched for, the first that fits counts), with a speed on top of these.
    """

    compute: float = 1.0
    copies: float = 1.0
    bandwidth: float = 1.0
    latency: float = 1.0
    host: float = 1.0
    kernels: tuple[tuple[re.Pattern[str], float], ...] = ()

    @property
    def touches_network(self) -> bool:
        """Return whether the network is another one."""
        return self.bandwidth != 1.0 or self.latency != 1.0

    def of_kernel(self, name: str) -> float:
        """Return the speed that a kernel's name gives it."""
        return next((speed for pattern, speed in self.kernels if pattern.search(name)), 1.0)


KEYS: Final = {
    "cluster.network.bandwidth": "bandwidth",
    "cluster.network.latency": "latency",
    "cluster.device.compute": "compute",
    "cluster.device.copies": "copies",
    "cluster.host.speed": "host",
}
"""What a user may set, and the field that it is."""

LARGEST_FACTOR: Final = 1e9
"""Times that are changed by more are lost beside the others, or endless."""
_KERNELS: Final = re.compile(r"kernels\[(.+)\]")
_FACTOR: Final = re.compile(r"([0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?)\s*x")


def parse_changes(assignments: tuple[str, ...]) -> Changes:
    """Return the changes of ``KEY=FACTORx`` texts. Raises ChangeError for an unknown key or no factor above 0."""
    values: dict[str, float] = {}
    kernels: list[tuple[re.Pattern[str], float]] = []
    for text in assignments:
        key, separator, value = text.rpartition("=")
        if not separator:
            raise ChangeError(text, "this is no change", "write KEY=2x")
        factor = _factor(key, value)
        named = _KERNELS.fullmatch(key.strip())
        if named:
            kernels.append((_pattern(key, named[1]), factor))
        elif key.strip() in KEYS:
            values[KEYS[key.strip()]] = factor
        else:
            close = get_close_matches(key.strip(), KEYS, n=1)
            known = f"{'did you mean ' + close[0] + '? ' if close else ''}known: {', '.join(KEYS)}, kernels[PATTERN]"
            raise ChangeError(key, "a measured run has nothing of this name to change", known)
    return Changes(**values, kernels=tuple(kernels))


def _factor(key: str, value: str) -> float:
    found = _FACTOR.fullmatch(value.strip())
    factor = float(found[1]) if found else 0.0
    if not found or not 0.0 < factor < math.inf:
        raise ChangeError(key, f"{value!r} is no factor above 0", "write how many times the measured value: 2x, 0.5x")
    if not 1.0 / LARGEST_FACTOR <= factor <= LARGEST_FACTOR:
        rule = f"{value!r} is no factor from {1.0 / LARGEST_FACTOR:g} to {LARGEST_FACTOR:g}"
        raise ChangeError(key, rule, "1000000x makes a part as good as free")
    return factor


def _pattern(key: str, text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        rule = f"{text!r} is no regular expression ({error})"
        raise ChangeError(key, rule, "write a part of the kernel's name") from error


def as_mapping(changes: Changes) -> dict[str, float]:
    """Return what differs from the measured run, by the user's keys."""
    given = {key: getattr(changes, name) for key, name in KEYS.items()}
    kernels = {f"kernels[{pattern.pattern}]": speed for pattern, speed in changes.kernels}
    return {key: value for key, value in {**given, **kernels}.items() if value != 1.0}
