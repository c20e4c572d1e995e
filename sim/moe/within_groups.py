"""A routing in which every token chooses in few groups of experts, as those of a node."""

from functools import lru_cache

import numpy as np

from sim.moe.choices import GroupLimit
from sim.moe.routing import Counts, Routing


@lru_cache(maxsize=16)
def within_groups(routing: Routing, limit: GroupLimit, num_tokens: int) -> Routing:
    """Return the routing nearest to a stated one in which ``num_tokens`` tokens of every source obey a limit.

    Every group gets whole visits, of ``limit.of_each`` choices each, at most one of every token; and an expert at most
    one choice of every visit. What is too much falls on the others in the proportion of their choices. A routing that
    obeys already stays as it is.
    """
    counts = routing.counts
    in_groups = counts.reshape(*counts.shape[:-1], limit.num_groups, -1)
    loads = in_groups.sum(-1)
    total = np.full(loads.shape[:-1], limit.top_groups * num_tokens)
    visits = _shared_out(total, loads, np.full(total.shape, num_tokens))
    return Routing(_shared_out(visits * limit.of_each, in_groups, visits).reshape(counts.shape))


def _shared_out(total: Counts, wanted: Counts, most: Counts) -> Counts:
    """Return whole numbers [..., n] in the proportion of ``wanted`` that add up to ``total`` [...].

    ``most``, [...]: the largest that a number may be; n times it is at least the total.
    """
    counts = np.zeros_like(wanted)
    while np.any(rest := total - counts.sum(-1)):
        room = most[..., None] - counts
        weights = np.where(room > 0, wanted, 0)
        weights = np.where(weights.any(-1, keepdims=True), weights, room > 0)
        exact = rest[..., None] * (weights / np.maximum(weights.sum(-1, keepdims=True), 1))
        added = np.floor(exact).astype(np.int64)
        place = np.argsort(np.argsort(added - exact, axis=-1, kind="stable"), axis=-1, kind="stable")
        added += place < (rest - added.sum(-1))[..., None]
        counts = counts + np.minimum(added, room)
    return counts
