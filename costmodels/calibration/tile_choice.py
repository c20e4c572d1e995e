"""The search for a library's tiles, splits and ranking of matrix products: those that predict best.

A library has compiled kernels for some tiles only, and runs the first by its own estimate; neither is on a data sheet.
The search is greedy, over short lists. It adds, removes or exchanges one tile or split at a time, and raises or lowers
one number of the ranking at a time, as long as that helps.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from costmodels.calibration.batches import Batch
from costmodels.hardware import DeviceSpec
from costmodels.timing.gemm import GemmProfile, Tiling, kernel_times, library_kernels, ranked_times
from costmodels.timing.times import Array

_SHAPES: Final = tuple(
    (rows, columns)
    for rows in (16, 32, 64, 96, 128, 160, 192, 256)
    for columns in (32, 64, 96, 128, 192, 256)
    if 1024 <= rows * columns <= 32768
)
"""Tiles whose accumulators fit into the registers of a multiprocessor, and that are large enough for a kernel."""
TILES: Final = tuple((shape, sharing) for sharing in (1, 2) for shape in _SHAPES)
"""All tiles, with single blocks and with pairs of blocks that share an operand."""
SPLITS: Final = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32)
RANKING: Final[Mapping[str, tuple[float, float]]] = {
    "ranked_quantisation": (0.01, 1.0),
    "ranked_cache": (0.1, 10.0),
    "ranked_split": (0.05, 20.0),
    "shallow_area": (1024.0, 32768.0),
}
"""Limits of the numbers of the library's ranking."""
_FACTORS: Final = (2.0, 1.5, 1.2, 1.1)
"""Factors by which the search raises or lowers a number of the ranking."""
_LEAST_GAIN: Final = 1e-5
_PRICE: Final = 1e-4
"""Least gain in mean error from one more tile or split; it keeps the lists short."""
_MOST_ROWS: Final = 2000

Choice = tuple[frozenset[int], frozenset[int]]


def offered(gemm: GemmProfile) -> range:
    """Return the indices in ``TILES`` that a library may have: pairs only if the profile has some.

    Devices before Hopper run no blocks in pairs.
    """
    return range(len(TILES) if gemm.paired_tiles else len(_SHAPES))


def with_tiles(gemm: GemmProfile, chosen: Collection[int]) -> GemmProfile:
    """Return the profile with some of ``TILES``, by their indices."""
    alone, paired = (
        tuple(shape for i, (shape, sharing) in enumerate(TILES) if i in chosen and sharing == blocks)
        for blocks in (1, 2)
    )
    return replace(gemm, tiles=alone, paired_tiles=paired)


class _Errors(Struct, frozen=True):
    """By call, tile and split: the library's ranking, |predicted/measured - 1|, and the call's weight."""

    ranked_s: Array
    error: Array
    weight: Array

    def mean(self, choice: Choice) -> float:
        """Return the mean error of the best-ranked kernels among the chosen, plus the choice's price."""
        tiles, splits = (sorted(part) for part in choice)
        ranked_s, error = (table[:, tiles][:, :, splits] for table in (self.ranked_s, self.error))
        count = len(self.weight)
        _, taken = _first(ranked_s.reshape(count, -1), error.reshape(count, -1))
        return float(np.average(taken, weights=self.weight)) + _PRICE * (len(tiles) + len(splits))

    def with_other_tile(self, choice: Choice) -> Choice:
        """Return the best choice with one tile added, removed or exchanged."""
        tiles, splits = choice
        ranked_s, error = (table[:, :, sorted(splits)].swapaxes(1, 2) for table in (self.ranked_s, self.error))
        return _exchanged(*_first(ranked_s, error), self.weight, tiles, tiles), splits

    def with_other_split(self, choice: Choice) -> Choice:
        """Return the best choice with one split added, removed or exchanged; the whole k always stays."""
        tiles, splits = choice
        ranked_s, error = (table[:, sorted(tiles)] for table in (self.ranked_s, self.error))
        return tiles, _exchanged(*_first(ranked_s, error), self.weight, splits, splits - {0})


def _first(ranked_s: Array, error: Array) -> tuple[Array, Array]:
    """Return the minimum of the ranking along the second axis, and the error there."""
    at = ranked_s.argmin(axis=1)[:, None]
    return np.take_along_axis(ranked_s, at, axis=1)[:, 0], np.take_along_axis(error, at, axis=1)[:, 0]


def _exchanged(
    ranked_s: Array, error: Array, weight: Array, members: frozenset[int], may_go: frozenset[int]
) -> frozenset[int]:
    """Return the members with one added, removed or exchanged, or unchanged, at the least mean error.

    ``ranked_s``, ``error``: of shape (calls, candidates). A member never ranks before the members' first, so exchanging
        one also removes it.
    """
    found = [(np.inf, members)]
    for gone in [frozenset[int](), *(frozenset({member}) for member in sorted(may_go) if len(members) > 1)]:
        rest = members - gone
        standing_s, standing = (column[:, None] for column in _first(*(t[:, sorted(rest)] for t in (ranked_s, error))))
        means = np.average(np.where(ranked_s < standing_s, error, standing), axis=0, weights=weight)
        means += _PRICE * np.array([len(rest | {i}) for i in range(len(means))])
        found.append((float(means.min()), rest | {int(means.argmin())}))
    return min(found, key=lambda pair: pair[0])[1]


def with_chosen_kernels(
    ours: Sequence[Batch], seconds: Array, weights: Array, device: DeviceSpec, gemm: GemmProfile
) -> GemmProfile:
    """Return the profile with the ranking, tiles and splits of the least mean error against ``seconds``.

    The other parameters stay. One block without split is always among the choices.
    ``weights``: of the measurements, of which at most _MOST_ROWS, spread evenly, are used.
    """
    every = -(-len(seconds) // _MOST_ROWS)

    def errors(trial: GemmProfile) -> _Errors:
        return _errors(ours, seconds, weights, every, device, trial)

    gemm = _with_ranking(errors, gemm)
    gemm = _with_lists(errors(replace(with_tiles(gemm, offered(gemm)), splits=SPLITS)), gemm)
    return _with_ranking(errors, gemm)


def _errors(
    ours: Sequence[Batch], seconds: Array, weights: Array, every: int, device: DeviceSpec, gemm: GemmProfile
) -> _Errors:
    """Return the errors of every ``every``-th call, by tile and by split."""
    kernels, shape = library_kernels(gemm), (-1, len(gemm.tiles) + len(gemm.paired_tiles), len(gemm.splits))
    tables = []
    for batch in ours:
        calls, rows, peak = batch.calls.every(every), batch.rows[::every], device.peak(batch.dtype)
        tiling = Tiling(calls, kernels, device)
        _, whole_s = kernel_times(tiling, peak, gemm)
        ranked_s = ranked_times(tiling, peak, gemm)
        error = np.abs((gemm.latency_s + whole_s) / seconds[rows, None] - 1.0)
        tables.append((ranked_s.reshape(shape), error.reshape(shape), weights[rows]))
    return _Errors(*(np.concatenate(column) for column in zip(*tables, strict=True)))


def _with_ranking(errors: Callable[[GemmProfile], _Errors], gemm: GemmProfile) -> GemmProfile:
    """Return the profile with the best predicting numbers of the ranking; its tiles and splits stay."""
    num_tiles = len(gemm.tiles) + len(gemm.paired_tiles)
    whole = (frozenset(range(num_tiles)), frozenset(range(len(gemm.splits))))
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
    """Return the profile with the best predicting tiles and splits, searched from its own."""
    ours = {*((tile, 1) for tile in gemm.tiles), *((tile, 2) for tile in gemm.paired_tiles)}
    tiles = frozenset(i for i, tile in enumerate(TILES) if tile in ours) or frozenset(offered(gemm))
    splits = frozenset(i for i, split in enumerate(SPLITS) if split in gemm.splits) | {0}
    chosen, error = (tiles, splits), errors.mean((tiles, splits))
    while True:
        trial = errors.with_other_split(errors.with_other_tile(chosen))
        found = errors.mean(trial)
        if found > error - _LEAST_GAIN:
            break
        chosen, error = trial, found
    tiles, splits = chosen
    return replace(with_tiles(gemm, tiles), splits=tuple(SPLITS[i] for i in sorted(splits)))
