"""Estimate how far a family's calls lie from their predictions, and how alike neighbours err, from measured ones."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from costmodels.spread import Place, Spread, distances

LEAST: Final = 30
"""Calls from which it is estimated how alike they err, and in each part of the lengths how far off they are."""
FEW: Final = 0.5
"""Assumption: of fewer calls half of the variance is common."""
_PER_DECADE: Final = 2
_EDGES: Final = np.array([0.0, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0])
"""Distances, in octaves, between which pairs are taken together; pairs that are farther apart count as far."""
_MOST: Final = 4000
"""Calls whose pairs are looked at: 16 million."""
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Erred:
    """A measured call: where it stands in its family, what was predicted and what it took, in seconds."""

    place: Place
    predicted_s: float
    measured_s: float


def spread_of(calls: Sequence[Erred]) -> Spread:
    """Return the errors of a family's calls, every series counting as much as any other.

    Standard deviations are root mean squares, of half-decades of predicted length with ``LEAST`` calls or more each.
    The correlation's parameters are those of least squares to the mean products of errors over their deviations
    (Matheron's method of moments), by distance and weighted by the number of pairs; far pairs and those of two series
    show what is common.
    """
    series = Counter(call.place.series for call in calls)
    weights = np.array([1.0 / series[call.place.series] for call in calls])
    predicted_s = np.array([call.predicted_s for call in calls])
    errors = np.log(np.array([call.measured_s for call in calls]) / predicted_s)
    deviation = _deviations(predicted_s, errors, weights)
    if len(calls) < LEAST:
        return Spread(deviation=deviation, common=FEW)
    spread = Spread(deviation=deviation, common=0.0)
    scaled = errors / np.array([max(spread.at(seconds), 1e-9) for seconds in predicted_s.tolist()])
    chosen = np.linspace(0, len(calls) - 1, min(len(calls), _MOST)).round().astype(int)
    pairs = _mean_products([calls[i].place for i in chosen], scaled[chosen], weights[chosen])
    return Spread(deviation=deviation, **_correlation(pairs))


def _deviations(predicted_s: Floats, errors: Floats, weights: Floats) -> tuple[tuple[float, float], ...]:
    """Return of every part of the lengths its geometric mean and the root mean square of its errors."""
    half_decades = np.floor(np.log10(predicted_s) * _PER_DECADE).astype(int)
    parts: list[list[int]] = [[]]
    for half_decade in np.unique(half_decades):
        if len(parts[-1]) >= LEAST:
            parts.append([])
        parts[-1] += np.flatnonzero(half_decades == half_decade).tolist()
    if len(parts) > 1 and len(parts[-1]) < LEAST:
        last = parts.pop()
        parts[-1] += last
    return tuple(
        (
            float(np.exp(np.average(np.log(predicted_s[part]), weights=weights[part]))),
            float(np.sqrt(np.average(errors[part] ** 2, weights=weights[part]))),
        )
        for part in parts
    )


@dataclass(frozen=True, slots=True)
class _Pairs:
    """Of pairs about as far ``apart`` (far ones and those of two series endlessly), the mean of their products."""

    apart: Floats
    products: Floats
    weights: Floats


def _mean_products(places: Sequence[Place], scaled: Floats, weights: Floats) -> _Pairs:
    """Return the mean products of pairs by their distance."""
    num_bins = len(_EDGES)
    sums, norms, lengths = np.zeros(num_bins), np.zeros(num_bins), np.zeros(num_bins)
    rows: dict[object, list[int]] = {}
    for row, place in enumerate(places):
        rows.setdefault(place.series, []).append(row)
    for ours in rows.values():
        apart = distances([places[row] for row in ours])
        first, second = np.triu_indices(len(ours), 1)
        bins = np.digitize(apart[first, second], _EDGES) - 1
        pairs = np.outer(weights[ours], weights[ours])[first, second]
        products = np.outer(scaled[ours], scaled[ours])[first, second]
        sums += np.bincount(bins, pairs * products, num_bins)
        norms += np.bincount(bins, pairs, num_bins)
        lengths += np.bincount(bins, pairs * apart[first, second], num_bins)
    of_series = np.array([[np.sum(weights[r] * scaled[r]), np.sum(weights[r])] for r in rows.values()])
    (all_sum, all_weight), squares = of_series.sum(axis=0), (of_series**2).sum(axis=0)
    far_sum = sums[-1] + (all_sum**2 - squares[0]) / 2
    far_norm = norms[-1] + (all_weight**2 - squares[1]) / 2
    norms[-1], sums[-1], lengths[-1] = far_norm, far_sum, np.inf
    known = norms > 0
    norms = norms[known]
    return _Pairs(np.where(norms > 0, lengths[known] / norms, 0.0), sums[known] / norms, norms)


def _correlation(pairs: _Pairs) -> dict[str, float]:
    """Return the parts of the variance, and the distance, that come nearest to mean products of errors."""

    def residuals(parameters: Floats) -> Floats:
        common, near, octaves = parameters
        found: Floats = np.sqrt(pairs.weights) * (common + near * np.exp(-pairs.apart / octaves) - pairs.products)
        return found

    limits = ([0.0, 0.0, 0.1], [1.0, 1.0, 16.0])
    common, near, octaves = least_squares(residuals, [0.1, 0.4, 1.0], bounds=limits).x.tolist()
    return {"common": common, "near": min(near, 1.0 - common), "octaves": octaves}
