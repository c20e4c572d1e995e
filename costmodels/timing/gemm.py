"""Matrix products: tiles in waves over the multiprocessors, against the memory and the cache between.

The output is cut into tiles, each computed by one multiprocessor in a loop over k; k may be split over several, whose
sums are then added up. Three things may bound the loop, and none overlaps the others perfectly: the arithmetic units,
the cache that tiles are loaded from, and the time from one k-step's load to its use. The library is taken to choose the
tile and the split that end first. The soft maximum of times that overlap is their p-norm. Sources: NVIDIA, Matrix
Multiplication Background User's Guide (tiles, waves); CUTLASS, efficient_gemm.md (split k); Williams et al. 2009
(roofline).
"""

from dataclasses import dataclass
from functools import cache
from typing import Final

import numpy as np

from costmodels.hardware import DeviceSpec
from costmodels.timing.times import Array, Calls, Times, throttling, waves

_SPLITS: Final = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
_LEAST_SPLIT_K: Final = 64
_K_STEP: Final = 32
_STEP_BYTES: Final = 128
"""Bytes of k that one stage of the loop's pipeline loads per row: 64 elements of two bytes."""
_RESIDENT: Final = 2.0
"""Thread blocks of one multiprocessor that hide each other's waiting."""
_PARTIAL_BYTES: Final = 8.0
"""A partial sum is written and read once in float32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmProfile:
    """Parameters of the matrix-product model.

    ``peak_fraction``: of the peak that the loop over k reaches; ``throttle``, ``throttle_after_s``: see ``throttling``.
    ``k_overhead``: prologue and epilogue of a tile, in steps of k. ``step_s``: from the load of 128 bytes of k to their
    use. ``cache_bandwidth_bytes_per_s``: of all multiprocessors together. ``epilogue``: passes over the output that a
    tile cannot overlap. ``split_s``, ``split_passes``: fixed time, and passes over the partial sums, when k is split.
    ``wave_quantisation``: see ``waves``. ``memory_fraction``: of the memory bandwidth. ``overlap``: exponent of the
    p-norm; the larger, the better do arithmetic and memory overlap. ``tiles``: rows and columns of the library's tiles.
    """

    peak_fraction: float
    throttle: float
    throttle_after_s: float
    k_overhead: float
    step_s: float
    cache_bandwidth_bytes_per_s: float
    epilogue: float
    split_s: float
    split_passes: float
    wave_quantisation: float
    memory_fraction: float
    overlap: float
    latency_s: float
    tiles: tuple[tuple[int, int], ...]


def gemm_times(calls: Calls, peak_flop_per_s: float, device: DeviceSpec, gemm: GemmProfile) -> Times:
    """Return the times of (batched) products on a device whose arithmetic units have a peak rate for their dtype."""
    rows, columns, splits = (column[None, :] for column in _candidates(gemm.tiles))
    m, n, k, batch = (column[:, None] for column in (calls.m, calls.n, calls.k, calls.batch))
    units, bandwidth = device.num_multiprocessors, device.memory_bandwidth_bytes_per_s
    blocks = np.ceil(m / rows) * np.ceil(n / columns) * batch * splits
    depth = np.ceil(k / (splits * _K_STEP)) * _K_STEP
    fill, area = blocks / units, rows * columns
    idle = np.maximum(1.0, 1.0 / fill)
    compute_s = (
        waves(fill, gemm.wave_quantisation) * 2.0 * area * (depth + gemm.k_overhead) * units
        / (peak_flop_per_s * gemm.peak_fraction)
    )  # fmt: skip
    steps = (depth + gemm.k_overhead) * calls.element_bytes / _STEP_BYTES
    waiting_s = np.maximum(1.0, fill / _RESIDENT) * steps * gemm.step_s
    loading_s = blocks * idle * (rows + columns) * depth * calls.element_bytes / gemm.cache_bandwidth_bytes_per_s
    storing_s = blocks * idle * area * calls.element_bytes * gemm.epilogue / bandwidth
    memory_s = calls.num_bytes / (bandwidth * gemm.memory_fraction)
    slower = throttling(calls.executed_flop, peak_flop_per_s, gemm.throttle, gemm.throttle_after_s)
    p = gemm.overlap
    units_s = _norm(p, compute_s, loading_s + storing_s, waiting_s)
    whole_s = _norm(p, units_s, memory_s[:, None])
    split_s = gemm.split_s + splits * m * n * batch * _PARTIAL_BYTES * gemm.split_passes / bandwidth
    whole_s += np.where(splits > 1, split_s, 0.0)
    refused = (splits > 1) & (depth < _LEAST_SPLIT_K)
    best = np.argmin(np.where(refused, np.inf, whole_s), axis=1)[:, None]
    chosen_s = np.take_along_axis(whole_s, best, axis=1)[:, 0] * slower
    busy_s = np.take_along_axis(units_s, best, axis=1)[:, 0] * slower
    return Times(gemm.latency_s + chosen_s - np.maximum(busy_s, memory_s), busy_s, memory_s)


@cache
def _candidates(tiles: tuple[tuple[int, int], ...]) -> tuple[Array, Array, Array]:
    """Return rows, columns and splits of k of everything that the library may choose from."""
    found = [(rows, columns, split) for rows, columns in tiles for split in _SPLITS]
    rows, columns, splits = np.array(found, dtype=np.float64).T
    return rows, columns, splits


def _norm(p: float, *seconds: Array) -> Array:
    """Return the p-norm, at least the largest of the times."""
    largest = np.maximum.reduce(np.broadcast_arrays(*seconds))
    total = sum((part / largest) ** p for part in seconds)
    whole: Array = largest * np.asarray(total) ** (1.0 / p)
    return whole
