"""The time of pipelines that run all forwards first, by a recurrence over virtual stages."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sim.planner.space import Ints

Floats = NDArray[np.float64]


def all_first_ends_s(
    forward_s: Floats, backward_s: Floats, num_ranks: Ints, num_microbatches: Ints, hop_s: Floats
) -> Floats:
    """Return when the last backward of every virtual stage ends, in seconds, of shape (pipelines, stages).

    gpipe, breadth_first and aiao run all forwards first, and Megatron-LM does so where it interleaves as many
    micro-batches as ranks (``sim.training.pipeline.schedules.interleaved``).

    ``forward_s``, ``backward_s``: seconds of a micro-batch on each virtual stage, of shape (pipelines, stages); NaN
        after the last stage of a pipeline that has fewer. ``hop_s``: seconds of a message between stages.

    A rank runs all micro-batches through one stage, then through the next one. Micro-batches are alike, so the end of
    the i-th on a stage is convex in i, and only the first and the last can be the one that another waits for. So the
    recurrence of their two ends is exact.
    """
    rest: Floats = num_microbatches.astype(np.float64) - 1.0
    num_stages = np.count_nonzero(~np.isnan(forward_s), axis=1)
    rows, most = np.arange(len(forward_s)), forward_s.shape[1]
    ends_s = np.zeros((len(forward_s), most, 2))
    for stage in range(most):
        before = ends_s[:, stage - 1] + hop_s[:, None] if stage else np.zeros_like(ends_s[:, 0])
        free_s = np.where(stage >= num_ranks, ends_s[rows, np.maximum(stage - num_ranks, 0), 1], 0.0)
        ends_s[:, stage] = _ends(before, free_s, forward_s[:, stage], rest)
    for stage in reversed(range(most)):
        is_last = (stage == num_stages - 1)[:, None]
        after = ends_s[:, min(stage + 1, most - 1)] + hop_s[:, None]
        later = np.minimum(stage + num_ranks, most - 1)
        own = np.where(stage + num_ranks < num_stages, later, stage)
        free_s = ends_s[rows, own, 1]
        ends_s[:, stage] = _ends(np.where(is_last, 0.0, after), free_s, backward_s[:, stage], rest)
    return ends_s[:, :, 1]


def seconds_of_stages(of_kinds: Sequence[Floats], places: Sequence[Sequence[int]], which: Ints) -> Floats:
    """Return the seconds of every virtual stage as ``all_first_ends_s`` reads them.

    ``of_kinds``: of each kind of stage, an element per pipeline. ``places``: the kinds of the stages of different
    pipelines; ``which``: of them each pipeline has.
    """
    most = max(map(len, places))
    kinds = np.array([[*kinds, *[len(of_kinds)] * (most - len(kinds))] for kinds in places])[which]
    beyond = np.full(len(which), np.nan)
    found: Floats = np.take_along_axis(np.stack([*of_kinds, beyond], axis=1), kinds, axis=1)
    return found


def _ends(ready_s: Floats, free_s: Floats, duration_s: Floats, rest: Floats) -> Floats:
    """Return when the first and the last micro-batch end on a stage.

    ``ready_s``: when the two arrive, in columns. ``free_s``: when the rank is free. ``rest``: micro-batches after the
    first.
    """
    first = np.maximum(ready_s[:, 0], free_s) + duration_s
    last = np.maximum(first + rest * duration_s, ready_s[:, 1] + duration_s)
    return np.stack((first, last), axis=1)
