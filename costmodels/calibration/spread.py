"""Estimate of a family's prediction errors, and of their correlation between similar calls, from measured calls."""

from collections import Counter
from collections.abc import Sequence
from typing import Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray
from scipy.optimize import least_squares
from scipy.special import ndtri, stdtrit

from costmodels.spread import Place, Spread, distances

LEAST: Final = 30
"""Fewest calls for an estimate of the correlation, and for each range of lengths with its own deviation."""
FEW: Final = 0.5
"""Assumption for fewer calls: half of the variance is common."""
_PER_DECADE: Final = 2
_EDGES: Final = np.array([0.0, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0])
"""Edges of the distance classes of pairs, in octaves."""
_OCTAVES: Final = (0.1, 16.0)
"""Limits of the distance at which the shared part falls by a factor of e."""
_MOST: Final = 4000
"""Largest number of calls whose pairs are examined: 16 million pairs."""
Floats = NDArray[np.float64]


class Erred(Struct, frozen=True):
    """A measured call: its place in its family, and its predicted and measured seconds."""

    place: Place
    predicted_s: float
    measured_s: float


def spread_of(calls: Sequence[Erred], num_fitted: int = 0) -> Spread:
    """Return the errors of a family's calls, with equal weight for every series.

    Standard deviations are root mean squares over half-decades of predicted length with ``LEAST`` calls or more each,
    widened for their number of calls (``widened``). The correlation's parameters follow from least squares to the mean
    products of errors over their deviations (Matheron's method of moments), by distance and weighted by the number of
    pairs; pairs of two series show the common part. ``num_fitted``: constants fitted to these very calls, fewer than
    the series; the variance that they removed is given back.
    """
    series = Counter(call.place.series for call in calls)
    weights = np.array([1.0 / series[call.place.series] for call in calls])
    predicted_s = np.array([call.predicted_s for call in calls])
    left = 1.0 - num_fitted / len(series)
    errors = np.log(np.array([call.measured_s for call in calls]) / predicted_s) / np.sqrt(left)
    deviation = _deviations(predicted_s, errors, weights)
    if len(calls) < LEAST:
        return Spread(deviation=deviation, common=FEW)
    spread = Spread(deviation=deviation, common=0.0)
    scaled = errors / np.array([max(spread.at(seconds), 1e-9) for seconds in predicted_s.tolist()])
    scaled /= max(float(np.sqrt(np.average(scaled**2, weights=weights))), 1e-9)
    chosen = np.linspace(0, len(calls) - 1, min(len(calls), _MOST)).round().astype(int)
    pairs = _mean_products([calls[i].place for i in chosen], scaled[chosen], weights[chosen])
    return Spread(deviation=deviation, **_correlation(pairs))


def widened(deviation: float, freedom: float) -> float:
    """Return a deviation widened for few errors: that of the normal variable with the same 90 % interval.

    ``deviation``: the root mean square of errors with that many degrees of freedom. A further error over it has
        Student's distribution. Its 95 % quantile is 2.0 at 5 degrees, and approaches the normal distribution's 1.65.
    """
    return deviation * float(stdtrit(freedom, 0.95) / ndtri(0.95))


def _deviations(predicted_s: Floats, errors: Floats, weights: Floats) -> tuple[tuple[float, float], ...]:
    """Return, for every range of lengths, its geometric mean and the deviation of its calls."""
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
            _deviation(errors[part], weights[part]),
        )
        for part in parts
    )


def _deviation(errors: Floats, weights: Floats) -> float:
    """Return the root mean square of errors, widened for the effective number of errors (Kish)."""
    effective = float(weights.sum() ** 2 / np.square(weights).sum())
    return widened(float(np.sqrt(np.average(errors**2, weights=weights))), effective)


class _Pairs(Struct, frozen=True):
    """Mean products of pairs by distance ``apart``; pairs of two series have infinite distance."""

    apart: Floats
    products: Floats
    weights: Floats


def _mean_products(places: Sequence[Place], scaled: Floats, weights: Floats) -> _Pairs:
    """Return the mean products of pairs by their distance."""
    num_bins = len(_EDGES)
    sums, norms, lengths = np.zeros(num_bins + 1), np.zeros(num_bins + 1), np.zeros(num_bins + 1)
    rows: dict[object, list[int]] = {}
    for row, place in enumerate(places):
        rows.setdefault(place.series, []).append(row)
    for ours in rows.values():
        apart = distances([places[row] for row in ours])
        first, second = np.triu_indices(len(ours), 1)
        bins = np.digitize(apart[first, second], _EDGES) - 1
        pairs = np.outer(weights[ours], weights[ours])[first, second]
        products = np.outer(scaled[ours], scaled[ours])[first, second]
        sums += np.bincount(bins, pairs * products, num_bins + 1)
        norms += np.bincount(bins, pairs, num_bins + 1)
        lengths += np.bincount(bins, pairs * apart[first, second], num_bins + 1)
    of_series = np.array([[np.sum(weights[r] * scaled[r]), np.sum(weights[r])] for r in rows.values()])
    (all_sum, all_weight), squares = of_series.sum(axis=0), (of_series**2).sum(axis=0)
    if len(rows) > 1:
        sums[-1], norms[-1] = (all_sum**2 - squares[0]) / 2, (all_weight**2 - squares[1]) / 2
        lengths[-1] = np.inf
    known = norms > 0
    return _Pairs(lengths[known] / norms[known], sums[known] / norms[known], norms[known])


def _correlation(pairs: _Pairs) -> dict[str, float]:
    """Return the parts of the variance, and the distance, that fit the mean products of errors best.

    The distance is at least that of the nearest pairs, since closer pairs are unknown.
    """

    def residuals(parameters: Floats) -> Floats:
        common, near_of_rest, octaves = parameters
        near = (1.0 - common) * near_of_rest
        found: Floats = np.sqrt(pairs.weights) * (common + near * np.exp(-pairs.apart / octaves) - pairs.products)
        return found

    nearest = float(np.clip(pairs.apart.min(initial=_OCTAVES[1]), *_OCTAVES))
    limits = ([0.0, 0.0, 0.99 * nearest], [1.0, 1.0, _OCTAVES[1]])
    start = [0.1, 0.4, max(nearest, 1.0)]
    common, near_of_rest, octaves = least_squares(residuals, start, bounds=limits).x.tolist()
    if not np.isfinite(pairs.apart).any():
        return {"common": common}
    return {"common": common, "near": (1.0 - common) * near_of_rest, "octaves": octaves}
