"""Rings of a collective library in a node whose NVLinks join devices without a switch.

A library forms as many rings over the members as links allow, each over single links between neighbours, in both
directions (NCCL, src/graph/search.cc). A hybrid cube mesh has six rings over eight V100, two over four, one over three.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

from sim.cluster.topology.links import LinkKind
from sim.cluster.topology.nodes.island import Island

MOST_MEMBERS: Final = 8
"""Largest group that is searched: no node without a switch joins more devices."""

_MOST_TRIES: Final = 20_000
"""Limit of the search for more rings: the number of rings tried, fitting or not."""

Ring = tuple[int, ...]
"""Positions among the members, in ring order."""


def nvlink_rings(island: Island, members: Sequence[int]) -> tuple[tuple[Ring, ...], float]:
    """Return rings over all of some devices of an island, and the bytes/s of each ring per direction.

    No link between two members is in more rings than its bandwidth allows. Returns no rings and 0 where NVLinks form no
    ring or a switch makes rings unnecessary: for two devices, in an island with NVSwitch, and for more than eight
    devices.
    """
    place = {device: position for position, device in enumerate(members)}
    links = island.links
    rates = {
        (place[source], place[target]): rate
        for source, target, rate, kind in zip(
            links.source.tolist(), links.target.tolist(), links.bandwidth_bytes_per_s.tolist(), links.kind.tolist(),
            strict=True,
        )
        if kind == LinkKind.NVLINK and source in place and target in place
    }  # fmt: skip
    if not 3 <= len(members) <= MOST_MEMBERS or not rates:
        return (), 0.0
    unit = min(rates.values())
    room = Counter({pair: round(rate // unit) for pair, rate in rates.items()})
    found = _most_rings(room, list(_rings(room, len(members))), len(members))
    return tuple(way for ring in found for way in (ring, (ring[0], *ring[:0:-1]))), unit


def _rings(room: Counter[tuple[int, int]], count: int) -> Iterator[Ring]:
    """Yield every ring over all members once, in one of its two directions, starting at member 0."""

    def longer(path: Ring) -> Iterator[Ring]:
        if len(path) == count:
            if room[path[-1], 0] and path[1] < path[-1]:
                yield path
            return
        for after in range(1, count):
            if after not in path and room[path[-1], after]:
                yield from longer((*path, after))

    yield from longer((0,))


def _most_rings(room: Counter[tuple[int, int]], rings: Sequence[Ring], count: int) -> tuple[Ring, ...]:
    """Return the largest set of rings that fit into the links together; the first such set found within the limit."""
    bound = min(sum(room[member, other] for other in range(count)) // 2 for member in range(count))
    best: tuple[Ring, ...] = ()
    tries = 0

    def choose(first: int, chosen: tuple[Ring, ...], left: Counter[tuple[int, int]]) -> None:
        nonlocal best, tries
        if len(chosen) > len(best):
            best = chosen
        if len(best) == bound:
            return
        for index in range(first, len(rings)):
            ring, tries = rings[index], tries + 1
            hops = [*pairwise(ring), (ring[-1], ring[0])]
            ways = Counter([*hops, *(hop[::-1] for hop in hops)])
            if all(left[hop] >= times for hop, times in ways.items()):
                choose(index, (*chosen, ring), left - ways)
            if len(best) == bound or tries > _MOST_TRIES:
                return

    choose(0, (), room)
    return best
