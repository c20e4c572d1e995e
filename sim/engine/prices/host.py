"""Prices of work on hosts: copies between tiers of memory, and kernels on buffers in host memory."""

from dataclasses import dataclass, field

import numpy as np

from costmodels.host import copy_s, streaming_s
from sim.cluster.cluster import Cluster
from sim.cluster.network import LinkUse, Network
from sim.engine.prices.activity import Activity
from sim.engine.prices.traffic import Ints
from sim.plan.facts.description import kernel_work, payload_bytes
from sim.plan.words.buffer import Tier
from sim.plan.words.op import Compute, Copy
from sim.plan.words.program import Program


@dataclass(frozen=True)
class HostPricing:
    """Prices of the hosts' work for their ranks.

    Resources: ("host_link", rank, target tier) is the device's own link to its host in one direction. The links of the
    node's PCIe tree are shared by neighbours, if the cluster has such a tree. ("host_memory", rank) is the rank's share
    of its host's memory bandwidth; the rank's copies and its work on the host compete for it. The node's drives are a
    link, for which all reads and writes of its ranks compete.
    """

    cluster: Cluster
    network: Network
    _copies: dict[tuple[int, int, Tier, Tier], Activity] = field(default_factory=dict, repr=False)

    def copy(self, program: Program, op: Copy, rank: int) -> Activity:
        """Return the activity of a copy between tiers."""
        key = (rank, payload_bytes(program, op.reads), _source(program, op), _target(program, op))
        if key not in self._copies:
            self._copies[key] = self._copy(program, op, rank)
        return self._copies[key]

    def _copy(self, program: Program, op: Copy, rank: int) -> Activity:
        host, num_bytes = self.cluster.node.host, payload_bytes(program, op.reads)
        in_memory = ("host_memory", rank), streaming_s(num_bytes, host, self.cluster.devices_per_node)
        use = self.links(program, op, np.array([rank]))
        links, seconds = (part.tolist() for part in use.of_row(0))
        shared = tuple((("link", link), busy_s) for link, busy_s in zip(links, seconds, strict=True))
        latency_s = float(use.latencies_s[0])
        if _uses_storage(program, op):
            return Activity(latency_s, (in_memory, *shared))
        own = ("host_link", rank, _target(program, op)), copy_s(num_bytes, host)
        return Activity(host.device_latency_s + latency_s, (own, in_memory, *shared))

    def links(self, program: Program, op: Copy, ranks: Ints) -> LinkUse:
        """Return the load of a copy of each rank on the links that neighbours share: of PCIe trees, and to drives."""
        if _uses_storage(program, op):
            assert self.cluster.node.host.storage, "a plan with state on drives is for nodes that have some"
            return self.network.drives(payload_bytes(program, op.reads), ranks)
        to_host = _target(program, op) is Tier.HOST
        attained = self.cluster.node.host.device_attained
        return self.network.copies(payload_bytes(program, op.reads), ranks, attained, to_host=to_host)

    def kernel(self, program: Program, op: Compute, rank: int) -> Activity:
        """Return the activity of a kernel on the host's cores: its bytes load the host's memory.

        A kernel with a stated duration takes at least that long.
        """
        work = kernel_work(program, op)
        seconds = streaming_s(work.num_bytes, self.cluster.node.host, self.cluster.devices_per_node)
        latency_s = max(work.duration_s - seconds, 0.0)
        return Activity(latency_s, ((("host_memory", rank), seconds),) if seconds else ())


def runs_on_host(program: Program, op: Compute) -> bool:
    """Return whether a kernel's buffers lie in host memory: all of them do, or none."""
    return Tier.HOST in [program.buffers[name].tier for name in op.reads[:1] + op.writes[:1]]


def _uses_storage(program: Program, op: Copy) -> bool:
    return Tier.NVME in (_source(program, op), _target(program, op))


def _source(program: Program, op: Copy) -> Tier:
    return program.buffers[op.reads[0]].tier


def _target(program: Program, op: Copy) -> Tier:
    return program.buffers[op.writes[0]].tier
