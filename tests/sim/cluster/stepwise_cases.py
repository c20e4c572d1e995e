"""Random collectives on all kinds of clusters, one activity against step by step, and what sets the two apart.

``classified`` names the cause of a difference of more than 1 %:

* ``drift``: rounds are barriers to the one activity. Step by step a rank goes on when its own round is over: where
  ranks differ (a number that is no power of two, nodes with more and fewer members, routes that cross), rounds then
  overlap and end sooner, or collide on a link and end later. With the ranks in lockstep the two agree.
* ``hops``: the one activity pays for every hop of the critical path the latency of the slowest, while step by step a
  queue at the slowest link hides other hops' latencies; and trees are a hop deeper than log2. No more than the latency.

Two more causes are set aside here, with laws of their own. Pipelines (chains, trees) are compared in the limit of many
pieces: with k pieces along g ranks a chain takes (g-2+k)/k times as long. The double binary tree is charged 1/0.92 of
what it sends, as NCCL's tuner does, and laid out evenly but on tori.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Final

import numpy as np

from costmodels.collectives import steps
from costmodels.collectives.catalogue import STEP_LISTS, collective_steps
from costmodels.collectives.network import NetworkParameters
from costmodels.collectives.steps import StepList
from sim.cluster.network import Network
from sim.cluster.nominal import Library
from sim.cluster.rings import nvlink_rings
from sim.cluster.topology.parse import parse_topology
from sim.cluster.topology.topology import Topology
from tests.sim.cluster.stepwise_network import Order, in_channels, stepwise_s
from tests.sim.cluster.topology_graphs import SINGLE, SWITCHED, cluster, dragonfly, fat_tree, torus
from tests.sim.cluster.topology_graphs import TREE as PCIE_NODE

CLUSTERS: Final[dict[str, Callable[[], Topology]]] = {
    "one switch": lambda: cluster(SINGLE, 13, kind="switch"),
    "switched nodes": lambda: cluster(SWITCHED, 4, kind="switch"),
    "switched nodes, one adapter": lambda: cluster(SWITCHED | {"nics": 1}, 4, kind="switch"),
    "oversubscribed leaves": lambda: cluster(SINGLE, 12, kind="leaf-spine", leaf_ports=4, spines=2, oversubscription=2),
    "fat tree": lambda: fat_tree(4),
    "rails": lambda: cluster(SWITCHED | {"pcie_switches": 4}, 4, kind="rail-optimised"),
    "ring": lambda: torus(8),
    "torus": lambda: torus(4, 4),
    "odd torus": lambda: torus(3, 5),
    "3d torus": lambda: torus(2, 4, 2),
    "torus of nodes": lambda: cluster(SWITCHED, 6, kind="torus", shape=[2, 3], link={"bandwidth": "20 GB/s"}),
    "dragonfly": lambda: dragonfly(2, 2, 1),
    "hybrid cube mesh": lambda: parse_topology({"nodes": "dgx-1-v100"}, 1),
    "PCIe node": lambda: cluster(PCIE_NODE, 1),
    "PCIe nodes": lambda: cluster(PCIE_NODE, 2, kind="switch"),
    "NVLink pairs": lambda: parse_topology({"nodes": "longhorn", "fabric": {"kind": "switch"}}, 3),
}
TREE: Final = ("all_reduce", "tree")
ALGORITHMS: Final = [
    (kind, name)
    for kind, names in STEP_LISTS.items()
    for name in names
    if kind != "barrier" and (kind, name) != TREE
]  # fmt: skip
"""All with a step list but the double binary tree, which is laid out evenly."""
PARAMETERS: Final = NetworkParameters(
    intra_bandwidth_bytes_per_s=300e9,
    intra_latency_s=0.0,
    inter_bandwidth_bytes_per_s=10e9,
    inter_latency_s=0.0,
    nics_per_node=4,
)
"""What the topology does not say; no bandwidth or latency of these reaches a result here."""
PIPELINES: Final = {
    ("broadcast", "ring"),
    ("reduce", "ring"),
    ("all_reduce", "tree"),
    ("all_reduce", "hierarchical_tree"),
}
"""What the closed forms take for so many pieces that filling them is latency only."""
PIECES: Final = 16
GIB: Final = 2**30
AGREES: Final = 0.01
LATENCIES: Final = 20
"""Beyond the latency regime a collective lasts at least so many times as long as its latency."""


@dataclass(frozen=True)
class Case:
    """One collective of some devices of a cluster."""

    cluster: str
    group: tuple[int, ...]
    kind: str
    algorithm: str
    num_bytes: int

    @property
    def topology(self) -> Topology:
        """Return the cluster's links and routes."""
        return topology(self.cluster)

    @property
    def ranks_per_node(self) -> tuple[int, ...]:
        """Return how many members lie on each node."""
        nodes = self.topology.node_of(np.array(self.group))
        return tuple(np.unique(nodes, return_counts=True)[1].tolist())

    def one_activity_s(self, num_bytes: int | None = None) -> float:
        """Return the latency and the busiest link's seconds of the one activity, of another size if given."""
        network = Network(self.topology, np.arange(self.topology.num_devices), (Library(PARAMETERS),))
        cost = network.collective(self.kind, num_bytes or self.num_bytes, self.group, self.algorithm)
        return cost.latency_s + max(seconds for _, seconds in cost.links)

    def stepwise_s(self, *, pieces: int = 16, lockstep: bool = False) -> float:
        """Return how long the steps take; trees and chains run in so many pieces per channel."""
        steps, pipelined = step_list_of(self, pieces)
        chunks = steps.num_chunks / (steps.num_ranks if self.kind == "all_to_all" else 1)
        order: Order = "pipeline" if pipelined else "lockstep" if lockstep else "ranks"
        return stepwise_s(self.topology, self.group, steps, self.num_bytes / chunks, order=order)

    def limit_s(self) -> float:
        """Return how long the steps take; pipelines in infinitely many pieces, as filling them goes with 1/pieces."""
        if (self.kind, self.algorithm) not in PIPELINES:
            return self.stepwise_s()
        return 2 * self.stepwise_s(pieces=2 * PIECES) - self.stepwise_s(pieces=PIECES)


@cache
def topology(name: str) -> Topology:
    """Return a cluster, built once."""
    return CLUSTERS[name]()


def step_list_of(case: Case, pieces: int) -> tuple[StepList, bool]:
    """Return the step list as a library runs it, in channels, and whether it is a pipeline."""
    nodes, ranks = case.ranks_per_node, len(case.group)
    chains = {"broadcast": steps.broadcast_ring, "reduce": steps.reduce_ring}
    rings = rings_of(case)
    if case.algorithm == "ring" and case.kind in chains:
        return in_channels(chains[case.kind](ranks, pieces=pieces), nodes, from_zero=True, rings=rings), True
    if case.algorithm == "ring":
        return in_channels(collective_steps(case.kind, "ring", nodes), nodes, rings=rings), True
    if case.algorithm == "tree" and case.kind == "all_reduce":
        return in_channels(steps.all_reduce_tree(nodes, pieces), nodes, rings=rings), True
    if case.algorithm == "hierarchical_tree":
        return steps.all_reduce_hierarchical(nodes, lambda n: steps.all_reduce_tree((1,) * n, pieces)), True
    return collective_steps(case.kind, case.algorithm, nodes), False


def rings_of(case: Case) -> Sequence[Sequence[int]]:
    """Return the rings of a group within one node that has no switch."""
    if len(case.ranks_per_node) > 1:
        return ()
    island = int(case.topology.device_island[case.group[0]])
    members = sorted(np.array(case.group) - case.topology.placement.first_device[island])
    return nvlink_rings(case.topology.islands[case.topology.placement.layout[island]], [int(m) for m in members])[0]


def drawn(seed: int) -> Case:
    """Return a random case: a cluster, neighbours, every n-th or any of its devices, an algorithm, a size."""
    random = np.random.default_rng(seed)
    name = sorted(CLUSTERS)[random.integers(len(CLUSTERS))]
    count = topology(name).num_devices
    size = int(random.integers(2, count + 1))
    group = {
        0: np.arange(size) + random.integers(count - size + 1),
        1: np.arange(0, count, max(1, count // size)),
        2: np.sort(random.choice(count, size, replace=False)),
        3: np.arange(count),
    }[int(random.integers(4))]
    kind, algorithm = ALGORITHMS[random.integers(len(ALGORITHMS))]
    case = Case(name, tuple(group.tolist()), kind, algorithm, GIB)
    latency_s = case.one_activity_s(1)
    more = (case.one_activity_s() - latency_s) / GIB
    num_bytes = LATENCIES * 2 ** random.uniform(0, 7) * latency_s / more
    return replace(case, num_bytes=max(2**20, int(num_bytes)))


@dataclass(frozen=True)
class Finding:
    """How a case came out: one activity over step by step, the class, and the latency's part of the one activity."""

    case: Case
    ratio: float
    cause: str
    latency_fraction: float


def classified(case: Case) -> Finding:
    """Return what a case says; the cause is ``agree`` within 1 %, and ``unexplained`` where nothing explains it."""
    one_s, latency_s = case.one_activity_s(), case.one_activity_s(1)
    ratio = one_s / case.limit_s()
    cause = "unexplained"
    pipelined = step_list_of(case, 1)[1]
    if abs(ratio - 1) <= AGREES:
        cause = "agree"
    elif not pipelined and abs(one_s / case.stepwise_s(lockstep=True) - 1) <= AGREES:
        cause = "drift"
    elif abs(ratio - 1) <= latency_s / one_s + AGREES:
        cause = "hops"
    return Finding(case, ratio, cause, latency_s / one_s)
