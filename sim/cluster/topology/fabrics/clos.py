"""Switches in levels: one switch, leaf-spine, rail-optimised, and the three-level fat tree.

Routes go up only as far as they must, and down again. Their spine and their core depend on the target alone: the place
of the target's port modulo the number of spines, then that place over the number of spines, modulo the cores of a spine
(D-mod-k: Zahavi 2012, Fat-tree routing and node ordering providing contention free traffic for MPI global collectives,
J. Parallel Distrib. Comput. 72). A shift by any number of ports then never puts two routes on one link of a tree
without oversubscription.
"""

from typing import Literal

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
    two_way,
)
from sim.cluster.topology.permuting import permutation


class ClosSpec(Struct, frozen=True, kw_only=True):
    """A network of one, two or three levels.

    ``leaf_ports``: ports of a leaf; 0: all ports on one leaf.
    ``spines``: spines of each pod.
    ``leaves_per_pod``: 0 means one pod.
    ``uplink`` and ``core_link``: whole leaf-spine and spine-core links; a bandwidth of 0 follows from the
        oversubscription (bandwidth below over bandwidth above).
    ``most_pods``: 0 means any number.
    ``rails``: a leaf holds the ports of one rail of ``leaf_ports`` nodes, a pod the leaves of ``nodes_per_pod``.
    ``cross_rail``: traffic between rails goes over NVLink first, or over the spines.
    ``reduces``: the switches do in-network reduction.
    """

    leaf_ports: int = 0
    spines: int = 0
    oversubscription: float = 1.0
    uplink: Cable | None = None
    leaves_per_pod: int = 0
    nodes_per_pod: int = 0
    cores_per_spine: int = 0
    core_oversubscription: float = 1.0
    core_link: Cable | None = None
    most_pods: int = 0
    rails: bool = False
    cross_rail: Literal["nvlink", "spine"] = "nvlink"
    reduces: bool = False


class Clos(Struct, frozen=True, kw_only=True):
    """The network of a spec for some ports. ``address``: the place of each port, leaf by leaf."""

    attach: IntArray
    address: IntArray
    islands_first_half: BoolArray
    num_leaves: int
    leaves_per_pod: int
    spines: int
    cores_per_spine: int
    uplink_bytes_per_s: float
    core_link_bytes_per_s: float
    links: LinkTable
    keeps_rails: bool
    reduces: bool
    direct: bool = False

    @property
    def num_pods(self) -> int:
        """Return the number of pods."""
        return -(-self.num_leaves // self.leaves_per_pod)

    @property
    def num_switches(self) -> int:
        """Return the number of switches. Their order: leaves, then spines pod by pod, then cores spine by spine."""
        return self.num_leaves + self.num_pods * self.spines + self.spines * self.cores_per_spine

    def routes(self, sources: IntArray, targets: IntArray) -> IntArray:
        """Return the links of each route, up and down, at most four."""
        if not self.spines:
            return rows([], len(sources))
        leaf, last, address = self.attach[sources], self.attach[targets], self.address[targets]
        spine, num_up = address % self.spines, self.num_leaves * self.spines
        climbs = leaf != last
        up = np.where(climbs, leaf * self.spines + spine, NONE)
        down = np.where(climbs, num_up + last * self.spines + spine, NONE)
        if not self.cores_per_spine:
            return rows([up, down], len(sources))
        pod, last_pod = leaf // self.leaves_per_pod, last // self.leaves_per_pod
        core = address // self.spines % self.cores_per_spine
        tops, num_core_up = pod != last_pod, self.num_pods * self.spines * self.cores_per_spine
        to_core = 2 * num_up + (pod * self.spines + spine) * self.cores_per_spine + core
        from_core = 2 * num_up + num_core_up + (last_pod * self.spines + spine) * self.cores_per_spine + core
        return rows([up, np.where(tops, to_core, NONE), np.where(tops, from_core, NONE), down], len(sources))

    def link_images(self, ports_to: IntArray) -> IntArray | None:
        """Return where each link goes if port p goes to ``ports_to[p]``, so that routes go to routes; None if none do.

        Routes are functions of leaf, pod, spine and core, so it is enough that each of these goes to one of its kind.
        """
        if not self.spines:
            return np.zeros(0, np.int32)
        num_up, num_tops = self.num_leaves * self.spines, self.spines * self.cores_per_spine
        leaf, spine = self.attach, self.address % self.spines
        if (leaves_to := permutation(leaf, leaf[ports_to], self.num_leaves)) is None:
            return None
        if (spines_to := permutation(spine, spine[ports_to], self.spines)) is None:
            return None
        up = (leaves_to[:, None] * self.spines + spines_to).ravel()
        if not self.cores_per_spine:
            return np.concatenate([up, num_up + up])
        pod = leaf // self.leaves_per_pod
        if (pods_to := permutation(pod, pod[ports_to], self.num_pods)) is None:
            return None
        core = spine * self.cores_per_spine + self.address // self.spines % self.cores_per_spine
        if (cores_to := permutation(core, core[ports_to], num_tops)) is None:
            return None
        top = 2 * num_up + (pods_to[:, None] * num_tops + cores_to).ravel()
        return np.concatenate([up, num_up + up, top, self.num_pods * num_tops + top])

    def switch_name(self, switch: int) -> str:
        """Return the name of a switch."""
        if self.num_leaves == 1 and not self.spines:
            return "switch"
        if switch < self.num_leaves:
            return f"leaf {switch}"
        spine = switch - self.num_leaves
        if spine < self.num_pods * self.spines:
            pod = f"pod {spine // self.spines} " if self.cores_per_spine else ""
            return f"{pod}spine {spine % self.spines if self.cores_per_spine else spine}"
        return f"core {spine - self.num_pods * self.spines}"

    def first_half(self, capacity_bytes_per_s: FloatArray) -> BoolArray:
        """Return the ports of the first half of the islands; capacities do not matter here."""
        del capacity_bytes_per_s
        return self.islands_first_half

    def bisection_bytes_per_s(self, capacity_bytes_per_s: FloatArray) -> float:
        """Return the smallest cut between the first half of the islands and the others, exactly.

        Each subtree of a switch has two costs: ``low`` if the network above it is on the targets' side of the cut,
        ``high`` if it is on the sources' side. The subtree's switch may always take the other side at the cost of its
        uplinks.
        """
        half = self.islands_first_half
        low = np.bincount(self.attach, np.where(half, capacity_bytes_per_s, 0.0), self.num_leaves)
        high = np.bincount(self.attach, np.where(half, 0.0, capacity_bytes_per_s), self.num_leaves)
        if not self.spines:
            return float(np.minimum(low, high).sum())
        up = self.spines * self.uplink_bytes_per_s
        low, high = np.minimum(low, high + up), np.minimum(high, low + up)
        if self.cores_per_spine:
            pod = np.arange(self.num_leaves) // self.leaves_per_pod
            low, high = np.bincount(pod, low), np.bincount(pod, high)
            top = self.spines * self.cores_per_spine * self.core_link_bytes_per_s
            low, high = np.minimum(low, high + top), np.minimum(high, low + top)
        return float(min(low.sum(), high.sum()))


def build_clos(spec: ClosSpec, ports: Ports) -> Clos:
    """Return the network that joins the ports. Raises TopologyError if the ports do not fit."""
    leaf, slot, leaf_ports = _leaves(spec, ports)
    num_leaves = int(leaf.max()) + 1
    keeps_rails = spec.rails and spec.cross_rail == "nvlink"
    apart = keeps_rails and num_leaves <= int(ports.rail.max()) + 1  # one switch per rail, and no other needed
    if num_leaves > 1 and not spec.spines and not apart:
        rule = f"{num_leaves} leaf switches need spines between them"
        raise TopologyError("fabric.spines", rule, "write spines: 1 or more")
    spines = spec.spines if num_leaves > 1 else 0
    leaves_per_pod = _leaves_per_pod(spec, ports, leaf_ports) or num_leaves
    num_pods = -(-num_leaves // leaves_per_pod)
    if num_pods > 1 and not spec.cores_per_spine:
        rule = f"{num_pods} pods need cores between them"
        raise TopologyError("fabric.cores_per_spine", rule, "write cores_per_spine: 1 or more")
    if spec.most_pods and num_pods > spec.most_pods:
        most = spec.most_pods * leaves_per_pod * leaf_ports
        raise TopologyError("fabric", f"{len(ports)} adapters on a tree that holds {most}", "write a larger radix")
    refuse_huge(2 * spines * (num_leaves + num_pods * spec.cores_per_spine))
    fastest = float(ports.bandwidth_bytes_per_s.max())
    uplink = _sized(spec.uplink, leaf_ports * fastest / (spec.oversubscription * max(1, spines)))
    above = leaves_per_pod * uplink.bandwidth_bytes_per_s / (spec.core_oversubscription * max(1, spec.cores_per_spine))
    core_link = _sized(spec.core_link, above)
    return Clos(
        attach=leaf.astype(np.int32),
        address=(leaf * leaf_ports + slot).astype(np.int32),
        islands_first_half=first_islands(ports),
        num_leaves=num_leaves,
        leaves_per_pod=leaves_per_pod,
        spines=spines,
        cores_per_spine=spec.cores_per_spine,
        uplink_bytes_per_s=uplink.bandwidth_bytes_per_s,
        core_link_bytes_per_s=core_link.bandwidth_bytes_per_s,
        links=_links(num_leaves, leaves_per_pod, spines, spec.cores_per_spine, uplink, core_link),
        keeps_rails=keeps_rails,
        reduces=spec.reduces,
    )


def _leaves_per_pod(spec: ClosSpec, ports: Ports, nodes_per_leaf: int) -> int:
    """Return the number of leaves of a pod, 0 if all leaves are in one pod."""
    if not spec.nodes_per_pod:
        return spec.leaves_per_pod
    if spec.nodes_per_pod % nodes_per_leaf:
        rule = f"{spec.nodes_per_pod} nodes do not fill leaves of {nodes_per_leaf}"
        raise TopologyError("fabric.nodes_per_pod", rule, "write a multiple of nodes_per_leaf")
    return spec.nodes_per_pod // nodes_per_leaf * (int(ports.rail.max()) + 1)


def _sized(cable: Cable | None, bandwidth_bytes_per_s: float) -> Cable:
    """Return the cable, with this bandwidth if it states none."""
    if cable is None:
        return Cable(bandwidth_bytes_per_s=bandwidth_bytes_per_s)
    if cable.bandwidth_bytes_per_s:
        return cable
    return Cable(bandwidth_bytes_per_s=bandwidth_bytes_per_s, latency_s=cable.latency_s, message_s=cable.message_s)


def _leaves(spec: ClosSpec, ports: Ports) -> tuple[AnyInts, AnyInts, int]:
    """Return each port's leaf, its place on the leaf, and the number of places of a leaf."""
    if not spec.rails:
        leaf_ports = spec.leaf_ports or len(ports)
        index = np.arange(len(ports))
        return index // leaf_ports, index % leaf_ports, leaf_ports
    counts = np.bincount(ports.node, minlength=ports.num_nodes)
    if len(set(counts.tolist())) > 1:
        rule = f"nodes have {counts.min()} to {counts.max()} adapters"
        raise TopologyError(
            "fabric.kind", f"rails need the same number on each node, and {rule}", "write kind: leaf-spine"
        )
    nodes_per_leaf = spec.leaf_ports or ports.num_nodes
    return ports.node // nodes_per_leaf * counts[0] + ports.rail, ports.node % nodes_per_leaf, nodes_per_leaf


def _links(leaves: int, leaves_per_pod: int, spines: int, cores: int, uplink: Cable, core_link: Cable) -> LinkTable:
    """Return all leaf-spine links up, then down, then all spine-core links up, then down."""
    leaf, spine = np.repeat(np.arange(leaves), spines), np.tile(np.arange(spines), leaves)
    pod = leaf // leaves_per_pod
    tables = [two_way(leaf, leaves + pod * spines + spine, LinkKind.LEAF_SPINE, uplink)]
    pods = -(-leaves // leaves_per_pod)
    below = np.repeat(np.arange(pods * spines), cores)
    above = below % spines * cores + np.tile(np.arange(cores), pods * spines) if cores else below
    tables.append(two_way(leaves + below, leaves + pods * spines + above, LinkKind.SPINE_CORE, core_link))
    return joined(tables)
