"""Errors of a profile's predicted calls, and their correlation.

The logarithm of measured over predicted time is assumed to be normal. Its standard deviation depends on the predicted
time: launches, waves and caches matter less for long calls. Two calls of a family share the fraction

    common + near exp(-distance / octaves)

of its variance. Their distance is that of their shapes, each number counted in octaves (powers of two). It is infinite
between series (other kernels of a memory-bound family, other kinds or groups of collectives). This is the exponential
covariance with a nugget of geostatistics (Cressie, Statistics for Spatial Data, 1993, section 2.3).
"""

from collections.abc import Hashable, Sequence
from math import log2
from typing import Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from costmodels.kernels.tensor import Work

NETWORK: Final = "network"
"""The family of data movement: collectives, messages, copies."""
NORMAL_90: Final = 1.6448536269514722
"""Standard deviations on either side of the mean that contain 90 % of a normal distribution."""
_ALIKE: Final = {"attention_backward": "attention"}
"""Families with the errors of another family."""


class Place(Struct, frozen=True):
    """The coordinates of a call in its family: its series, and the base-two logarithms of its shape's numbers."""

    series: Hashable
    octaves: tuple[float, ...]


class Spread(Struct, frozen=True, kw_only=True):
    """Errors of a family's calls.

    ``deviation``: pairs of predicted seconds and standard deviation, by seconds; interpolated in the logarithm of the
        seconds, and constant beyond the ends.
    ``common``, ``near``: parts of the variance, from 0 to 1 together.
    ``octaves``: the distance at which the shared part of ``near`` falls by a factor of e. The rest of the variance
        belongs to a kernel and shape.
    """

    deviation: tuple[tuple[float, float], ...]
    common: float
    near: float = 0.0
    octaves: float = 1.0

    @property
    def own(self) -> float:
        """Return the part of the variance that only calls of the same kernel and shape share."""
        return max(1.0 - self.common - self.near, 0.0)

    def at(self, predicted_s: float) -> float:
        """Return the standard deviation of a call with this predicted time."""
        seconds, deviations = zip(*self.deviation, strict=True)
        return float(np.interp(np.log(max(predicted_s, 1e-12)), np.log(seconds), deviations))

    def correlation(self, places: Sequence[Place]) -> NDArray[np.float64]:
        """Return the correlation matrix of the ``near`` part between calls at these places."""
        series = {name: number for number, name in enumerate(dict.fromkeys(place.series for place in places))}
        found = np.zeros((len(places), len(places)))
        for number in range(len(series)):
            ours = [row for row, place in enumerate(places) if series[place.series] == number]
            found[np.ix_(ours, ours)] = np.exp(-distances([places[row] for row in ours]) / self.octaves)
        return found


def spread_family(family: str) -> str:
    """Return the family whose errors a kernel family has; some families share one."""
    return _ALIKE.get(family, family)


def kernel_place(family: str, kernel: str, work: Work) -> Place:
    """Return a kernel's place: of products and attention all in one series, by shape; of others by kernel and bytes."""
    shape = work.gemm
    if shape is not None:
        return Place("", tuple(log2(max(number, 1)) for number in (shape.m, shape.n, shape.k, shape.batch)))
    return Place(kernel or family, (log2(max(work.num_bytes, 1)),))


def transfer_place(kind: Hashable, num_bytes: int) -> Place:
    """Return the place of a collective, message or copy; ``kind`` tells apart its kind and group."""
    return Place(kind, (log2(max(num_bytes, 1)),))


def distances(places: Sequence[Place]) -> NDArray[np.float64]:
    """Return the matrix of distances between places of one series, in octaves."""
    octaves = np.array([place.octaves for place in places])
    found: NDArray[np.float64] = np.sqrt(((octaves[:, None] - octaves[None]) ** 2).sum(axis=-1))
    return found
