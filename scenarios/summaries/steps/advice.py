"""The advice on a step: the ``advice`` object of summary.json (docs/results.md explains its keys)."""

from dataclasses import dataclass, field
from typing import Literal

from scenarios.summaries.as_json import ABSENT

AdviceLevel = Literal["quick", "full"]
"""How much is tried: what a bounded predicted time allows, or all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedChange:
    """A change of the scenario, and the step with it.

    ``set``: overrides, ``key=value``, that go together. ``gain``: the fraction that they add to the throughput. Time
    and gain are None where only the memory was looked at, as it does not fit. ``fits_memory`` and the fullest rank's
    peak are None where nothing is held. ``estimated``: the time follows from steps with fewer micro-batches.
    """

    set: tuple[str, ...]
    fits_memory: bool | None
    peak_memory_bytes: int | None
    iteration_time_s: float | None
    gain: float | None
    estimated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class UntriedChange:
    """A change that was not tried, and how many seconds its simulation is predicted to take."""

    set: tuple[str, ...]
    predicted_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ReducedPart:
    """The part of the mean rank's step that the best change shortens most, in seconds."""

    part: str
    before_s: float
    after_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """A reason of lost time that was found by a simulation without it.

    ``fraction``: the part of the step that it costs. ``iteration_time_s``: of the step without it.
    """

    cause: str
    fraction: float
    iteration_time_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AdviceSummary:
    """What would help. ``best`` is None where nothing that was tried does.

    ``tried``: the fastest first, those that do not fit last. ``causes``: the greatest first.
    """

    level: AdviceLevel
    best: TriedChange | None
    reduced: ReducedPart | None = field(default=None, metadata=ABSENT)
    causes: tuple[Cause, ...] = ()
    tried: tuple[TriedChange, ...] = ()
    not_tried: tuple[UntriedChange, ...] = ()
