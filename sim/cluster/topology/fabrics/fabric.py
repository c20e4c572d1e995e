"""The interface of all networks between islands: switches, the links between them, routes between ports."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from msgspec import Struct

from sim.cluster.topology.errors import TopologyError
from sim.cluster.topology.links import NONE, AnyInts, BoolArray, FloatArray, IntArray, LinkTable

MOST_LINKS = 20_000_000


class Ports(Struct, frozen=True, kw_only=True):
    """The ports into the network, one row each: island, node, place among its node's ports, bytes/s each way."""

    island: IntArray
    node: IntArray
    rail: IntArray
    bandwidth_bytes_per_s: FloatArray
    num_nodes: int

    def __len__(self) -> int:
        return len(self.island)


class Fabric(Protocol):
    """A network. Switches and links are numbered from 0; a port is on switch ``attach[port]``.

    ``direct``: the ports are the switches (a torus of devices).
    ``keeps_rails``: traffic should enter on the rail on which it leaves.
    ``reduces``: the switches add their inputs and multicast the sum.
    """

    @property
    def attach(self) -> IntArray:
        """Return the switch of each port."""

    @property
    def links(self) -> LinkTable:
        """Return the links between switches."""

    @property
    def num_switches(self) -> int:
        """Return the number of switches."""

    @property
    def direct(self) -> bool:
        """Return whether the ports are the switches."""

    @property
    def keeps_rails(self) -> bool:
        """Return whether traffic should enter on the rail on which it leaves."""

    @property
    def reduces(self) -> bool:
        """Return whether the switches reduce and multicast (in-network reduction)."""

    def routes(self, sources: IntArray, targets: IntArray) -> IntArray:
        """Return the links between switches from each source port to the target port of the same index, -1 for none."""

    def link_images(self, ports_to: IntArray) -> IntArray | None:
        """Return where each link goes if port p goes to ``ports_to[p]``, so that routes go to routes; None: unknown."""

    def switch_name(self, switch: int) -> str:
        """Return the name of a switch."""

    def first_half(self, capacity_bytes_per_s: FloatArray) -> BoolArray:
        """Return which ports are on the first side of the cut of ``bisection_bytes_per_s``."""

    def bisection_bytes_per_s(self, capacity_bytes_per_s: FloatArray) -> float:
        """Return the largest rate from one half of the ports to the other, given the rate of each port."""


def refuse_huge(num_links: int) -> None:
    """Raise TopologyError for a network of more links than fit into memory."""
    if num_links > MOST_LINKS:
        rule = f"the network would have {num_links:,} links, more than {MOST_LINKS:,}"
        raise TopologyError("fabric", rule, "write fewer switches")


def first_islands(ports: Ports) -> BoolArray:
    """Return which ports belong to the first half of the islands; for an odd number, the smaller half."""
    num_islands = int(ports.island.max()) + 1
    half: BoolArray = ports.island < num_islands // 2
    return half


def rows(columns: Sequence[AnyInts], num_rows: int) -> IntArray:
    """Return the columns side by side as an array, also without columns."""
    if not columns:
        return np.full((num_rows, 0), NONE, np.int32)
    return np.stack(columns, axis=1).astype(np.int32, copy=False)
