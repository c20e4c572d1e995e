"""The parts of a step's time: every moment of every rank belongs to an op, or is idle, so the parts add up.

A moment belongs to compute if compute runs, else to communication, else to copies and fills. Several ops of one class
share it equally. So communication has the moments that compute does not hide (exposed communication).
"""

from typing import Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from traces.comparison.sides import Side
from traces.kineto.breakdown import CLASSES, COMMUNICATION, COMPUTE, MEMORY
from traces.timeline import Floats

_ORDER: Final = (COMPUTE, COMMUNICATION, MEMORY)
"""Order of classes: a moment belongs to the first class that runs."""
ROUNDING: Final = 1e-9
"""Relative rounding error of sums of times."""


class StepTime(Struct, frozen=True):
    """Seconds of the mean rank's step; compute, exposed communication, exposed memory and idle make ``step_s``.

    ``communication_s`` and ``memory_s``: all moments with such an op, hidden ones included.
    ``overlap_s``: communication hidden by compute.
    ``idle_s``: no op runs.
    """

    step_s: float
    compute_s: float
    communication_s: float
    exposed_communication_s: float
    overlap_s: float
    memory_s: float
    exposed_memory_s: float
    idle_s: float


def class_of(kind: str) -> str:
    """Return the class of a kind of op: an op that neither communicates nor copies is compute."""
    return CLASSES.get(kind, MEMORY if kind.startswith("copy") else COMPUTE)


def divide(side: Side, weight: Floats) -> tuple[StepTime, Floats]:
    """Return the parts of the mean rank's step, and each row's seconds of it. ``weight``: by pair of ranks.

    The seconds of all rows and the idle ones add up to the step.
    """
    codes = np.array([_ORDER.index(class_of(kind)) for kind in side.timeline.kind.values] or [0], dtype=np.int64)
    classes = codes[side.timeline.kind.codes[side.rows]]
    start_s, end_s, held_s = side.start_s, side.end_s, np.zeros(len(side))
    sums = np.zeros((2, len(_ORDER)))
    edges = np.searchsorted(side.pair, np.arange(len(weight) + 1))
    for pair in range(len(weight)):
        rows = slice(int(edges[pair]), int(edges[pair + 1]))
        if rows.start < rows.stop:
            lasting, own, held = _moments_s(start_s[rows], end_s[rows], classes[rows])
            sums += weight[pair] * np.array([lasting, own])
            held_s[rows] = weight[pair] * held
    whole = weight.sum() or 1.0
    (compute, communication, memory), (_, exposed, exposed_memory) = (sums / whole).tolist()
    step_s = side.timeline.duration_s
    parts = StepTime(
        step_s=step_s,
        compute_s=compute,
        communication_s=communication,
        exposed_communication_s=exposed,
        overlap_s=_left_s(communication, exposed),
        memory_s=memory,
        exposed_memory_s=exposed_memory,
        idle_s=_left_s(step_s, compute + exposed + exposed_memory),
    )
    return parts, held_s / whole


def _left_s(whole_s: float, part_s: float) -> float:
    """Return what a part leaves of a whole; 0 where that is rounding."""
    left_s = whole_s - part_s
    return left_s if left_s > ROUNDING * whole_s else 0.0


def _moments_s(start_s: Floats, end_s: Floats, classes: NDArray[np.int64]) -> tuple[list[float], list[float], Floats]:
    """Return, for one rank, the seconds of each class, its own moments, and each row's part of these."""
    edges_s = np.unique(np.concatenate([start_s, end_s]))
    lasting_s = np.diff(edges_s)
    begin, end = np.searchsorted(edges_s, start_s), np.searchsorted(edges_s, end_s)
    held_s, free = np.zeros(len(start_s)), np.ones(len(lasting_s), dtype=np.bool_)
    running, own = [], []
    for number in range(len(_ORDER)):
        chosen = classes == number
        opened, closed = (np.bincount(at[chosen], minlength=len(edges_s)) for at in (begin, end))
        count = np.cumsum(opened - closed)[:-1]
        active = count > 0
        mine = active & free
        free &= ~active
        reached_s = np.concatenate([[0.0], np.cumsum(np.where(mine, lasting_s / np.maximum(count, 1), 0.0))])
        held_s[chosen] = (reached_s[end] - reached_s[begin])[chosen]
        running.append(float(lasting_s[active].sum()))
        own.append(float(lasting_s[mine].sum()))
    return running, own, held_s
