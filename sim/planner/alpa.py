"""Alpa's search between operators: which layers each stage of a pipeline has (Zheng et al., OSDI 2022, section 5.2)."""

import numpy as np

from sim.planner.prices import Floats


def fastest_partition(stage_s: Floats, num_microbatches: int) -> tuple[int, ...] | None:
    """Return the layers of every stage of the fastest pipeline, None where none fits.

    ``stage_s``: seconds of a micro-batch in each stage with 0, 1, 2, ... layers, of shape (stages, layers + 1);
        infinite where these do not fit. The last column is that of all layers.

    The time is sum(t) + (micro-batches - 1) x max(t). For every time that the slowest stage may take, the shortest
    first, dynamic programming over stages and layers finds the least sum; the search ends where a slower slowest stage
    cannot help. Exact: the result is that of trying all partitions.
    """
    best_s, best = np.inf, None
    least_s = _least_sums(stage_s)[0, -1]
    for most_s in np.unique(stage_s[np.isfinite(stage_s)]):
        if least_s + (num_microbatches - 1) * most_s >= best_s:
            break
        allowed_s = np.where(stage_s <= most_s, stage_s, np.inf)
        sums_s = _least_sums(allowed_s)
        if np.isfinite(sums_s[0, -1]):
            layers = _walked(allowed_s, sums_s)
            times_s = [float(stage_s[stage, number]) for stage, number in enumerate(layers)]
            total_s = sum(times_s) + (num_microbatches - 1) * max(times_s)
            if total_s < best_s:
                best_s, best = total_s, layers
    return best


def _least_sums(stage_s: Floats) -> Floats:
    """Return the least seconds of stages from each on, with 0, 1, 2, ... layers: (stages + 1, layers + 1)."""
    num_stages, width = stage_s.shape
    sums_s = np.full((num_stages + 1, width), np.inf)
    sums_s[num_stages, 0] = 0.0
    for stage in reversed(range(num_stages)):
        for number in np.flatnonzero(np.isfinite(stage_s[stage])).tolist():
            rest_s = stage_s[stage, number] + sums_s[stage + 1, : width - number]
            np.minimum(sums_s[stage, number:], rest_s, out=sums_s[stage, number:])
    return sums_s


def _walked(stage_s: Floats, sums_s: Floats) -> tuple[int, ...]:
    """Return the layers of every stage that lead to the least sum."""
    left, layers = stage_s.shape[1] - 1, list[int]()
    for stage in range(len(stage_s)):
        choices_s = stage_s[stage, : left + 1] + sums_s[stage + 1, left::-1]
        layers.append(int(np.argmin(choices_s)))
        left -= layers[-1]
    return tuple(layers)
