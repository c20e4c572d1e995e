"""When every action of a schedule ends, by the plain recurrence: for choosing and checking orders, not for results."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from sim.training.pipeline.actions import Action, steps
from sim.training.pipeline.placement import Placement


class Times(Protocol):
    """How long the actions of a schedule take, and a message between ranks, in seconds."""

    @property
    def hop_s(self) -> float:
        """Return how long a message between ranks takes."""

    def duration_s(self, action: Action) -> float:
        """Return how long an action takes."""


class StageTimes(NamedTuple):
    """Times of a virtual stage per micro-batch, and of a message between ranks, in seconds."""

    forward_s: float
    input_s: float
    weight_s: float
    hop_s: float = 0.0

    def duration_s(self, action: Action) -> float:
        """Return how long an action takes."""
        return {
            "F": self.forward_s, "B": self.input_s + self.weight_s, "I": self.input_s, "W": self.weight_s,
        }[action.kind]  # fmt: skip


class ChainTimes(NamedTuple):
    """The same, stage by stage; messages take as long as the slowest of them."""

    stages: tuple[StageTimes, ...]

    @property
    def hop_s(self) -> float:
        """Return how long the slowest message between ranks takes."""
        return max(times.hop_s for times in self.stages)

    def duration_s(self, action: Action) -> float:
        """Return how long an action takes."""
        return self.stages[action.stage].duration_s(action)


class StuckError(ValueError):
    """An order in which an action waits for one that comes after it."""


Result = tuple[str, int, int]
"""What others wait for: ("F" or "I" or "W", stage, micro-batch); a B gives an I and a W."""


def end_times(orders: Sequence[Sequence[Action]], placement: Placement, times: Times) -> dict[Result, float]:
    """Return when every result is there, in seconds; StuckError, naming an action per rank, where some never are.

    A step starts when the one before it on its rank has ended and all its inputs have arrived.
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
    """Return the longest time from the begin of a rank's first action to the end of its last, in seconds.

    ``ends_s``: what ``end_times`` returned; the last action is no whole backward, nor overlaps with the one before it.
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
