"""The fit of matrix products on a device with a data sheet: numbers, tiles, splits, and the library's ranking.

The kernel of a call depends on the numbers, and changes in jumps. So two fits alternate: of the numbers for fixed
kernels, and of the library's choice of kernels. No derivative crosses a jump.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np
from msgspec.structs import replace

from costmodels.calibration.batches import Batch, batches
from costmodels.calibration.fitting import Parameter, fit, values_of
from costmodels.calibration.samples import KernelSample
from costmodels.calibration.tile_choice import offered, with_chosen_kernels, with_tiles
from costmodels.calibration.uncertainty import Estimate
from costmodels.hardware import DeviceSpec
from costmodels.timing.gemm import GemmProfile, Tiling, chosen_kernels, kernel_times
from costmodels.timing.times import Array

LIMITS: Final[Mapping[str, tuple[float, float]]] = {
    "peak_fraction": (0.3, 1.0), "power_fraction": (0.3, 2.0), "throttle": (1e-3, 2.0),
    "throttle_after_s": (1e-5, 0.1), "throttle_sharpness": (1.0, 8.0), "k_overhead": (1.0, 3e3),
    "later_overhead": (0.01, 1.0), "step_s": (1e-10, 4e-7), "cache_bandwidth_bytes_per_s": (5e11, 1e14),
    "epilogue": (0.01, 30.0), "block_s": (1e-11, 1e-6), "split_s": (1e-8, 2e-5), "split_part_s": (1e-10, 1e-6),
    "split_passes": (0.02, 20.0), "split_cache_fraction": (0.01, 30.0), "wave_quantisation": (0.01, 1.0),
    "memory_quantisation": (0.01, 1.0), "memory_fraction": (0.3, 1.0), "memory_ramp_bytes": (1e3, 1e8),
    "cache_fraction": (0.02, 4.0), "cache_speedup": (1.0, 8.0),
    "overlap": (1.0, 20.0), "memory_overlap": (1.0, 20.0), "latency_s": (5e-7, 1.5e-5),
}  # fmt: skip
"""Limits of every fitted number."""
_OUTLIER: Final = 0.03
"""Scale of the loss: libraries choose kernels by unknown rules, so residuals have a long tail."""
_LONG_S: Final = 10e-6
_LONG_WEIGHT: Final = 6.0
"""Weight of long calls: short calls are mostly fixed time and a small part of a step, so they weigh a sixth."""
_LEAST_FOR_CHOICE: Final = 500
"""Fewest measurements for a choice of the library's tiles, splits and ranking; with fewer these stay."""
_NUM_STARTS: Final = 8
_TILES_AT_START: Final = 8
"""Number of random tiles at a start: the search ends at a local optimum, so it is run from several starts."""
_TURNS: Final = 8
_EVALUATIONS: Final = 12
_LAST_EVALUATIONS: Final = 60
"""Evaluations of the last fit; the fits before are shorter, as the next one continues from them."""


def fit_products(
    samples: Sequence[KernelSample], device: DeviceSpec, gemm: GemmProfile
) -> tuple[GemmProfile, Mapping[str, Estimate]]:
    """Return the section of matrix products fitted to the samples, and the estimates of its numbers.

    The estimates' standard errors treat the library's choice of kernels as known. Raises CalibrationError for fewer
    samples than numbers.
    """
    ours, seconds = batches(samples), np.array([s.seconds for s in samples])
    weights = np.where(seconds > _LONG_S, _LONG_WEIGHT, 1.0)
    found = [_taken_turns(ours, seconds, weights, device, start) for start in _starts(gemm, len(samples))]
    best = min(found, key=lambda one: _error(ours, seconds, weights, device, one))
    ends = [_fit_numbers(ours, seconds, weights, device, best, count) for count in (1, _LAST_EVALUATIONS)]
    return min(ends, key=lambda end: _error(ours, seconds, weights, device, end[0]))


def _starts(gemm: GemmProfile, num_samples: int) -> Iterator[GemmProfile]:
    """Yield starts of the search: the section as it is, and random tiles with rankings close to the real times."""
    yield gemm
    random = np.random.default_rng(_NUM_STARTS)
    for _ in range(_NUM_STARTS if num_samples >= _LEAST_FOR_CHOICE else 0):
        chosen = random.choice(len(offered(gemm)), _TILES_AT_START, replace=False).tolist()
        cache, split = float(random.choice([0.5, 1.0, 2.0])), float(random.choice([1.0, 2.0]))
        yield replace(with_tiles(gemm, chosen), ranked_cache=cache, ranked_split=split)


def _taken_turns(
    ours: Sequence[Batch], seconds: Array, weights: Array, device: DeviceSpec, gemm: GemmProfile
) -> GemmProfile:
    """Return the best result of alternating fits of the library's choice and of the numbers."""
    turns = [gemm]
    for _ in range(_TURNS):
        if len(seconds) >= _LEAST_FOR_CHOICE:
            gemm = with_chosen_kernels(ours, seconds, weights, device, gemm)
        gemm, _ = _fit_numbers(ours, seconds, weights, device, gemm, _EVALUATIONS)
        turns.append(gemm)
    return min(turns, key=lambda turn: _error(ours, seconds, weights, device, turn))


def _error(ours: Sequence[Batch], seconds: Array, weights: Array, device: DeviceSpec, gemm: GemmProfile) -> float:
    """Return the weighted mean of |predicted/measured - 1|."""
    predicted = _seconds(ours, _chosen(ours, device, gemm), gemm)
    return float(np.average(np.abs(predicted / seconds - 1.0), weights=weights))


def _fit_numbers(
    ours: Sequence[Batch], seconds: Array, weights: Array, device: DeviceSpec, gemm: GemmProfile, num_evaluations: int
) -> tuple[GemmProfile, Mapping[str, Estimate]]:
    """Return the profile with its numbers fitted for the kernels chosen before, and their estimates."""
    kernels = _chosen(ours, device, gemm)
    parameters = [Parameter(name, getattr(gemm, name), *limits) for name, limits in LIMITS.items()]

    def predicted(values: Mapping[str, float]) -> Array:
        return _seconds(ours, kernels, replace(gemm, **values))

    found = fit(
        parameters, predicted, seconds, num_evaluations=num_evaluations, outlier=_OUTLIER, weights=weights
    )  # fmt: skip
    return replace(gemm, **values_of(found)), found


def _chosen(ours: Sequence[Batch], device: DeviceSpec, gemm: GemmProfile) -> list[Tiling]:
    return [chosen_kernels(batch.calls, device.peak(batch.dtype), device, gemm) for batch in ours]


def _seconds(ours: Sequence[Batch], kernels: Sequence[Tiling], gemm: GemmProfile) -> Array:
    """Return the seconds of all samples, each with its kernel, in the order before ``batches``."""
    seconds = np.zeros(sum(len(batch.rows) for batch in ours))
    for batch, chosen in zip(ours, kernels, strict=True):
        _, whole_s = kernel_times(chosen, chosen.device.peak(batch.dtype), gemm)
        seconds[batch.rows] = gemm.latency_s + whole_s[:, 0]
    return seconds
