"""What every op of a plan demands on a cluster: the one place where plans meet cost models."""

from collections import defaultdict
from dataclasses import dataclass, field
from functools import cached_property

from costmodels.collectives import CollectiveCost, NetworkParameters, collective_cost, point_to_point_cost
from costmodels.kernels import KERNELS
from costmodels.profile import Profile, network_parameters
from costmodels.roofline import kernel_time
from sim.cluster.cluster import Cluster
from sim.engine.activity import Activity, Resource
from sim.plan.description import collective_bytes, kernel_work, payload_bytes
from sim.plan.op import Collective, Compute, Op, Send
from sim.plan.program import Plan, Program

Demand = tuple[tuple[Resource, float], ...]


@dataclass(frozen=True)
class ClusterPricing:
    """Prices ops on a homogeneous cluster with one profile of efficiencies.

    Resources: ("compute", rank) and ("memory", rank) of a device, ("port_out" | "port_in", rank) of its links
    inside the node, ("nic_out" | "nic_in", node, adapter). Messages and collectives use links only.
    """

    cluster: Cluster
    profile: Profile
    algorithm: str = "auto"
    _collectives: dict[tuple[object, ...], Activity] = field(default_factory=dict, repr=False)

    def price(self, plan: Plan, program: Program, op: Op, rank: int, *, folded: bool) -> Activity:
        """Return what ``op`` demands when ``rank`` runs it."""
        if isinstance(op, Compute):
            return self._compute(program, op, rank)
        if isinstance(op, Collective):
            return self._collective(plan, program, op, rank, folded=folded)
        if isinstance(op, Send):
            return self._message(plan, program, op, rank, folded=folded)
        return Activity()

    # --- kernels -------------------------------------------------------------------------------------------

    def _compute(self, program: Program, op: Compute, rank: int) -> Activity:
        family = KERNELS[op.kernel].family
        dtype = next((d for d in (program.buffers[n].dtype for n in (*op.reads, *op.writes)) if "float" in d), "float32")
        time = kernel_time(kernel_work(program, op), family, dtype, self.cluster.node.device, self.profile)
        return Activity(
            latency_s=time.latency_s,
            demands=(
                (("compute", rank), time.compute_s / self.profile.sustained.clock_fraction),
                (("memory", rank), time.memory_s),
            ),
        )

    # --- collectives ---------------------------------------------------------------------------------------

    def _collective(self, plan: Plan, program: Program, op: Collective, rank: int, *, folded: bool) -> Activity:
        num_bytes = collective_bytes(program, op)
        key = (rank, op.kind, op.axes, op.members, num_bytes, folded)
        if key not in self._collectives:
            self._collectives[key] = self._price_group(plan, program, op, rank, num_bytes, folded=folded)
        return self._collectives[key]

    def _price_group(
        self, plan: Plan, program: Program, op: Collective, rank: int, num_bytes: int, *, folded: bool
    ) -> Activity:
        group = _group(plan, op, rank)
        network = self.network
        cost = collective_cost(op.kind, num_bytes, self.cluster.ranks_per_node(group), network, self.algorithm)
        demands: list[tuple[Resource, float]] = []
        if cost.port_bytes:
            port_s = cost.port_bytes / network.intra_bandwidth_bytes_per_s
            demands += [(("port_out", rank), port_s), (("port_in", rank), port_s)]
        if cost.nic_bytes:
            siblings = self._sibling_groups(plan, program, op, rank) if folded else [group]
            demands += self._adapter_demands(cost, siblings, self.cluster.node_of(rank))
        return Activity(cost.latency_s, tuple(demands))

    def _sibling_groups(self, plan: Plan, program: Program, op: Collective, rank: int) -> list[tuple[int, ...]]:
        """Return the groups that run the same op at the same time and have a rank on ``rank``'s node."""
        node, per_node = self.cluster.node_of(rank), self.cluster.devices_per_node
        here = range(node * per_node, min((node + 1) * per_node, plan.mesh.size))
        same_role = [r for r in here if all(plan.mesh.coordinate(r, a) == v for a, v in program.role.items())]
        return sorted({_group(plan, op, r) for r in same_role})

    def _adapter_demands(self, cost: CollectiveCost, groups: list[tuple[int, ...]], node: int) -> Demand:
        """Return the use of a node's adapters by several groups, each spread over those near its ranks."""
        seconds: dict[int, float] = defaultdict(float)
        for group in groups:
            adapters = self.cluster.adapters_of(group, node)
            for adapter in adapters:
                seconds[adapter] += cost.nic_bytes / len(adapters) / self.network.inter_bandwidth_bytes_per_s
        return tuple(
            ((side, node, adapter), value) for adapter, value in sorted(seconds.items()) for side in ("nic_out", "nic_in")
        )

    # --- messages ------------------------------------------------------------------------------------------

    def _message(self, plan: Plan, program: Program, op: Send, rank: int, *, folded: bool) -> Activity:
        """Price a send, as slow as the slowest of the ranks that ``rank`` stands for."""
        num_bytes = payload_bytes(program, op.reads)
        senders = plan.ranks_of(program) if folded else (rank,)
        crossing = [r for r in senders if self._crosses(r, plan.mesh.shift(r, op.axis, op.offset))]
        sender = rank if rank in crossing or not crossing else crossing[0]
        peer = plan.mesh.shift(sender, op.axis, op.offset)
        if not crossing:
            cost = point_to_point_cost(num_bytes, same_node=True, network=self.network)
            seconds = cost.port_bytes / self.network.intra_bandwidth_bytes_per_s
            return Activity(cost.latency_s, ((("port_out", sender), seconds), (("port_in", peer), seconds)))
        cost = point_to_point_cost(num_bytes, same_node=False, network=self.network)
        node, adapter = self.cluster.node_of(sender), self.cluster.adapter_of(sender)
        sharing = sum(self.cluster.node_of(r) == node and self.cluster.adapter_of(r) == adapter for r in crossing)
        seconds = cost.nic_bytes * sharing / self.network.inter_bandwidth_bytes_per_s
        there = ("nic_in", self.cluster.node_of(peer), self.cluster.adapter_of(peer))
        return Activity(cost.latency_s, ((("nic_out", node, adapter), seconds), (there, seconds)))

    def _crosses(self, rank: int, peer: int) -> bool:
        return self.cluster.node_of(rank) != self.cluster.node_of(peer)

    @cached_property
    def network(self) -> NetworkParameters:
        """Return what the cluster's links attain under the profile."""
        return network_parameters(self.cluster.node, self.profile)


def _group(plan: Plan, op: Collective, rank: int) -> tuple[int, ...]:
    group = plan.mesh.group(rank, op.axes)
    return tuple(group[i] for i in op.members) if op.members else group

