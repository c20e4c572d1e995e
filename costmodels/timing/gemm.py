"""Matrix products: tiles in waves over the multiprocessors, against the memory and the cache between.

The output is cut into tiles, each computed by one multiprocessor in a loop over k; k may be split over several, whose
sums are then added up. Four things may bound the loop, and none overlaps the others perfectly: the arithmetic units,
the cache that tiles are loaded from, the time from one k-step's load to its use, and the power limit. Multiprocessors
that wait for a last wave draw little power, so the others keep a higher clock: the limit counts FLOP, not waves. A
library ranks its tiles and splits by an estimate of its own, and runs the first one. The estimate ignores the power
limit and a tile's prologue and epilogue. It also weighs a last wave, the cache and a split otherwise than the real
times do. Operands that fit into a part of the cache come from there. The soft maximum of times that overlap is their
p-norm. Sources: NVIDIA, Matrix Multiplication
Background User's Guide (tiles, waves); CUTLASS, efficient_gemm.md (split k); NVIDIA H100 Tensor Core GPU Architecture
(clusters of blocks that share what they load); Williams et al. 2009 (roofline); Choi et al. 2013, A Roofline Model of
Energy (a cap on power as a bound of its own).
"""

from functools import cache, cached_property, reduce
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from costmodels.hardware import DeviceSpec
from costmodels.timing.times import Array, Calls, Times, cache_speedup, throttling, waves

_LEAST_SPLIT_K: Final = 64
_K_STEP: Final = 32
_STEP_BYTES: Final = 128
"""Bytes of k that one stage of the loop's pipeline loads per row: 64 elements of two bytes."""
_SHALLOW_K: Final = (64, 128)
"""Shallow k: above the first and up to the second it is two steps of 64, too few to fill a pipeline."""
_CACHE_SHARPNESS: Final = 6.0
"""Sharpness of the limit at which operands no longer stay in the cache: operands used in turn evict each other."""
_RESIDENT: Final = 2.0
"""Number of thread blocks of one multiprocessor that hide each other's latency."""
_PARTIAL_BYTES: Final = 8.0
"""A partial sum is written and read once in float32."""


class GemmProfile(Struct, frozen=True, kw_only=True):
    """Parameters of the matrix-product model.

    The loop over k. ``peak_fraction``: fraction of the peak that it reaches. ``k_overhead``: prologue and epilogue of a
    tile, in elements of k. ``later_overhead``: the fraction of it for later tiles of a multiprocessor, whose loads may
    start early. ``step_s``: from the load of 128 bytes of k to their use. ``cache_bandwidth_bytes_per_s``: of all
    multiprocessors together. ``epilogue``: passes over the output that a tile cannot overlap. ``block_s``: to hand out
    one block, of a tile and a part of k.

    The power limit. ``power_fraction``: fraction of the peak that it allows a short call, infinite if it never binds.
    ``throttle``, ``throttle_after_s``, ``throttle_sharpness``: the lower limit of a long call, see ``throttling``.

    Splits of k. ``split_s``, ``split_part_s``, ``split_passes``: fixed time, time per part, and passes over the partial
    sums. ``split_cache_fraction``: partial sums far below this fraction of the cache never reach the memory.

    Waves. ``wave_quantisation``: see ``waves``. ``memory_quantisation``: the fraction of a last wave's gap that the
    memory loses too, as few multiprocessors cannot use all of its bandwidth.

    Memory. ``memory_fraction``: of the memory bandwidth. ``memory_ramp_bytes``: the transfers of a call of this size
    take twice as long, those of one 100 times as large a tenth longer. ``cache_fraction``, ``cache_speedup``: operands
    below this fraction of the cache are found in it, and arrive faster by this factor.

    Overlap. ``overlap``, ``memory_overlap``: exponents of the p-norms within a multiprocessor, and between it and the
    memory; larger exponents mean better overlap.

    The library. ``tiles``: rows and columns of its tiles. ``paired_tiles``: tiles whose blocks run in pairs on two
    multiprocessors, one tile below the other, and share the second operand. ``splits``: its splits of k.
    ``shallow_area``: rows times columns of the largest tile for a k too short to fill a pipeline, see ``_SHALLOW_K``.
    ``ranked_quantisation``, ``ranked_cache``, ``ranked_split``: the values of its ranking: for ``wave_quantisation``,
    and as multiples of the cache's bandwidth and of a split's cost.
    """

    peak_fraction: float
    power_fraction: float
    throttle: float
    throttle_after_s: float
    throttle_sharpness: float
    k_overhead: float
    later_overhead: float
    step_s: float
    cache_bandwidth_bytes_per_s: float
    epilogue: float
    block_s: float
    split_s: float
    split_part_s: float
    split_passes: float
    split_cache_fraction: float
    wave_quantisation: float
    memory_quantisation: float
    memory_fraction: float
    memory_ramp_bytes: float
    cache_fraction: float
    cache_speedup: float
    overlap: float
    memory_overlap: float
    latency_s: float
    ranked_quantisation: float
    ranked_cache: float
    ranked_split: float
    shallow_area: float
    tiles: tuple[tuple[int, int], ...]
    paired_tiles: tuple[tuple[int, int], ...]
    splits: tuple[int, ...]


class Kernels(Struct, frozen=True):
    """A library's kernels: rows and columns of tiles, blocks that share the column operand (1 or 2), parts of k.

    Each of shape (calls, 1), or (1, kernels) for all kernels of a library.
    """

    rows: Array
    columns: Array
    sharing: Array
    splits: Array


class Tiling(Struct, frozen=True, dict=True):
    """Calls on some kernels of a device, and how these cut them, which no number of a profile changes: found once.

    Its arrays have a row per call, and one column, or a column per kernel of a library.
    """

    calls: Calls
    kernels: Kernels
    device: DeviceSpec

    @cached_property
    def area(self) -> Array:
        """Return the elements of the output that a tile has."""
        return self.kernels.rows * self.kernels.columns

    @cached_property
    def row_tiles(self) -> Array:
        """Return the number of tiles along m, in whole pairs where blocks run in pairs."""
        rows, sharing = self.kernels.rows, self.kernels.sharing
        whole: Array = np.ceil(self.calls.m[:, None] / (rows * sharing)) * sharing
        return whole

    @cached_property
    def column_tiles(self) -> Array:
        """Return the number of tiles along n."""
        whole: Array = np.ceil(self.calls.n[:, None] / self.kernels.columns)
        return whole

    @cached_property
    def depth(self) -> Array:
        """Return the part of k of each block, in whole steps."""
        whole: Array = np.ceil(self.calls.k[:, None] / (self.kernels.splits * _K_STEP)) * _K_STEP
        return whole

    @cached_property
    def blocks(self) -> Array:
        """Return the number of blocks: tiles of the output times parts of k."""
        return self.row_tiles * self.column_tiles * self.calls.batch[:, None] * self.kernels.splits

    @cached_property
    def is_split(self) -> NDArray[np.bool_]:
        """Return whether k is split over several blocks."""
        return self.kernels.splits > 1

    @cached_property
    def asked_more(self) -> Array:
        """Return the elements that full waves of blocks request beyond the operands' own.

        An operand's slices, one per row or column of tiles and part of k, are spread over the multiprocessors.
        """
        calls, kernels, units = self.calls, self.kernels, self.device.num_multiprocessors
        k, batch = calls.k[:, None], calls.batch[:, None]
        asked = np.zeros(np.broadcast_shapes(k.shape, kernels.splits.shape))
        sides = (
            (calls.m[:, None], kernels.rows, self.row_tiles),
            (calls.n[:, None], kernels.columns, self.column_tiles),
        )
        for size, tile, num_tiles in sides:
            fill = num_tiles * batch * kernels.splits / units
            whole = np.ceil(fill) * units * tile / kernels.splits
            asked += np.where(fill > 1.0, whole - size * batch, 0.0) * k
        return asked


def gemm_times(calls: Calls, peak_flop_per_s: float, device: DeviceSpec, gemm: GemmProfile) -> Times:
    """Return the times of (batched) products on a device whose arithmetic units have a peak rate for their dtype."""
    tiling = chosen_kernels(calls, peak_flop_per_s, device, gemm)
    units_s, whole_s = (seconds[:, 0] for seconds in kernel_times(tiling, peak_flop_per_s, gemm))
    memory_s = _memory_s(tiling, calls.bytes_read[:, None], gemm)[:, 0]
    return Times(gemm.latency_s + whole_s - np.maximum(units_s, memory_s), units_s, memory_s)


def library_kernels(gemm: GemmProfile) -> Kernels:
    """Return all kernels of the library: tiles times splits, the splits varying fastest."""
    return Kernels(*(column[None, :] for column in _candidates(gemm.tiles, gemm.paired_tiles, gemm.splits)))


def chosen_kernels(calls: Calls, peak_flop_per_s: float, device: DeviceSpec, gemm: GemmProfile) -> Tiling:
    """Return the calls on the kernels that the library chooses: the first by its own ranking."""
    everything = library_kernels(gemm)
    columns = (everything.rows, everything.columns, everything.sharing, everything.splits)
    best = np.zeros(len(calls.m), dtype=np.intp)
    if everything.rows.size > 1:
        best = np.argmin(ranked_times(Tiling(calls, everything, device), peak_flop_per_s, gemm), axis=1)
    return Tiling(calls, Kernels(*(column[0, best][:, None] for column in columns)), device)


def ranked_times(tiling: Tiling, peak_flop_per_s: float, gemm: GemmProfile) -> Array:
    """Return a library's estimated seconds, by which it ranks kernels, per call and kernel.

    Infinite if it refuses one.
    """
    library = replace(
        gemm, wave_quantisation=gemm.ranked_quantisation,
        cache_bandwidth_bytes_per_s=gemm.cache_bandwidth_bytes_per_s * gemm.ranked_cache,
        split_s=gemm.split_s * gemm.ranked_split, split_part_s=gemm.split_part_s * gemm.ranked_split,
        split_passes=gemm.split_passes * gemm.ranked_split, power_fraction=np.inf, k_overhead=0.0,
    )  # fmt: skip
    _, whole_s = kernel_times(tiling, peak_flop_per_s, library)
    k = tiling.calls.k[:, None]
    shallow = (k > _SHALLOW_K[0]) & (k <= _SHALLOW_K[1])
    too_deep = tiling.is_split & (tiling.depth < _LEAST_SPLIT_K)
    return np.where(too_deep | (shallow & (tiling.area > gemm.shallow_area)), np.inf, whole_s)


def kernel_times(tiling: Tiling, peak_flop_per_s: float, gemm: GemmProfile) -> tuple[Array, Array]:
    """Return the seconds of the multiprocessors and of all, less the fixed time, per call and kernel."""
    calls = tiling.calls
    units_s = _units_s(tiling, peak_flop_per_s, gemm)
    asked_bytes = calls.bytes_read[:, None] + gemm.memory_quantisation * calls.element_bytes * tiling.asked_more
    whole_s = _norm(gemm.memory_overlap, units_s, _memory_s(tiling, asked_bytes, gemm))
    if not tiling.is_split.any():
        return units_s, whole_s
    return units_s, whole_s + np.where(tiling.is_split, _reduction_s(tiling, gemm), 0.0)


def _units_s(tiling: Tiling, peak_flop_per_s: float, gemm: GemmProfile) -> Array:
    """Return the seconds of the multiprocessors, per call and kernel."""
    calls, kernels, device = tiling.calls, tiling.kernels, tiling.device
    units, area, depth, blocks = device.num_multiprocessors, tiling.area, tiling.depth, tiling.blocks
    fill = blocks / units
    in_turn = waves(fill, gemm.wave_quantisation) * units
    overhead = gemm.k_overhead * (units + gemm.later_overhead * (in_turn - units))
    compute_s = 2.0 * area * (in_turn * depth + overhead) / (peak_flop_per_s * gemm.peak_fraction)
    steps = (depth + gemm.k_overhead) * calls.element_bytes / _STEP_BYTES
    waiting_s = np.maximum(1.0, fill / _RESIDENT) * steps * gemm.step_s
    side = kernels.rows + kernels.columns / kernels.sharing
    loading_s = in_turn * side * depth * calls.element_bytes / gemm.cache_bandwidth_bytes_per_s
    stored = np.maximum(blocks, units) * area * calls.element_bytes
    storing_s = stored * gemm.epilogue / device.memory_bandwidth_bytes_per_s
    powered_s = _powered_s(calls, peak_flop_per_s, gemm)[:, None]
    return _norm(gemm.overlap, compute_s, loading_s + storing_s, waiting_s, powered_s) + blocks * gemm.block_s


def _powered_s(calls: Calls, peak_flop_per_s: float, gemm: GemmProfile) -> Array:
    """Return the least seconds of the FLOP under the power limit, for any distribution over the multiprocessors."""
    flop = calls.executed_flop
    slower = throttling(flop, peak_flop_per_s, gemm.throttle, gemm.throttle_after_s, gemm.throttle_sharpness)
    seconds: Array = flop / (peak_flop_per_s * gemm.power_fraction) * slower
    return seconds


def _memory_s(tiling: Tiling, asked_bytes: Array, gemm: GemmProfile) -> Array:
    """Return the seconds to move operands and result; small transfers do not reach the memory's full rate.

    ``asked_bytes``: of the operands, of shape (calls, 1) or (calls, kernels), which is also the shape of the result.
    """
    calls, device = tiling.calls, tiling.device
    held_bytes = gemm.cache_fraction * device.l2_cache_bytes
    faster = cache_speedup(calls.bytes_read, held_bytes, gemm.cache_speedup, _CACHE_SHARPNESS)
    num_bytes = asked_bytes / faster[:, None] + calls.bytes_written[:, None]
    ramp = 1.0 + np.sqrt(gemm.memory_ramp_bytes / num_bytes)
    seconds: Array = ramp * num_bytes / (device.memory_bandwidth_bytes_per_s * gemm.memory_fraction)
    return seconds


def _reduction_s(tiling: Tiling, gemm: GemmProfile) -> Array:
    """Return the seconds to add up the partial sums of a split k, per call and kernel."""
    calls, kernels, device = tiling.calls, tiling.kernels, tiling.device
    num_bytes = kernels.splits * (calls.m * calls.n * calls.batch)[:, None] * _PARTIAL_BYTES
    spilled = num_bytes / (num_bytes + gemm.split_cache_fraction * device.l2_cache_bytes)
    adding_s = spilled * num_bytes * gemm.split_passes / device.memory_bandwidth_bytes_per_s
    seconds: Array = gemm.split_s + kernels.splits * gemm.split_part_s + adding_s
    return seconds


@cache
def _candidates(
    tiles: tuple[tuple[int, int], ...], paired_tiles: tuple[tuple[int, int], ...], splits: tuple[int, ...]
) -> tuple[Array, ...]:
    """Return rows, columns, sharing blocks and splits of k of all kernels that the library may choose."""
    shapes = [(*tile, 1) for tile in tiles] + [(*tile, 2) for tile in paired_tiles]
    found = [(*shape, split) for shape in shapes for split in splits]
    return tuple(np.array(found, dtype=np.float64).T)


def _norm(p: float, *seconds: Array) -> Array:
    """Return the p-norm of times, which is at least the largest."""
    largest = reduce(np.maximum, seconds)
    total = reduce(np.add, [(part / largest) ** p for part in seconds])
    whole: Array = largest * total ** (1.0 / p)
    return whole
