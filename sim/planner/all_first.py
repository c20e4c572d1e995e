"""The time of pipelines that run all forwards first, by a recurrence over virtual stages."""

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from sim.planner.space import Ints

Floats = NDArray[np.float64]


class Scattering(Struct, frozen=True):
    """The seconds that gradients of a micro-batch are scattered, of every virtual stage: (pipelines, stages).

    A rank scatters those of one micro-batch and stage after the others. ``wait_s``: for so long after its begin the
    next backward of the same stage waits.
    """

    seconds: Floats
    wait_s: Floats


def all_first_ends_s(
    forward_s: Floats,
    backward_s: Floats,
    num_ranks: Ints,
    num_microbatches: Ints,
    hop_s: Floats,
    scattering: Scattering | None = None,
) -> Floats:
    """Return when all is done on every virtual stage, in seconds, of shape (pipelines, stages, 3).

    The first backward, the last one, and the scattering of its gradients, which takes no time where there is none.

    gpipe, breadth_first and aiao run all forwards first, and Megatron-LM does so where it interleaves as many
    micro-batches as ranks (``sim.training.pipeline.schedules.interleaved``).

    ``forward_s``, ``backward_s``: seconds of a micro-batch on each virtual stage, of shape (pipelines, stages); NaN
        after the last stage of a pipeline that has fewer. ``hop_s``: seconds of a message between stages.

    A rank runs all micro-batches through one stage, then through the next one. Micro-batches are alike, so the end of
    the i-th on a stage is convex in i, and only the first and the last can be the one that another waits for. So the
    recurrence of their two ends is exact without scattering.
    """
    scattering = scattering or Scattering(np.zeros_like(backward_s), np.zeros_like(backward_s))
    rest: Floats = num_microbatches.astype(np.float64) - 1.0
    num_stages = np.count_nonzero(~np.isnan(forward_s), axis=1)
    rows, most = np.arange(len(forward_s)), forward_s.shape[1]
    ends_s = np.zeros((len(forward_s), most, 3))
    for stage in range(most):
        before = ends_s[:, stage - 1, :2] + hop_s[:, None] if stage else np.zeros_like(ends_s[:, 0, :2])
        free_s = np.where(stage >= num_ranks, ends_s[rows, np.maximum(stage - num_ranks, 0), 1], 0.0)
        ends_s[:, stage, :2] = _ends(before, free_s, forward_s[:, stage], rest)
    for stage in reversed(range(most)):
        is_last = (stage == num_stages - 1)[:, None]
        after = ends_s[:, min(stage + 1, most - 1)] + hop_s[:, None]
        later = np.minimum(stage + num_ranks, most - 1)
        has_later = stage + num_ranks < num_stages
        free_s = ends_s[rows, np.where(has_later, later, stage), 1]
        ready_s = np.where(is_last, 0.0, after[:, :2])
        scattered_s = np.where(has_later, ends_s[rows, later, 2], 0.0)
        taken_s, wait_s = scattering.seconds[:, stage], scattering.wait_s[:, stage]
        ends_s[:, stage, :2] = _ends(ready_s, free_s, backward_s[:, stage], rest)
        begin_s = np.maximum(ends_s[:, stage, 0], scattered_s)
        held_s = np.where(wait_s > 0, begin_s + rest * (wait_s + backward_s[:, stage]), 0.0)
        ends_s[:, stage, 1] = np.maximum(ends_s[:, stage, 1], held_s)
        ends_s[:, stage, 2] = np.maximum(begin_s + rest * taken_s, ends_s[:, stage, 1]) + taken_s
    return ends_s


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
