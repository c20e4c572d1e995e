"""Prices of work on hosts: copies between tiers of memory, and kernels on buffers in host memory."""

import numpy as np
from msgspec import Struct, field

from costmodels.host import copy_s
from sim.cluster.cluster import Cluster
from sim.cluster.host_paths import HostPaths
from sim.cluster.link_use import LinkUse
from sim.engine.prices.activity import Activity, Resource
from sim.engine.prices.traffic import Ints
from sim.plan.facts.description import kernel_signature, kernel_work, payload_bytes
from sim.plan.words.buffer import Tier
from sim.plan.words.op import Compute, Copy
from sim.plan.words.program import Program


class HostPricing(Struct, frozen=True):
    """Prices of the hosts' work for their ranks.

    Resources: ("host_link", rank, target tier) is the device's own link to its host in one direction. ("host_cores",
    rank) are the rank's part of the host's cores, which stream its part of what all cores together do; nobody has
    measured here how much more they do while others idle. Links by number are those of the node's PCIe tree, if the
    cluster has such a tree, of its host's memory, and of its drives: all copies and all kernels of the node's ranks
    compete for them.
    """

    cluster: Cluster
    paths: HostPaths
    _known: dict[tuple[object, ...], Activity] = field(default_factory=dict)

    def copy(self, program: Program, op: Copy, rank: int) -> Activity:
        """Return the activity of a copy between tiers."""
        key = (rank, payload_bytes(program, op.reads), _source(program, op), _target(program, op))
        if key not in self._known:
            self._known[key] = self._copy(program, op, rank)
        return self._known[key]

    def _copy(self, program: Program, op: Copy, rank: int) -> Activity:
        host, num_bytes = self.cluster.node.host, payload_bytes(program, op.reads)
        use = self.links(program, op, np.array([rank]))
        shared, latency_s = _demands(use), float(use.latencies_s[0])
        if _uses_storage(program, op):
            return Activity(latency_s, shared)
        own = ("host_link", rank, _target(program, op)), copy_s(num_bytes, host)
        return Activity(host.device_latency_s + latency_s, (own, *shared))

    def kernel(self, program: Program, op: Compute, rank: int) -> Activity:
        """Return the activity of a kernel on the host's cores: its bytes pass the link of the host's memory.

        A kernel with a stated duration takes at least that long, and spreads its bytes over it.
        """
        key = (rank, *kernel_signature(program, op))
        if key not in self._known:
            stated_s = kernel_work(program, op).duration_s
            in_memory = _demands(self.links(program, op, np.array([rank])))
            cores = "host_cores", rank
            of_cores = ((cores, seconds * self.cluster.devices_per_node) for _, seconds in in_memory)
            self._known[key] = Activity(0.0, (*of_cores, *in_memory), stated_s) if in_memory else Activity(stated_s)
        return self._known[key]

    def links(self, program: Program, op: Copy | Compute, ranks: Ints) -> LinkUse:
        """Return the load of a copy, or of a kernel on the host, of each rank on the links that neighbours share."""
        if isinstance(op, Compute):
            return self.paths.memory(round(kernel_work(program, op).num_bytes), ranks)
        num_bytes = payload_bytes(program, op.reads)
        if _uses_storage(program, op):
            assert self.cluster.node.host.storage, "a plan with state on drives is for nodes that have some"
            return self.paths.drives(num_bytes, ranks)
        to_host = _target(program, op) is Tier.HOST
        return self.paths.copies(num_bytes, ranks, self.cluster.node.host.device_attained, to_host=to_host)


def _demands(use: LinkUse) -> tuple[tuple[Resource, float], ...]:
    """Return the demands of the first case."""
    links, seconds = (part.tolist() for part in use.of_row(0))
    return tuple((("link", link), busy_s) for link, busy_s in zip(links, seconds, strict=True))


def _uses_storage(program: Program, op: Copy) -> bool:
    return Tier.NVME in (_source(program, op), _target(program, op))


def _source(program: Program, op: Copy) -> Tier:
    return program.buffers[op.reads[0]].tier


def _target(program: Program, op: Copy) -> Tier:
    return program.buffers[op.writes[0]].tier
