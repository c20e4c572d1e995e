"""Statistics of recorded lookups: how many rows they read, and how uneven their popularity is."""

from typing import Final

import numpy as np
from msgspec import Struct

from sim.embedding.policies import Ints

_FIRST_RANK, _LAST_RANK = 10, 100_000
"""Ranks whose counts are fitted: the most popular rows often follow no law, and the rarest are few."""
_FEWEST: Final = 10
"""Lookups of a row from which its count says how popular it is."""
_FEWEST_RANKS: Final = 20


class Popularity(Struct, frozen=True):
    """``num_different``: rows that are read at all. ``zipf``: the exponent by which counts fall with rank.

    None: too few rows are read often enough to tell.
    """

    num_different: int
    zipf: float | None


def popularity_of(rows: Ints) -> Popularity:
    """Return the statistics of the lookups of one table.

    The exponent is that of the line of least squares through the logarithms of counts and ranks, from the tenth rank
    on, of rows that are read ten times or more.

        popularity_of(np.array([3, 1, 3, 0]))       # 3 different rows, no exponent
    """
    counts = np.sort(np.unique(rows, return_counts=True)[1])[::-1]
    fitted = counts[_FIRST_RANK - 1 : _LAST_RANK]
    fitted = fitted[fitted >= _FEWEST]
    if len(fitted) < _FEWEST_RANKS:
        return Popularity(len(counts), None)
    ranks = np.arange(_FIRST_RANK, _FIRST_RANK + len(fitted))
    slope, _ = np.polyfit(np.log(ranks), np.log(fitted), 1)
    return Popularity(len(counts), float(-slope))
