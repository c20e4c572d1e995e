"""The exact maximum flow of a small network: for islands, and for checks of closed forms."""

from collections import deque
from collections.abc import Iterable, Mapping
from itertools import pairwise

Flow = tuple[int, int, float]
"""From, to, capacity."""


def max_flow(links: Iterable[Flow], sources: Mapping[int, float], sinks: Mapping[int, float]) -> float:
    """Return the largest flow from sources to sinks, each with its own limit, over links.

    Shortest augmenting paths (Edmonds and Karp 1972, J. ACM 19): for some thousand links.
    """
    start, end = -1, -2
    left: dict[int, dict[int, float]] = {start: {}, end: {}}
    extra = [(start, vertex, most) for vertex, most in sources.items()]
    extra += [(vertex, end, most) for vertex, most in sinks.items()]
    for first, second, capacity in [*links, *extra]:
        row = left.setdefault(first, {})
        row[second] = row.get(second, 0.0) + capacity
        left.setdefault(second, {}).setdefault(first, 0.0)
    smallest = 1e-12 * max((row for rows in left.values() for row in rows.values() if row < float("inf")), default=0.0)
    total = 0.0
    while path := _shortest_path(left, start, end, smallest):
        most = min(left[first][second] for first, second in path)
        for first, second in path:
            left[first][second] -= most
            left[second][first] += most
        total += most
    return total


def _shortest_path(
    left: Mapping[int, Mapping[int, float]], start: int, end: int, smallest: float
) -> list[tuple[int, int]]:
    """Return the links of a shortest path with remaining capacity; empty if there is none."""
    came_from: dict[int, int] = {start: start}
    waiting = deque([start])
    while waiting and end not in came_from:
        here = waiting.popleft()
        for there, room in left[here].items():
            if room > smallest and there not in came_from:
                came_from[there] = here
                waiting.append(there)
    if end not in came_from:
        return []
    path = [end]
    while path[-1] != start:
        path.append(came_from[path[-1]])
    path.reverse()
    return list(pairwise(path))
