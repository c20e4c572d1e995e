"""Which tiles and splits a library's matrix products are seen to use, and by what ranking: those that predict best.

A library has compiled kernels for some tiles only, and takes the first by an estimate of its own; neither is on a data
sheet. Tiles and splits come and go one by one while that helps, and the ranking's numbers rise and fall in turn: a
greedy search over short lists, whatever the shapes.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from costmodels.calibration.batches import Batch
from costmodels.hardware import DeviceSpec
from costmodels.timing.gemm import GemmProfile, kernel_times, library_kernels, ranked_times
from costmodels.timing.times import Array

TILES: Final = tuple(
    (rows, columns)
    for rows in (16, 32, 64, 96, 128, 160, 192, 256)
    for columns in (32, 64, 96, 128, 192, 256)
    if 1024 <= rows * columns <= 32768
)
"""Tiles whose sums fit into the registers of a multiprocessor, and that are worth a kernel."""
SPLITS: Final = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32)
RANKING: Final[Mapping[str, tuple[float, float]]] = {
    "ranked_quantisation": (0.01, 1.0),
    "ranked_cache": (0.1, 10.0),
    "ranked_split": (0.05, 20.0),
}
"""Least and most of the numbers that the library ranks by."""
_FACTORS: Final = (2.0, 1.5, 1.2, 1.1)
"""By how much a number of the ranking rises or falls at a time."""
_LEAST_GAIN: Final = 1e-5
_PRICE: Final = 1e-4
"""What one more tile or split must gain in mean error; it keeps the lists short."""
_MOST_ROWS: Final = 2000

Choice = tuple[frozenset[int], frozenset[int]]


@dataclass(frozen=True, slots=True)
class _Errors:
    """Of every call, tile and split: where the library ranks it, |predicted/measured - 1|, and the call's weight."""

    ranked_s: Array
    error: Array
    weight: Array

    def mean(self, choice: Choice) -> float:
        """Return the mean error where the first of the chosen in the ranking is taken, plus the choice's price."""
        tiles, splits = (sorted(part) for part in choice)
        ranked_s, error = (table[:, tiles][:, :, splits] for table in (self.ranked_s, self.error))
        count = len(self.weight)
        first = ranked_s.reshape(count, -1).argmin(axis=1)
        taken = error.reshape(count, -1)[np.arange(count), first]
        return float(np.average(taken, weights=self.weight)) + _PRICE * (len(tiles) + len(splits))


def with_chosen_kernels(
    ours: Sequence[Batch], seconds: Array, weights: Array, device: DeviceSpec, gemm: GemmProfile
) -> GemmProfile:
    """Return the profile with the ranking, tiles and splits under which the mean error against ``seconds`` is least.

    The other parameters stay. ``weights``: of the measurements, of which at most _MOST_ROWS, spread evenly, are looked
    at; one block without split is always among the choices.
    """
    every = -(-len(seconds) // _MOST_ROWS)

    def errors(trial: GemmProfile) -> _Errors:
        return _errors(ours, seconds, weights, every, device, trial)

    gemm = _with_ranking(errors, gemm)
    gemm = _with_lists(errors(replace(gemm, tiles=TILES, splits=SPLITS)), gemm)
    return _with_ranking(errors, gemm)


def _errors(
    ours: Sequence[Batch], seconds: Array, weights: Array, every: int, device: DeviceSpec, gemm: GemmProfile
) -> _Errors:
    """Return what is known of every so many-th call, by tile and by split."""
    kernels, shape = library_kernels(gemm), (-1, len(gemm.tiles), len(gemm.splits))
    tables = []
    for batch in ours:
        calls, rows, peak = batch.calls.every(every), batch.rows[::every], device.peak(batch.dtype)
        _, whole_s = kernel_times(calls, kernels, peak, device, gemm)
        ranked_s = ranked_times(calls, kernels, peak, device, gemm)
        error = np.abs((gemm.latency_s + whole_s) / seconds[rows, None] - 1.0)
        tables.append((ranked_s.reshape(shape), error.reshape(shape), weights[rows]))
    return _Errors(*(np.concatenate(column) for column in zip(*tables, strict=True)))


def _with_ranking(errors: Callable[[GemmProfile], _Errors], gemm: GemmProfile) -> GemmProfile:
    """Return the profile with the numbers of the ranking that predict best, its tiles and splits as they are."""
    whole = (frozenset(range(len(gemm.tiles))), frozenset(range(len(gemm.splits))))
    error = errors(gemm).mean(whole)
    for factor in _FACTORS:
        for name, (least, most) in RANKING.items():
            for change in (factor, 1.0 / factor):
                value = min(max(getattr(gemm, name) * change, least), most)
                trial = replace(gemm, **{name: value})
                found = errors(trial).mean(whole)
                if found < error - _LEAST_GAIN:
                    gemm, error = trial, found
    return gemm


def _with_lists(errors: _Errors, gemm: GemmProfile) -> GemmProfile:
    """Return the profile with the tiles and splits that predict best, from those that it has."""
    tiles = frozenset(i for i, tile in enumerate(TILES) if tile in gemm.tiles) or frozenset(range(len(TILES)))
    splits = frozenset(i for i, split in enumerate(SPLITS) if split in gemm.splits) | {0}
    chosen, error = (tiles, splits), errors.mean((tiles, splits))
    while True:
        best, found = min(((choice, errors.mean(choice)) for choice in _neighbours(chosen)), key=lambda pair: pair[1])
        if found > error - _LEAST_GAIN:
            break
        chosen, error = best, found
    tiles, splits = chosen
    return replace(gemm, tiles=tuple(TILES[i] for i in sorted(tiles)), splits=tuple(SPLITS[i] for i in sorted(splits)))


def _neighbours(choice: Choice) -> list[Choice]:
    """Return the choices with one tile or split more or less."""
    tiles, splits = choice
    changed = [(tiles ^ {i}, splits) for i in range(len(TILES))] + [
        (tiles, splits ^ {i}) for i in range(1, len(SPLITS))
    ]
    return [(t, s) for t, s in changed if t]
