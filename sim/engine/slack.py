"""Links that can never be full, because other links hold back whoever uses them.

Let activity u demand d(u, l) seconds of link l, and progress at rate x(u). Link k carries no more than it can: the sum
of x(u) d(u, k) over all u is at most 1. Assign to each user u of l one link k(u) that it also uses. Then l carries

    sum over u of x(u) d(u, l)  <=  sum over k of [ max over u with k(u) = k of d(u, l) / d(u, k) ]

If the right side is at most 1, the limit of l follows from those of the other links, whatever runs at the same time and
at whatever rate; the max-min fair rates with and without l are the same. The links k are all inside nodes or at
adapters, and l in the network, so that none is left out because of one that is left out.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sim.engine.traffic import Load

_ROUNDING = 1e-12


def never_binding(loads: Sequence[Load], in_network: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return which links of the network never bind for what these loads, and any multiples of them, put on links.

    Each user counts for the link outside the network that it uses longest: of several, once for the first (most often
    its way out) and once for the last (its way in). Links that nobody uses are among those returned.
    """
    bounds = np.minimum(*(_bounds(loads, in_network, last=last) for last in (False, True)))
    return in_network & (bounds <= 1 + _ROUNDING)


def _bounds(loads: Sequence[Load], in_network: NDArray[np.bool_], *, last: bool) -> NDArray[np.float64]:
    """Return the right side of the inequality for every link."""
    num_links = len(in_network)
    pairs, ratios = [np.zeros(0, np.int64)], [np.zeros(0)]
    for load in loads:
        beyond = in_network[load.links]
        if not beyond.any():
            continue
        longest, cover = _covers(load, beyond, last=last)
        users, links, seconds = load.groups[beyond], load.links[beyond], load.seconds[beyond]
        with np.errstate(divide="ignore"):
            ratios.append(seconds / longest[users])  # infinite for a user of the network alone
        pairs.append(links * num_links + cover[users])
    return _sum_of_largest(np.concatenate(pairs), np.concatenate(ratios), num_links)


def _covers(load: Load, beyond: NDArray[np.bool_], *, last: bool) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return, per user, the longest that it uses a link outside the network, and the first or last such link."""
    longest, cover = np.zeros(int(load.groups.max()) + 1), np.zeros(int(load.groups.max()) + 1, np.int64)
    users, links, seconds = load.groups[~beyond], load.links[~beyond], load.seconds[~beyond]
    np.maximum.at(longest, users, seconds)
    tight = np.flatnonzero(seconds == longest[users])  # sorted by user, then link
    order = tight if last else tight[::-1]
    cover[users[order]] = links[order]  # of equal users, the one written last stays
    return longest, cover


def _sum_of_largest(pairs: NDArray[np.int64], ratios: NDArray[np.float64], num_links: int) -> NDArray[np.float64]:
    """Return, per link, the sum over its covers of the largest ratio; a pair is link x number of links + cover."""
    order = np.lexsort((ratios, pairs))
    pairs, ratios = pairs[order], ratios[order]
    largest = np.flatnonzero(np.append(pairs[1:] != pairs[:-1], [True] * (len(pairs) > 0)))
    return np.bincount(pairs[largest] // max(num_links, 1), ratios[largest], minlength=num_links).astype(np.float64)
