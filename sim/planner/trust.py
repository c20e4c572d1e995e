"""Trust in estimates: the strategies that may still beat the best strategy that the engine has found."""

from collections.abc import Sequence
from typing import Final, Literal

import numpy as np
from msgspec import Struct

from sim.planner.prices import Estimates, Floats, distinct_rows
from sim.planner.space import ORDERED, SCHEDULES, Grid, Ints
from sim.training.pipeline.rules import TRAITS, Schedule

Objective = Literal["time", "memory"]

_LEAST_TIME: Final = ((0.94, 0.80), (0.94, 0.80), (0.90, 0.77), (0.90, 0.94))
_LEAST_MEMORY: Final = ((1.00, 0.92), (1.00, 0.92), (0.76, 0.86), (0.84, 0.84))
"""The least that the engine finds for an estimate of 1, by ZeRO stage; 1f1b, then interleaved_1f1b.

Of 1,079 strategies of 46 random models and clusters 1,075 were within both; interleaved stages of unequal numbers of
layers took 0.82 in another case. They are margins, and not proved.
"""
_LEAST_OF_WALKED: Final = (0.87, 0.81)
_LEAST_OF_COPIES: Final = (0.85, 0.83)
"""The least time and memory of schedules whose orders are walked, and among them of those with two copies of the model.

Of 532 strategies of 147 random models and clusters all were within them, the least at 0.876 and 0.887 in time, and at
0.816 and 0.91 in memory; large models of experts, of whose memory estimates count a sixth too much, are further off.
"""
_LEAST_ON_HOST: Final = ((0.80, 0.75), (0.72, 0.61))
"""The same with the optimizer, and with all state, on the host. Of 114 and 103 strategies of 60 random cases and more
the least were 0.814 and 0.756, and 0.73 and 0.62.
"""
_ENOUGH: Final = 2
"""From so many strategies of its kind on, a search goes by what it has seen itself, where that leaves less hope."""
_SLACK: Final = 0.97
"""The least ratio that the next strategy of a kind may have, over the least that was seen."""


class Seen(Struct, frozen=True):
    """What the engine found for a row of the grid. ``time_s``: None where it does not fit, and so was not simulated."""

    row: int
    memory_bytes: int
    time_s: float | None


def at_least(grid: Grid, estimates: Estimates, seen: Sequence[Seen]) -> Estimates:
    """Return the least seconds and bytes that the engine may find for every strategy, after what it has found.

    Strategies of one ZeRO stage, schedule, tensor and pipeline degree and number of virtual stages, with and without
    offloading, are of a kind: their estimates err alike. Kinds of one stage err alike in part: where one found less
    than is stated, no other is trusted further.
    """
    shapes, kinds = distinct_rows(
        grid.zero_stage, grid.schedule, grid.virtual_stages, grid.tensor, grid.pipeline, grid.offload
    )
    zero = np.array([stage for stage, *_ in shapes])
    times = [(found.row, found.time_s) for found in seen if found.time_s is not None]
    memory = [(found.row, found.memory_bytes) for found in seen if np.isfinite(estimates.memory_bytes[found.row])]
    least = np.array([_stated(zero, SCHEDULES[schedule], shape[-1]) for zero, schedule, *shape in shapes]).T
    return Estimates(
        estimates.time_s * _narrowed(least[0], zero, kinds, estimates.time_s, times)[kinds],
        estimates.memory_bytes * _narrowed(least[1], zero, kinds, estimates.memory_bytes, memory)[kinds],
    )


def _stated(zero_stage: int, schedule: Schedule, offload: int) -> tuple[float, float]:
    """Return the least ratios of time and memory that a search begins with; ``offload``: a number of ``OFFLOADS``."""
    if offload:
        return _LEAST_ON_HOST[offload - 1]
    if schedule in ORDERED:
        return _LEAST_OF_COPIES if TRAITS[schedule].placement == "bidirectional" else _LEAST_OF_WALKED
    interleaves = schedule != "1f1b"
    return _LEAST_TIME[zero_stage][interleaves], _LEAST_MEMORY[zero_stage][interleaves]


def _narrowed(stated: Floats, zero: Ints, kinds: Ints, estimated: Floats, found: Sequence[tuple[int, float]]) -> Floats:
    """Return the least ratio of engine to estimate of every kind: what is stated, or what is seen of it or its stage.

    ``stated``, ``zero``: margin and ZeRO stage of each kind; ``kinds``, ``estimated``: of each row.
    """
    least, ratios = stated.copy(), dict[int, list[float]]()
    for row, value in found:
        ratios.setdefault(int(kinds[row]), []).append(value / float(estimated[row]))
    for kind, values in ratios.items():
        if min(values) < stated[kind]:
            alike = zero == zero[kind]
            least[alike] = np.minimum(least[alike], _SLACK * min(values))
    for kind, values in ratios.items():
        seen_least = _SLACK * min(values)
        if min(values) < stated[kind] or (len(values) >= _ENOUGH and seen_least > stated[kind]):
            least[kind] = seen_least
    return least


def hopeful_rows(grid: Grid, estimates: Estimates, room_bytes: int, seen: Sequence[Seen], objective: Objective) -> Ints:
    """Return the rows that may fit and beat the best that the engine has found, the most hopeful first.

    While nothing that was seen fits, these are all that may fit, in order of their estimates.
    """
    least = at_least(grid, estimates, seen)
    may_fit = least.memory_bytes <= room_bytes
    may_fit[[found.row for found in seen]] = False
    fitting = [found for found in seen if found.time_s is not None]
    if not fitting:
        return ordered(estimates, np.flatnonzero(may_fit), objective)
    if objective == "time":
        better = least.time_s < min(found.time_s for found in fitting if found.time_s is not None)
    else:
        better = least.memory_bytes < min(found.memory_bytes for found in fitting)
    return ordered(least, np.flatnonzero(may_fit & better), objective)


def ordered(values: Estimates, rows: Ints, objective: Objective) -> Ints:
    """Return rows by objective, the best first; the other value decides between equals."""
    time_s, memory = values.time_s[rows], values.memory_bytes[rows]
    found: Ints = rows[np.lexsort((memory, time_s) if objective == "time" else (time_s, memory))]
    return found
