"""The prices that closed forms read, and which of them each strategy of a grid needs."""

import math
from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from sim.planner.probing import Probe
from sim.planner.space import Grid, Ints

Floats = NDArray[np.float64]

_LARGEST_KEY: Final = 1 << 62

ProbeKey = tuple[int, int, int, int, int]
"""The choices that a probe is for: tensor, context, expert, micro-batch, recomputation."""
LinkKey = tuple[int, int]
"""The choices that replicas communicate under: how many ranks one is from the next, and how many there are."""


class Estimates(Struct, frozen=True):
    """Seconds per step and bytes of the fullest rank, an element per strategy.

    Bytes are infinite where a host certainly has no room for what lies there.
    """

    time_s: Floats
    memory_bytes: Floats


class Line(Struct, frozen=True):
    """Seconds of a collective as a line over its bytes."""

    latency_s: float
    s_per_byte: float


FREE: Final = Line(0.0, 0.0)
"""The line of what takes no time."""


class HostLines(Struct, frozen=True):
    """What gradients, optimizer and parameters on the host take, by the bytes of a rank's shard of parameters.

    ``step``: what a step of one micro-batch takes longer where gradients and optimizer are there. ``copies``, ``adds``,
    ``links``: for how long the gradients of each of several micro-batches keep a rank's copies, its part of the host's
    cores, and a link busy. ``updates``: the optimizer on the cores. ``loads``, ``link_loads``: for how long parameters
    that come to the device keep copies and a link busy. ``room_bytes``: of a rank's part of its host's memory.
    """

    step: Line = FREE
    copies: Line = FREE
    adds: Line = FREE
    links: Line = FREE
    updates: Line = FREE
    loads: Line = FREE
    link_loads: Line = FREE
    room_bytes: float = math.inf


class ReplicaLinks(Struct, frozen=True):
    """The collectives between replicas."""

    all_reduce: Line
    reduce_scatter: Line
    all_gather: Line


class CopyLink(Struct, frozen=True):
    """The all_reduces of every rank with the one that has the same stages of another copy of the model, all at once.

    ``shared``: the part of the shorter of these and the sums over replicas by which both together take longer than the
    longer one, as they share links.
    """

    line: Line
    shared: float


class Prices(Struct, frozen=True):
    """All that the closed forms read: probes and collectives, each priced once, and the layers of the model.

    ``hops``: a message from a stage to the next, by the number of stages. ``ties``: an all_reduce of the first and the
    last stage, by the number of stages; ``copies``: of pipeline ranks with the same stages, where a schedule has two
    copies of the model. ``overlaps``: a forward and a backward that overlap take turns at experts' exchanges.
    ``hosts``: of strategies whose optimizer is on the host.
    """

    probes: Mapping[ProbeKey, Probe]
    links: Mapping[LinkKey, ReplicaLinks]
    hops: Mapping[int, Line]
    ties: Mapping[int, Line]
    copies: Mapping[LinkKey, CopyLink]
    num_layers: int
    gradient_element_bytes: int
    hosts: HostLines = HostLines()
    overlaps: bool = False


def line_through(seconds: Callable[[int], float], small_bytes: int, large_bytes: int) -> Line:
    """Return the line through the seconds of two sizes."""
    small_s, large_s = seconds(small_bytes), seconds(large_bytes)
    slope = max(0.0, (large_s - small_s) / (large_bytes - small_bytes))
    return Line(max(0.0, small_s - slope * small_bytes), slope)


def probe_keys(grid: Grid) -> tuple[list[ProbeKey], Ints]:
    """Return the different probes that a grid needs, and which of them each strategy needs."""
    rows, numbers = distinct_rows(grid.tensor, grid.context, grid.expert, grid.microbatch_size, grid.recompute)
    keys = [(tensor, context, expert, microbatch, recompute) for tensor, context, expert, microbatch, recompute in rows]
    return keys, numbers


def link_keys(grid: Grid) -> tuple[list[LinkKey], Ints]:
    """Return the different groups of replicas of a grid, and which of them each strategy has.

    The numbers are those of dense parameters, then those of experts, which every ``expert``-th replica holds.
    """
    replicas = grid.data * grid.context
    of_dense, of_experts = (grid.tensor, replicas), (grid.tensor * grid.expert, replicas // grid.expert)
    rows, numbers = distinct_rows(*map(np.concatenate, zip(of_dense, of_experts, strict=True)))
    return [(step, number) for step, number in rows], numbers


def distinct_rows(*columns: Ints) -> tuple[list[list[int]], Ints]:
    """Return the different rows of columns, sorted, and the number of each row among them. No number is negative."""
    keys, span = np.zeros_like(columns[0]), 1
    for column in columns:
        size = int(column.max(initial=0)) + 1
        if span * size >= _LARGEST_KEY:
            found, keys = np.unique(keys, return_inverse=True)
            span = len(found)
        keys, span = keys * size + column, span * size
    _, first, numbers = np.unique(keys, return_index=True, return_inverse=True)
    return np.stack(columns, axis=1)[first].tolist(), numbers
