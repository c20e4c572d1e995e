"""The time of interleaved pipelines that run all forwards first, by a recurrence over virtual stages."""

import numpy as np
from numpy.typing import NDArray

from sim.planner.space import Ints

Floats = NDArray[np.float64]


def all_first_s(
    forward_s: Floats, backward_s: Floats, num_ranks: Ints, num_microbatches: Ints, hop_s: Floats
) -> Floats:
    """Return the seconds of interleaved_1f1b with as many micro-batches as ranks, an element per pipeline.

    Megatron-LM then runs all forwards first (``sim.training.pipeline.schedules.interleaved``).

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
    total_s: Floats = ends_s[:, 0, 1]
    return total_s


def _ends(ready_s: Floats, free_s: Floats, duration_s: Floats, rest: Floats) -> Floats:
    """Return when the first and the last micro-batch end on a stage.

    ``ready_s``: when the two arrive, in columns. ``free_s``: when the rank is free. ``rest``: micro-batches after the
    first.
    """
    first = np.maximum(ready_s[:, 0], free_s) + duration_s
    last = np.maximum(first + rest * duration_s, ready_s[:, 1] + duration_s)
    return np.stack((first, last), axis=1)
