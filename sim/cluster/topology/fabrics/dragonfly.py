"""A dragonfly: groups of fully connected routers, and a link between every two groups.

Source: Kim, Dally, Scott, Abts 2008, Technology-Driven, Highly-Scalable Dragonfly Topology, ISCA: a routers per group,
p terminals and h links to other groups per router, at most a h + 1 groups.
"""

from itertools import product

import numpy as np
from msgspec import Struct

from sim.cluster.topology.errors import TopologyError
from sim.cluster.topology.fabrics.fabric import Ports, first_islands, refuse_huge, rows
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


class DragonflySpec(Struct, frozen=True, kw_only=True):
    """``routers_per_group`` a, ``ports_per_router`` p, ``global_links_per_router`` h, and the two types of link."""

    routers_per_group: int
    ports_per_router: int
    global_links_per_router: int
    local_link: Cable
    global_link: Cable


class Dragonfly(Struct, frozen=True, kw_only=True):
    """A dragonfly of as many whole groups as the ports need.

    Group i reaches group j by its channel (j - i - 1) modulo the number of groups. A group's channels are spread evenly
    over its routers, in order. With fewer than a h + 1 groups, the global links are divided among the pairs of groups,
    and those of one pair form one link.
    """

    attach: IntArray
    islands_first_half: BoolArray
    num_groups: int
    routers_per_group: int
    links: LinkTable
    direct: bool = False
    keeps_rails: bool = False
    reduces: bool = False

    @property
    def num_switches(self) -> int:
        """Return the number of routers."""
        return self.num_groups * self.routers_per_group

    def routes(self, sources: IntArray, targets: IntArray) -> IntArray:
        """Return the minimal route: to the router with the link to the other group, over it, to the last router."""
        here, there = self.attach[sources], self.attach[targets]
        a, groups = self.routers_per_group, self.num_groups
        group, last = here // a, there // a
        same = group == last
        if groups == 1:
            return rows([self._local(here, there)], len(sources))
        channel = (last - group - 1) % groups
        exit_router = np.where(same, here, group * a + _router_of(channel, a, groups))
        entry_router = np.where(same, here, last * a + _router_of(groups - 2 - channel, a, groups))
        first_global = groups * a * (a - 1)
        over = np.where(same, NONE, first_global + group * (groups - 1) + channel)
        return rows([self._local(here, exit_router), over, self._local(entry_router, there)], len(sources))

    def _local(self, here: AnyInts, there: AnyInts) -> AnyInts:
        """Return the links between routers of the same group, -1 from a router to itself."""
        a = self.routers_per_group
        to = there % a
        return np.where(here == there, NONE, here * (a - 1) + to - (to > here % a))

    def link_images(self, ports_to: IntArray) -> IntArray | None:
        """Return that it is unknown where links go if ports change places."""

    def switch_name(self, switch: int) -> str:
        """Return the name of a router."""
        return f"group {switch // self.routers_per_group} router {switch % self.routers_per_group}"

    def first_half(self, capacity_bytes_per_s: FloatArray) -> BoolArray:
        """Return the ports of the first half of the islands; capacities do not matter here."""
        del capacity_bytes_per_s
        return self.islands_first_half

    def bisection_bytes_per_s(self, capacity_bytes_per_s: FloatArray) -> float:
        """Return the smallest cut between the first half of the islands and the others.

        Assumes that the links inside a group limit nothing (the paper: a = 2p = 2h). Then each group is on one side of
        the cut, and all groups with the same ports are on the same side, since the product of the sides' sizes is
        concave.
        """
        half, group = self.islands_first_half, self.attach // self.routers_per_group
        ours = np.bincount(group, np.where(half, capacity_bytes_per_s, 0.0), self.num_groups)
        theirs = np.bincount(group, np.where(half, 0.0, capacity_bytes_per_s), self.num_groups)
        alike, count = np.unique(np.stack([ours, theirs], axis=1), axis=0, return_counts=True)
        between = float(self.links.bandwidth_bytes_per_s[-1]) if self.num_groups > 1 else 0.0
        cuts = []
        for sides in product((False, True), repeat=len(alike)):
            joins = np.array(sides)
            near = int(count[joins].sum())
            ports = count @ np.where(joins, alike[:, 1], alike[:, 0])
            cuts.append(float(ports) + near * (self.num_groups - near) * between)
        return min(cuts)


def _router_of(channel: AnyInts, routers: int, groups: int) -> AnyInts:
    """Return the router of a group that holds a channel."""
    return channel * routers // max(1, groups - 1)


def build_dragonfly(spec: DragonflySpec, ports: Ports) -> Dragonfly:
    """Return the dragonfly that joins the ports. Raises TopologyError if the ports need too many groups."""
    a, h = spec.routers_per_group, spec.global_links_per_router
    attach = np.arange(len(ports)) // spec.ports_per_router
    groups = -(-(int(attach.max()) + 1) // a)
    if groups > a * h + 1:
        rule = f"{len(ports)} adapters need {groups} groups, and {a} x {h} + 1 = {a * h + 1} can be joined"
        raise TopologyError("fabric", rule, "write more routers_per_group, global_links_per_router or ports_per_router")
    refuse_huge(groups * (a * (a - 1) + groups - 1))
    router = np.arange(groups * a)
    here = np.repeat(router, a - 1)
    step = np.tile(np.arange(a - 1), groups * a)
    there = here // a * a + step + (step >= here % a)
    tables = [one_way(here, there, LinkKind.LOCAL, spec.local_link)]
    if groups > 1:
        group = np.repeat(np.arange(groups), groups - 1)
        channel = np.tile(np.arange(groups - 1), groups)
        other = (group + channel + 1) % groups
        source = group * a + _router_of(channel, a, groups)
        target = other * a + _router_of(groups - 2 - channel, a, groups)
        trunk = max(1, h // -(-(groups - 1) // a))
        tables.append(one_way(source, target, LinkKind.GLOBAL, spec.global_link.times(trunk)))
    return Dragonfly(
        attach=attach.astype(np.int32),
        islands_first_half=first_islands(ports),
        num_groups=groups,
        routers_per_group=a,
        links=joined(tables),
    )
