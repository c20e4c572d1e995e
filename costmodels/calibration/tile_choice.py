"""Which tiles and splits a library's matrix products are seen to use: those that predict the measurements best.

A library has compiled kernels for some tiles only, and its heuristics pass over others; neither is on a data sheet.
Tiles and splits come and go one by one while that helps: a greedy search over a short list, whatever the shapes.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from costmodels.calibration.batches import Batch
from costmodels.hardware import DeviceSpec
from costmodels.timing.gemm import GemmProfile, candidate_times
from costmodels.timing.times import Array

TILES: Final = tuple(
    (rows, columns)
    for rows in (16, 32, 64, 96, 128, 160, 192, 256)
    for columns in (32, 64, 96, 128, 192, 256)
    if 1024 <= rows * columns <= 32768
)
"""Tiles whose sums fit into the registers of a multiprocessor, and that are worth a kernel."""
SPLITS: Final = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
_LEAST_GAIN: Final = 1e-4
_PRICE: Final = 1e-4
"""What one more tile or split must gain in mean error; it keeps the lists short."""
_MOST_ROWS: Final = 1000

Choice = tuple[frozenset[int], frozenset[int]]


def with_chosen_kernels(
    ours: Sequence[Batch], seconds: Sequence[float], device: DeviceSpec, gemm: GemmProfile
) -> GemmProfile:
    """Return the profile with the tiles and splits under which the mean error against ``seconds`` is least.

    The other parameters stay. At most _MOST_ROWS measurements, spread evenly, are looked at; one block without split
    is always among the choices.
    """
    every = -(-len(seconds) // _MOST_ROWS)
    everything = replace(gemm, tiles=TILES, splits=SPLITS)
    ratios = np.concatenate(
        [
            _times(batch, every, device, everything) / np.array(seconds)[batch.rows[::every], None, None]
            for batch in ours
        ]
    )
    tiles = frozenset(i for i, tile in enumerate(TILES) if tile in gemm.tiles) or frozenset(range(len(TILES)))
    splits = frozenset(i for i, split in enumerate(SPLITS) if split in gemm.splits) | {0}
    chosen, error = (tiles, splits), _error(ratios, (tiles, splits))
    while True:
        best = min(_neighbours(chosen), key=lambda choice: _error(ratios, choice))
        if _error(ratios, best) > error - _LEAST_GAIN:
            break
        chosen, error = best, _error(ratios, best)
    tiles, splits = chosen
    return replace(gemm, tiles=tuple(TILES[i] for i in sorted(tiles)), splits=tuple(SPLITS[i] for i in sorted(splits)))


def _times(batch: Batch, every: int, device: DeviceSpec, gemm: GemmProfile) -> Array:
    """Return the seconds of every so many-th call, by tile and by split."""
    _, whole_s = candidate_times(batch.calls.every(every), device.peak(batch.dtype), device, gemm)
    return gemm.latency_s + whole_s.reshape(-1, len(gemm.tiles), len(gemm.splits))


def _neighbours(choice: Choice) -> list[Choice]:
    """Return the choices with one tile or split more or less."""
    tiles, splits = choice
    changed = [(tiles ^ {i}, splits) for i in range(len(TILES))] + [
        (tiles, splits ^ {i}) for i in range(1, len(SPLITS))
    ]
    return [(t, s) for t, s in changed if t]


def _error(ratios: Array, choice: Choice) -> float:
    """Return the mean absolute error where the fastest of the chosen is taken, plus the price of the choice."""
    tiles, splits = (sorted(part) for part in choice)
    best = ratios[:, tiles][:, :, splits].min(axis=(1, 2))
    return float(np.abs(best - 1.0).mean()) + _PRICE * (len(tiles) + len(splits))
