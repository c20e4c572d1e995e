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

    ``peak_fraction``: of the peak that the loop over k reaches; ``throttle``, ``throttle_after_s``,
    ``throttle_sharpness``: see ``throttling``.
    ``k_overhead``: prologue and epilogue of a tile, in steps of k. ``step_s``: from the load of 128 bytes of k to their
    use. ``cache_bandwidth_bytes_per_s``: of all multiprocessors together. ``epilogue``: passes over the output that a
    tile cannot overlap. ``split_s``, ``split_passes``: fixed time, and passes over the partial sums, when k is split;
    ``split_cache_fraction``: partial sums of much less than this fraction of the cache never reach the memory.
    ``wave_quantisation``: see ``waves``. ``memory_fraction``: of the memory bandwidth; ``memory_ramp_bytes``: a call of
    so few bytes takes twice as long for them, one of 100 times as many a tenth longer. ``overlap``,
    ``memory_overlap``: exponents of the p-norms within a multiprocessor, and between these and the memory; the larger,
    the better do they overlap. ``tiles``: rows and columns of the library's tiles; ``splits``: of k, that it may use.
    """

    peak_fraction: float
    throttle: float
    throttle_after_s: float
    throttle_sharpness: float
    k_overhead: float
    step_s: float
    cache_bandwidth_bytes_per_s: float
    epilogue: float
    split_s: float
    split_passes: float
    split_cache_fraction: float
    wave_quantisation: float
    memory_fraction: float
    memory_ramp_bytes: float
    overlap: float
    memory_overlap: float
    latency_s: float
    tiles: tuple[tuple[int, int], ...]
    splits: tuple[int, ...]


def gemm_times(calls: Calls, peak_flop_per_s: float, device: DeviceSpec, gemm: GemmProfile) -> Times:
    """Return the times of (batched) products on a device whose arithmetic units have a peak rate for their dtype."""
    memory_s = _memory_s(calls, device, gemm)
    units_s, whole_s = candidate_times(calls, peak_flop_per_s, device, gemm)
    best = np.argmin(whole_s, axis=1)[:, None]
    chosen_s = np.take_along_axis(whole_s, best, axis=1)[:, 0]
    busy_s = np.take_along_axis(units_s, best, axis=1)[:, 0]
    return Times(gemm.latency_s + chosen_s - np.maximum(busy_s, memory_s), busy_s, memory_s)


def candidate_times(calls: Calls, peak_flop_per_s: float, device: DeviceSpec, gemm: GemmProfile) -> tuple[Array, Array]:
    """Return the seconds of the multiprocessors and of all, less the fixed time, per call and candidate.

    Candidates are tiles times splits, the splits varying fastest; infinite where a split is refused.
    """
    splits = _candidates(gemm.tiles, gemm.splits)[2][None, :]
    units_s, depth = _units_s(calls, peak_flop_per_s, device, gemm)
    whole_s = _norm(gemm.memory_overlap, units_s, _memory_s(calls, device, gemm)[:, None])
    whole_s += np.where(splits > 1, _reduction_s(calls, device, gemm), 0.0)
    slower = throttling(
        calls.executed_flop, peak_flop_per_s, gemm.throttle, gemm.throttle_after_s, gemm.throttle_sharpness
    )[:, None]
    refused = (splits > 1) & (depth < _LEAST_SPLIT_K)
    return units_s * slower, np.where(refused, np.inf, whole_s * slower)


def _units_s(calls: Calls, peak_flop_per_s: float, device: DeviceSpec, gemm: GemmProfile) -> tuple[Array, Array]:
    """Return how long the multiprocessors take, and how much of k each block has, per call and candidate."""
    rows, columns, splits = (column[None, :] for column in _candidates(gemm.tiles, gemm.splits))
    m, n, k, batch = (column[:, None] for column in (calls.m, calls.n, calls.k, calls.batch))
    units, area = device.num_multiprocessors, rows * columns
    fill = np.ceil(m / rows) * np.ceil(n / columns) * batch * splits / units
    depth = np.ceil(k / (splits * _K_STEP)) * _K_STEP
    in_turn = waves(fill, gemm.wave_quantisation) * units
    compute_s = in_turn * 2.0 * area * (depth + gemm.k_overhead) / (peak_flop_per_s * gemm.peak_fraction)
    steps = (depth + gemm.k_overhead) * calls.element_bytes / _STEP_BYTES
    waiting_s = np.maximum(1.0, fill / _RESIDENT) * steps * gemm.step_s
    loading_s = in_turn * (rows + columns) * depth * calls.element_bytes / gemm.cache_bandwidth_bytes_per_s
    blocks = np.maximum(fill, 1.0) * units
    storing_s = blocks * area * calls.element_bytes * gemm.epilogue / device.memory_bandwidth_bytes_per_s
    return _norm(gemm.overlap, compute_s, loading_s + storing_s, waiting_s), depth


def _memory_s(calls: Calls, device: DeviceSpec, gemm: GemmProfile) -> Array:
    """Return how long operands and result take to and from the memory, which few bytes do not bring up to its rate."""
    ramp = 1.0 + np.sqrt(gemm.memory_ramp_bytes / calls.num_bytes)
    seconds: Array = ramp * calls.num_bytes / (device.memory_bandwidth_bytes_per_s * gemm.memory_fraction)
    return seconds


def _reduction_s(calls: Calls, device: DeviceSpec, gemm: GemmProfile) -> Array:
    """Return how long adding up the partial sums of a split k takes, per call and candidate."""
    splits = _candidates(gemm.tiles, gemm.splits)[2][None, :]
    num_bytes = splits * (calls.m * calls.n * calls.batch)[:, None] * _PARTIAL_BYTES
    spilled = num_bytes / (num_bytes + gemm.split_cache_fraction * device.l2_cache_bytes)
    seconds: Array = gemm.split_s + spilled * num_bytes * gemm.split_passes / device.memory_bandwidth_bytes_per_s
    return seconds


@cache
def _candidates(tiles: tuple[tuple[int, int], ...], splits: tuple[int, ...]) -> tuple[Array, Array, Array]:
    """Return rows, columns and splits of k of everything that the library may choose from."""
    found = [(rows, columns, split) for rows, columns in tiles for split in splits]
    row, column, split = np.array(found, dtype=np.float64).T
    return row, column, split


def _norm(p: float, *seconds: Array) -> Array:
    """Return the p-norm, at least the largest of the times."""
    largest = np.maximum.reduce(np.broadcast_arrays(*seconds))
    total = sum((part / largest) ** p for part in seconds)
    whole: Array = largest * np.asarray(total) ** (1.0 / p)
    return whole
