"""A torus of any number of dimensions, routed one dimension after the other."""

from math import prod
from typing import Final

import numpy as np
from msgspec import Struct

from sim.cluster.topology.errors import TopologyError
from sim.cluster.topology.fabrics.fabric import Ports, rows
from sim.cluster.topology.links import (
    NONE,
    AnyInts,
    BoolArray,
    Cable,
    FloatArray,
    IntArray,
    LinkKind,
    LinkTable,
    joined,
    one_way,
)

MOST_HOPS: Final = 1000
"""Longest route: routes are tables, so longer ones are refused."""


class TorusSpec(Struct, frozen=True, kw_only=True):
    """The routers along each dimension, the last dimension varying fastest, and the link between neighbours."""

    shape: tuple[int, ...]
    link: Cable


class Torus(Struct, frozen=True, kw_only=True):
    """One router per node, with a link each way along every dimension.

    In a dimension of 2 both links have the same ends, and form one link of twice the bandwidth. A dimension of 1 has
    none.
    ``first_link``: the number of each dimension's first link; forward links are numbered by router, then backward
        links.
    """

    attach: IntArray
    shape: tuple[int, ...]
    first_link: tuple[int, ...]
    links: LinkTable
    direct: bool
    keeps_rails: bool = False
    reduces: bool = False

    @property
    def num_switches(self) -> int:
        """Return the number of routers."""
        return prod(self.shape)

    def routes(self, sources: IntArray, targets: IntArray) -> IntArray:
        """Return the links of each route, first dimension first, the shorter way round each dimension.

        If both ways are equally long, routers of even coordinate go forward and others backward, which balances the
        links.
        """
        here, there = self.attach[sources], self.attach[targets]
        columns: list[AnyInts] = []
        stride = self.num_switches
        for size, first in zip(self.shape, self.first_link, strict=True):
            stride //= size
            at = here // stride % size
            ahead = (there // stride % size - at) % size
            forward = (2 * ahead < size) | ((2 * ahead == size) & ((at % 2 == 0) | (size == 2)))
            hops = np.where(forward, ahead, size - ahead) * (ahead > 0)
            base, step = np.where(forward, first, first + self.num_switches), np.where(forward, 1, -1)
            for hop in range(int(hops.max(initial=0))):
                moves = hop < hops
                columns.append(np.where(moves, base + here, NONE))
                at_now = here // stride % size
                here = np.where(moves, here + ((at_now + step) % size - at_now) * stride, here)
        return rows(columns, len(sources))

    def link_images(self, ports_to: IntArray) -> IntArray | None:
        """Return that it is unknown where links go if ports change places."""

    def switch_name(self, switch: int) -> str:
        """Return the name of a router: its coordinates."""
        return f"router {','.join(str(int(part)) for part in np.unravel_index(switch, self.shape))}"

    def first_half(self, capacity_bytes_per_s: FloatArray) -> BoolArray:
        """Return the ports of half of the routers: those before the middle of the dimension with the cheapest cut."""
        del capacity_bytes_per_s
        return self._cheapest_half()[self.attach]

    def bisection_bytes_per_s(self, capacity_bytes_per_s: FloatArray) -> float:
        """Return the bandwidth from one half of the routers to the other, or that of a half's ports if it is less."""
        half = self._cheapest_half()
        ports = half[self.attach]
        sides = (float(capacity_bytes_per_s[ports].sum()), float(capacity_bytes_per_s[~ports].sum()))
        return min(self._cut(half), *sides)

    def _cheapest_half(self) -> BoolArray:
        return min((self._half_along(axis) for axis in range(len(self.shape))), key=self._cut)

    def _half_along(self, axis: int) -> BoolArray:
        """Return the first half of the routers, with one dimension varying slowest."""
        numbered = np.moveaxis(np.arange(self.num_switches).reshape(self.shape), axis, 0).ravel()
        half = np.zeros(self.num_switches, bool)
        half[numbered[: self.num_switches // 2]] = True
        return half

    def _cut(self, half: BoolArray) -> float:
        crossing = half[self.links.source] & ~half[self.links.target]
        return float(self.links.bandwidth_bytes_per_s[crossing].sum())


def build_torus(spec: TorusSpec, ports: Ports, *, direct: bool) -> Torus:
    """Return the torus that joins the ports. Raises TopologyError unless there is one router per node."""
    count, longest = prod(spec.shape), sum(size // 2 for size in spec.shape)
    if longest > MOST_HOPS:
        rule = f"routes would have up to {longest:,} links, more than {MOST_HOPS:,}"
        raise TopologyError("fabric.shape", rule, "write more dimensions, of fewer routers each")
    if count != ports.num_nodes:
        shape = " x ".join(map(str, spec.shape))
        rule = f"{shape} = {count} routers for {ports.num_nodes} nodes"
        raise TopologyError("fabric.shape", rule, "write numbers whose product is the number of nodes")
    here = np.arange(count)
    tables: list[LinkTable] = []
    first_link: list[int] = []
    stride = count
    for size in spec.shape:
        stride //= size
        first_link.append(sum(map(len, tables)))
        at = here // stride % size
        ways = {1: (), 2: (1,)}.get(size, (1, -1))
        cable = spec.link.times(2) if size == 2 else spec.link
        for step in ways:
            tables.append(one_way(here, here + ((at + step) % size - at) * stride, LinkKind.TORUS, cable))
    return Torus(
        attach=ports.node, shape=spec.shape, first_link=tuple(first_link), links=joined(tables), direct=direct
    )  # fmt: skip
