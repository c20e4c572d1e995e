"""Megatron-LM's rules of thumb: which degrees to try, in which order (Narayanan et al., SC21, section 3)."""

import numpy as np

from sim.planner.prices import Estimates
from sim.planner.space import Grid


def rows_in_turn(grid: Grid, estimates: Estimates, room_bytes: float) -> list[int]:
    """Return the rows to try, the first that fits being the answer.

    Tensor parallelism grows first, to the largest degree of the grid, which is a node's; then pipelines do; replicas
    have the rest (takeaways 1 and 2). With each pair of degrees goes the micro-batch and the number of stages per rank
    of least estimated time, among those that fit by estimate, or of least memory where none does (takeaway 3).
    """
    pairs = sorted(set(zip(grid.tensor.tolist(), grid.pipeline.tolist(), strict=True)))
    widest, shortest = max(tensor for tensor, _ in pairs), min(pipeline for _, pipeline in pairs)
    in_turn = [pair for pair in pairs if pair[1] == shortest]
    in_turn += [pair for pair in pairs if pair[0] == widest and pair[1] != shortest]
    fits = estimates.memory_bytes <= room_bytes
    cost = np.where(fits, estimates.time_s, np.inf)
    found = []
    for tensor, pipeline in in_turn:
        rows = np.flatnonzero((grid.tensor == tensor) & (grid.pipeline == pipeline))
        values = cost[rows] if np.isfinite(cost[rows]).any() else estimates.memory_bytes[rows]
        found.append(int(rows[np.argmin(values)]))
    return found
