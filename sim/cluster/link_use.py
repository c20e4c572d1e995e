"""The load of messages, copies and collectives on links, as arrays over many cases at once."""

from collections.abc import Sequence

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from sim.cluster.topology.links import NONE, AnyInts
from sim.cluster.topology.topology import Routes
from sim.sorting import distinct

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class LinkCost(Struct, frozen=True):
    """A latency, then seconds of exclusive use of links."""

    latency_s: float
    links: tuple[tuple[int, float], ...]


class LinkUse(Struct, frozen=True, eq=False):
    """Seconds of exclusive use: case ``rows[i]`` uses link ``links[i]`` for ``seconds[i]``; sorted, each pair once.

    ``num_bytes``: the payload on the link, without the protocol's overhead.
    ``latencies_s``: by case, without the part that all cases share.
    """

    rows: Ints
    links: Ints
    seconds: Floats
    num_bytes: Floats
    latencies_s: Floats = field(default_factory=lambda: np.zeros(0))

    def of_row(self, row: int) -> tuple[Ints, Floats]:
        """Return the links of one case, and the seconds on each."""
        first, last = np.searchsorted(self.rows, [row, row + 1])
        return self.links[first:last], self.seconds[first:last]

    def ends(self) -> list[int]:
        """Return where the uses of each case begin, and where those of the last end."""
        ends: list[int] = np.searchsorted(self.rows, np.arange(len(self.latencies_s) + 1)).tolist()
        return ends

    def costs(self) -> list[LinkCost]:
        """Return what each case costs."""
        ends = self.ends()
        loads = list(zip(self.links.tolist(), self.seconds.tolist(), strict=True))
        latencies_s: list[float] = self.latencies_s.tolist()
        return [
            LinkCost(latency_s, tuple(loads[ends[row] : ends[row + 1]])) for row, latency_s in enumerate(latencies_s)
        ]

    def without_zeros(self) -> "LinkUse":
        """Return the same without links of zero seconds."""
        kept = self.seconds > 0
        if kept.all():
            return self
        rows, links, seconds = self.rows[kept], self.links[kept], self.seconds[kept]
        return LinkUse(rows, links, seconds, self.num_bytes[kept], self.latencies_s)


def hop_sums(hops: AnyInts, values: Floats) -> Floats:
    """Return the sum of the values of each row's links, one after the other; -1 is no link."""
    sums = np.zeros(len(hops))
    for links in hops.T:
        sums += np.where(links == NONE, 0.0, values[links])
    return sums


def route_sums(routes: Routes, values: Floats) -> Floats:
    """Return the sum of the values of each route's links, to the last bit the same for routes of equal values."""
    of_route = np.repeat(np.arange(len(routes)), routes.num_hops)
    return np.bincount(of_route, values[routes.links], minlength=len(routes)).astype(np.float64)


def link_use(rows: Ints, links: AnyInts, seconds: Floats, num_bytes: Floats, num_links: int) -> LinkUse:
    """Return the sums per case and link, without links of zero seconds."""
    return summed(*distinct(rows.astype(np.int64) * num_links + links), seconds, num_bytes, num_links)


def summed(cells: Ints, where: Ints, seconds: Floats, num_bytes: Floats, num_links: int) -> LinkUse:
    """Return the sums per cell, which is case x number of links + link, without links of zero seconds."""
    in_all, carried = (
        np.bincount(where, values, minlength=len(cells)).astype(np.float64) for values in (seconds, num_bytes)
    )
    return LinkUse(*np.divmod(cells, num_links), in_all, carried).without_zeros()


def together(uses: Sequence[LinkUse], num_links: int) -> LinkUse:
    """Return several uses as one, sorted by case and link."""
    rows, links = np.concatenate([use.rows for use in uses]), np.concatenate([use.links for use in uses])
    seconds, num_bytes = (
        np.concatenate(parts) for parts in zip(*((u.seconds, u.num_bytes) for u in uses), strict=True)
    )
    return link_use(rows, links, seconds, num_bytes, num_links)


def side_by_side(uses: Sequence[LinkUse]) -> LinkUse:
    """Return several uses, none of which has a case of another, as one."""
    if len(uses) == 1:
        return uses[0]
    rows = np.concatenate([use.rows for use in uses])
    order = np.argsort(rows, kind="stable")
    links = np.concatenate([use.links for use in uses])[order]
    seconds, num_bytes = (
        np.concatenate(parts)[order] for parts in zip(*((u.seconds, u.num_bytes) for u in uses), strict=True)
    )
    return LinkUse(rows[order], links, seconds, num_bytes)
