"""A routing of which only so much leaves the part of the cluster where its tokens are."""

import numpy as np

from sim.moe.routing import Counts, Routing, dealt


def kept_near(routing: Routing, num_groups: int, most_outside: int, num_tokens: int) -> Routing:
    """Return a routing with at most ``most_outside`` choices of each source outside the source's group of experts.

    Sources, like experts, are in ``num_groups`` equal groups, in order. What is too much falls on the experts of the
    source's group in the proportion of their choices, on none more often than there are tokens.
    """
    counts = routing.counts.copy()
    num_sources, num_experts = counts.shape[1:]
    size = num_experts // num_groups
    for layer, source in np.ndindex(*counts.shape[:2]):
        first = source * num_groups // num_sources * size
        inside = np.zeros(num_experts, dtype=bool)
        inside[first : first + size] = True
        of_source = counts[layer, source]
        surplus = int(of_source[~inside].sum()) - most_outside
        if surplus > 0:
            of_source[~inside] = dealt(most_outside, of_source[~inside] / of_source[~inside].sum())
            of_source[inside] = _added(of_source[inside], surplus, num_tokens)
    return Routing(counts)


def _added(counts: Counts, more: int, most: int) -> Counts:
    """Return counts with ``more`` added in their proportion, where each stays at ``most`` or below."""
    while more:
        room = most - counts
        weights = np.where(room > 0, counts + 1.0, 0.0)
        added = np.minimum(dealt(more, weights / weights.sum()), room)
        counts, more = counts + added, more - int(added.sum())
    return counts
