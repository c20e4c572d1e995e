"""The advice on a step: the ``advice`` object of summary.json (docs/results.md explains its keys)."""

from typing import Annotated, Literal

from msgspec import Struct

from scenarios.summaries.as_json import ABSENT

AdviceLevel = Literal["quick", "full"]
"""The amount of trials: those within a limit on predicted time, or all."""


class TriedChange(Struct, frozen=True, kw_only=True):
    """A change of the scenario, and the step with it.

    ``set``: overrides, ``key=value``, applied together.
    ``gain``: the increase of the throughput, as a fraction. Time and gain are None if the change does not fit in memory
        and only its memory was computed.
    ``fits_memory``: this and the fullest rank's peak are None if the job holds no memory.
    ``estimated``: the time is extrapolated from steps with fewer micro-batches.
    """

    set: tuple[str, ...]
    fits_memory: bool | None
    peak_memory_bytes: int | None
    iteration_time_s: float | None
    gain: float | None
    estimated: bool = False


class UntriedChange(Struct, frozen=True, kw_only=True):
    """A change that was not tried, and the predicted seconds of its simulation."""

    set: tuple[str, ...]
    predicted_s: float


class ReducedPart(Struct, frozen=True, kw_only=True):
    """The part of the mean rank's step that the best change shortens most, in seconds."""

    part: str
    before_s: float
    after_s: float


class Cause(Struct, frozen=True, kw_only=True):
    """A cause of lost time, found by a simulation without it.

    ``fraction``: the part of the step that it costs.
    ``iteration_time_s``: the step time without it.
    """

    cause: str
    fraction: float
    iteration_time_s: float


class AdviceSummary(Struct, frozen=True, kw_only=True):
    """The advice. ``best``: None if no tried change helps.

    ``tried``: the fastest first, those that do not fit last.
    ``causes``: the greatest first.
    """

    level: AdviceLevel
    best: TriedChange | None
    reduced: Annotated[ReducedPart | None, ABSENT] = None
    causes: tuple[Cause, ...] = ()
    tried: tuple[TriedChange, ...] = ()
    not_tried: tuple[UntriedChange, ...] = ()
