"""The end of a step with two copies of the model, as chimera and dualpipe have them.

A pipeline rank holds two stages of the model, and the rank at the same place from the other end holds them, too. The
gradients of a stage are summed over the two, then over replicas, while the other stage's are summed over the two.
"""

from collections.abc import Mapping

import numpy as np
from msgspec import Struct

from sim.planner.prices import Floats, LinkKey, Prices, distinct_rows
from sim.planner.space import COPIED, SPLIT, Grid
from sim.planner.stages import Stage
from sim.planner.step_end import ALL_REDUCE, REDUCE_SCATTER, Lines


def copies_s(grid: Grid, rank: Stage, inner: Stage, hop_s: Floats, links: Lines, prices: Prices) -> Floats:
    """Return what a step takes longer than with the sums over replicas alone, in seconds; 0 with one copy.

    ``rank``: the first rank, ``inner``: one of its two stages. One of them is ready before the other: the earlier, the
    further the rank is from the middle, whose ranks end first.
    """
    sums_s = _Sums(*_stage_sums_s(grid, rank, links, prices), _shared(grid, prices))
    splits, steps = grid.runs(SPLIT), grid.pipeline / 2.0 - 1.0
    whole_s, way_s = inner.input_s + inner.weight_s, inner.backward_s + hop_s
    ahead_s = np.where(splits, (steps + 1.0) * whole_s, (2.0 * steps + 1.0) * way_s)
    middle_ahead_s = np.where(splits, np.where(steps > 0, inner.weight_s, whole_s), way_s)
    earlier_s = steps * np.where(splits, inner.input_s + hop_s - inner.weight_s, way_s)
    ends_s = np.maximum(sums_s.end_s(ahead_s), sums_s.end_s(middle_ahead_s) - earlier_s)
    return np.where(grid.runs(COPIED), ends_s - _replicas_s(grid, rank, rank.gradient_bytes, links), 0.0)


def _stage_sums_s(grid: Grid, rank: Stage, links: Lines, prices: Prices) -> tuple[Floats, Floats]:
    """Return the seconds of the sums of one stage's gradients over copies, and over replicas."""
    half_bytes = rank.gradient_bytes / 2.0
    lines = _of_keys(grid, {key: (c.line.latency_s, c.line.s_per_byte) for key, c in prices.copies.items()}, (0.0, 0.0))
    return lines[:, 0] + lines[:, 1] * half_bytes, _replicas_s(grid, rank, half_bytes, links)


def _replicas_s(grid: Grid, rank: Stage, num_bytes: Floats, links: Lines) -> Floats:
    """Return the seconds of a sum over replicas."""
    kinds = [links.seconds(kind, rank, num_bytes) for kind in (ALL_REDUCE, REDUCE_SCATTER)]
    return np.where(grid.zero_stage > 0, kinds[1], kinds[0])


def _shared(grid: Grid, prices: Prices) -> Floats:
    """Return the part of the shorter of both sums that they take longer together."""
    return _of_keys(grid, {key: (copy.shared,) for key, copy in prices.copies.items()}, (0.0,))[:, 0]


def _of_keys(grid: Grid, values: Mapping[LinkKey, tuple[float, ...]], nothing: tuple[float, ...]) -> Floats:
    """Return the values of every strategy's replicas, as rows."""
    rows, numbers = distinct_rows(grid.tensor, grid.data * grid.context)
    return np.array([values.get((step, number), nothing) for step, number in rows])[numbers]


class _Sums(Struct, frozen=True):
    """The sums of a stage's gradients over copies and over replicas, in seconds. ``shared``: as in ``CopyLink``."""

    copy_s: Floats
    replicas_s: Floats
    shared: Floats

    def end_s(self, ahead_s: Floats) -> Floats:
        """Return the seconds from a rank's last backward to the last sum; the other stage is ``ahead_s`` before."""
        begin_s = np.maximum(self.copy_s - ahead_s, 0.0)
        copied_s, summed_s = begin_s + self.copy_s, self.copy_s - ahead_s + self.replicas_s
        both_s = np.maximum(np.minimum(copied_s, summed_s) - begin_s, 0.0)
        found: Floats = np.maximum(copied_s, summed_s) + self.shared * both_s + self.replicas_s
        return found
