"""What every op of a plan demands on a cluster: the one place where plans meet cost models."""

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from functools import cached_property

from costmodels.collectives import (
    CollectiveCost,
    NetworkParameters,
    collective_cost,
    point_to_point_cost,
    uneven_all_to_all_cost,
)
from costmodels.kernels import KERNELS
from costmodels.profile import Profile, network_parameters
from costmodels.roofline import KernelTime, kernel_time
from sim.cluster.cluster import Cluster
from sim.engine.activity import Activity, Resource
from sim.plan.description import collective_bytes, kernel_work, pair_bytes, payload_bytes
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
    _kernels: dict[tuple[object, ...], KernelTime] = field(default_factory=dict, repr=False)
    _collectives: dict[tuple[object, ...], Activity] = field(default_factory=dict, repr=False)
    _places: dict[tuple[object, ...], tuple[int, ...]] = field(default_factory=dict, repr=False)

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
        time = self._kernel_time(program, op)
        return Activity(
            latency_s=time.latency_s,
            demands=(
                (("compute", rank), time.compute_s / self.profile.sustained.clock_fraction),
                (("memory", rank), time.memory_s),
            ),
        )

    def _kernel_time(self, program: Program, op: Compute) -> KernelTime:
        """Return a kernel's time; calls alike in all but names are timed once."""
        buffers = [program.buffers[name] for name in (*op.reads, *op.writes)]
        attributes = tuple(item for item in op.attributes.items() if item[0] != "salt")
        key = (op.kernel, len(op.reads), *[(b.shape, b.dtype) for b in buffers], attributes)
        if key not in self._kernels:
            dtype = next((b.dtype for b in buffers if "float" in b.dtype), "float32")
            family, device = KERNELS[op.kernel].family, self.cluster.node.device
            self._kernels[key] = kernel_time(kernel_work(program, op), family, dtype, device, self.profile)
        return self._kernels[key]

    # --- collectives ---------------------------------------------------------------------------------------

    def _collective(self, plan: Plan, program: Program, op: Collective, rank: int, *, folded: bool) -> Activity:
        num_bytes = collective_bytes(program, op)
        key = (rank, op.kind, op.axes, op.members, num_bytes, op.sizes, folded)
        if key not in self._collectives:
            places = self._distinct_places(plan, program, op, rank) if folded else (rank,)
            prices = [self._price_group(plan, program, op, rank, place, num_bytes, folded=folded) for place in places]
            self._collectives[key] = max(prices, key=lambda activity: activity.duration_s)
        return self._collectives[key]

    def _distinct_places(self, plan: Plan, program: Program, op: Collective, rank: int) -> tuple[int, ...]:
        """Return a rank of every kind of group of a role: groups that lie on the nodes, and share adapters, alike.

        A folded collective is as slow as the slowest of them. Each is the group's rank whose adapter carries most,
        ``rank`` itself where it is one of these.
        """
        key = (rank, op.axes, op.members)
        if key not in self._places:
            role, groups, seen = set(plan.ranks_of(program)), [], set[int]()
            for r in (rank, *sorted(role)):
                if r not in seen:
                    seen.update(plan.mesh.group(r, op.axes))
                    groups.append(_group(plan, op, r))
            load: dict[tuple[int, int], float] = defaultdict(float)
            for group in groups:
                for adapter, share in self._adapter_shares(group).items():
                    load[adapter] += share
            places: dict[tuple[object, ...], int] = {}
            for group in groups:
                mine = [member for member in group if member in role]
                most = max(load[self._adapter(member)] for member in mine)
                busiest = [member for member in mine if load[self._adapter(member)] == most]
                place = rank if rank in busiest else busiest[0]
                places.setdefault((self.cluster.ranks_per_node(group), most), place)
            self._places[key] = tuple(places.values())
        return self._places[key]

    def _adapter(self, rank: int) -> tuple[int, int]:
        return self.cluster.node_of(rank), self.cluster.adapter_of(rank)

    def _adapter_shares(self, group: tuple[int, ...]) -> dict[tuple[int, int], float]:
        """Return the part of its node's traffic that each adapter near the group carries."""
        adapters = {self._adapter(member) for member in group}
        per_node = Counter(node for node, _ in adapters)
        return {adapter: 1 / per_node[adapter[0]] for adapter in adapters}

    def _price_group(
        self, plan: Plan, program: Program, op: Collective, rank: int, place: int, num_bytes: int, *, folded: bool
    ) -> Activity:
        """Price the group of ``place``, with the ports of ``rank`` and the adapters of ``place``'s node."""
        group = _group(plan, op, place)
        network, per_node = self.network, self.cluster.ranks_per_node(group)
        if op.sizes:
            order = sorted(range(len(group)), key=lambda position: self.cluster.node_of(group[position]))
            cost = uneven_all_to_all_cost(pair_bytes(program, op, order), per_node, network, self.algorithm)
        else:
            cost = collective_cost(op.kind, num_bytes, per_node, network, self.algorithm)
        demands: list[tuple[Resource, float]] = []
        if cost.port_bytes:
            port_s = cost.port_bytes / network.intra_bandwidth_bytes_per_s
            demands += [(("port_out", rank), port_s), (("port_in", rank), port_s)]
        if cost.nic_bytes:
            siblings = self._sibling_groups(plan, program, op, place) if folded else [group]
            demands += self._adapter_demands(cost, siblings, self.cluster.node_of(place))
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
            ((side, node, adapter), value)
            for adapter, value in sorted(seconds.items())
            for side in ("nic_out", "nic_in")
        )

    # --- messages ------------------------------------------------------------------------------------------

    def _message(self, plan: Plan, program: Program, op: Send, rank: int, *, folded: bool) -> Activity:
        """Price a send, as slow as the slowest of the ranks that ``rank`` stands for."""
        num_bytes = payload_bytes(program, op.reads)
        senders = plan.ranks_of(program) if folded else (rank,)
        crossing = [r for r in senders if self._crosses(r, plan.mesh.shift(r, op.axis, op.offset))]
        users = Counter(self._adapter(r) for r in crossing)
        sender = max(crossing, default=rank, key=lambda r: (users[self._adapter(r)], r == rank, -r))
        peer = plan.mesh.shift(sender, op.axis, op.offset)
        if not crossing:
            cost = point_to_point_cost(num_bytes, same_node=True, network=self.network)
            seconds = cost.port_bytes / self.network.intra_bandwidth_bytes_per_s
            return Activity(cost.latency_s, ((("port_out", sender), seconds), (("port_in", peer), seconds)))
        cost = point_to_point_cost(num_bytes, same_node=False, network=self.network)
        seconds = cost.nic_bytes * users[self._adapter(sender)] / self.network.inter_bandwidth_bytes_per_s
        there = ("nic_in", *self._adapter(peer))
        return Activity(cost.latency_s, ((("nic_out", *self._adapter(sender)), seconds), (there, seconds)))

    def _crosses(self, rank: int, peer: int) -> bool:
        return self.cluster.node_of(rank) != self.cluster.node_of(peer)

    @cached_property
    def network(self) -> NetworkParameters:
        """Return what the cluster's links attain under the profile."""
        return network_parameters(self.cluster.node, self.profile)


def _group(plan: Plan, op: Collective, rank: int) -> tuple[int, ...]:
    group = plan.mesh.group(rank, op.axes)
    return tuple(group[i] for i in op.members) if op.members else group
