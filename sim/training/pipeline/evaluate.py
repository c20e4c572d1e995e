"""End times of a schedule's actions by the plain recurrence, to choose and check orders.

Results come from the engine.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from sim.training.pipeline.actions import Action, steps
from sim.training.pipeline.placement import Placement


class Times(Protocol):
    """Durations of a schedule's actions, and of a message between ranks, in seconds."""

    @property
    def hop_s(self) -> float:
        """Return the duration of a message between ranks in seconds."""

    def duration_s(self, action: Action) -> float:
        """Return the duration of an action in seconds."""


class StageTimes(NamedTuple):
    """Durations per virtual stage and micro-batch, the same for all stages, and of a message, in seconds."""

    forward_s: float
    input_s: float
    weight_s: float
    hop_s: float = 0.0

    def duration_s(self, action: Action) -> float:
        """Return the duration of an action in seconds."""
        return {
            "F": self.forward_s, "B": self.input_s + self.weight_s, "I": self.input_s, "W": self.weight_s,
        }[action.kind]  # fmt: skip


class ChainTimes(NamedTuple):
    """Durations stage by stage; every message takes as long as the slowest one."""

    stages: tuple[StageTimes, ...]

    @property
    def hop_s(self) -> float:
        """Return the duration of the slowest message between ranks in seconds."""
        return max(times.hop_s for times in self.stages)

    def duration_s(self, action: Action) -> float:
        """Return the duration of an action in seconds."""
        return self.stages[action.stage].duration_s(action)


class StuckError(ValueError):
    """An order in which an action waits for a later one."""


Result = tuple[str, int, int]
"""A result that other actions wait for: ("F" or "I" or "W", stage, micro-batch); a B gives an I and a W."""


def end_times(orders: Sequence[Sequence[Action]], placement: Placement, times: Times) -> dict[Result, float]:
    """Return the end of every result in seconds. Raises StuckError, with an action per rank, where some never end.

    A step starts when the previous step of its rank has ended and all its inputs have arrived.
    """
    ends: dict[Result, float] = {}
    rests = [iter(list(steps(order))) for order in orders]
    heads = [next(rest, None) for rest in rests]
    free_s = [0.0] * len(orders)
    runnable = list(range(len(orders)))
    while runnable:
        rank = runnable.pop()
        while (step := heads[rank]) is not None:
            arrivals = [_arrival_s(need, rank, ends, placement, times) for a in step for need in _needs(a, placement)]
            if None in arrivals:
                break
            start_s = max([free_s[rank], *(arrival for arrival in arrivals if arrival is not None)])
            free_s[rank] = start_s + sum(times.duration_s(action) for action in step)
            for action in step:
                for kind in "IW" if action.kind == "B" else action.kind:
                    ends[kind, action.stage, action.microbatch] = free_s[rank]
                runnable += [other for other in _waiters(action, placement) if other != rank]
            heads[rank] = next(rests[rank], None)
    stuck = [f"rank {rank} at {step[0]}" for rank, step in enumerate(heads) if step is not None]
    if stuck:
        raise StuckError(f"the order gets stuck: {', '.join(stuck[:8])}")
    return ends


def max_span_s(orders: Sequence[Sequence[Action]], ends_s: Mapping[Result, float], times: Times) -> float:
    """Return the longest time from the start of a rank's first action to the end of its last, in seconds.

    ``ends_s``: the result of ``end_times``. The last action must be no whole backward, and must not overlap the
        previous one.
    """
    return max(ends_s[order[-1][:3]] - (ends_s[order[0][:3]] - times.duration_s(order[0])) for order in orders if order)


def _needs(action: Action, placement: Placement) -> list[Result]:
    stage, microbatch = action.stage, action.microbatch
    if action.kind == "F":
        return [] if placement.is_first(stage) else [("F", stage - 1, microbatch)]
    if action.kind == "W":
        return [("I", stage, microbatch)]
    own: list[Result] = [("F", stage, microbatch)]
    return own if placement.is_last(stage) else [*own, ("I", stage + 1, microbatch)]


def _arrival_s(need: Result, rank: int, ends: dict[Result, float], placement: Placement, times: Times) -> float | None:
    if need not in ends:
        return None
    return ends[need] + (0.0 if placement.ranks[need[1]] == rank else times.hop_s)


def _waiters(action: Action, placement: Placement) -> list[int]:
    """Return the ranks that may wait for an action."""
    if action.kind == "F":
        return [] if placement.is_last(action.stage) else [placement.ranks[action.stage + 1]]
    if action.kind == "W" or placement.is_first(action.stage):
        return []
    return [placement.ranks[action.stage - 1]]
