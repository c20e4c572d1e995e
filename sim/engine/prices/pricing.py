"""The demands of every op of a plan on a cluster: the one place where plans meet cost models."""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Final

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace
from numpy.typing import NDArray

from costmodels.hardware import DeviceSpec
from costmodels.kernels import KERNELS, Family, Work
from costmodels.profile import Profile, network_parameters
from costmodels.roofline import KernelTime, times_of_kernels
from costmodels.software import Software
from sim.cluster import host_paths, levelling
from sim.cluster.cluster import Cluster
from sim.cluster.link_use import LinkCost, LinkUse
from sim.cluster.network import Network
from sim.cluster.nominal import is_switched, library_on
from sim.cluster.topology.links import LinkKind
from sim.cluster.topology.symmetry import link_images
from sim.engine.prices import host
from sim.engine.prices.activity import Activity, LinkDemands, Resource
from sim.engine.prices.numbering import numbered, numbered_to_ten_digits
from sim.engine.prices.traffic import Exchange, Load, Wanted, exchanges, signature
from sim.engine.prices.variation import Variation
from sim.plan.facts.description import (
    collective_bytes,
    kernel_signature,
    kernel_work,
    pair_bytes,
    payload_bytes,
    runs_on_host,
)
from sim.plan.functions.gradients import is_recomputed
from sim.plan.words.op import Collective, Compute, Copy, Op, Send
from sim.plan.words.program import Plan, Program, Task
from sim.plan.words.stream import Purpose, stream_of
from sim.sorting import run_begins

_MANY_LINKS: Final = 64
"""Where activities demand more links each, their demands are columns."""


class ClusterPricing(Struct, frozen=True, dict=True):
    """Prices ops on a cluster with one profile of efficiencies.

    Resources: ("compute", rank) and ("memory", rank) of a device, those of its host (HostPricing), and links by number,
    ("link", number). Messages and collectives use links only. ``profile`` holds for the network and for devices of its
    own generation; ``profiles`` has the profiles of other generations. ``algorithms``: the algorithm of each kind of
    collective; kinds left out: ``auto``. ``software``: times that the framework adds.
    """

    cluster: Cluster
    profile: Profile
    profiles: Mapping[str, Profile] = {}
    algorithms: Mapping[str, str] = {}
    variation: Variation = field(default_factory=Variation)
    software: Software = field(default_factory=Software)
    _signatures: dict[tuple[object, ...], int] = {}
    _known: dict[tuple[int, int], tuple[int, Program, Op]] = {}
    _kernels: dict[tuple[str, int], KernelTime] = {}
    _seconds: dict[tuple[int, str, float], tuple[float, float, float]] = {}
    _devices: "dict[int, _Device]" = {}
    _collectives: dict[tuple[object, ...], Activity] = {}
    _messages: dict[tuple[int, int, int], Activity] = {}
    _uses: dict[tuple[object, ...], LinkUse] = {}

    def under(self, software: Software, profile: Profile | None = None) -> "ClusterPricing":
        """Return the prices of the same cluster under another framework and another profile.

        The known facts about ops are kept, and under the same network their loads on links. No time is kept.
        """
        profile = profile or self.profile
        profiles = {name: profile if known is self.profile else known for name, known in self.profiles.items()}
        other = replace(
            self, profile=profile, profiles=profiles, software=software, _kernels={}, _seconds={}, _devices={},
            _collectives={}, _messages={}, _uses=self._uses if profile.network == self.profile.network else {},
        )  # fmt: skip
        if profile.network == self.profile.network:
            other.__dict__["network"] = self.network
        return other

    def placed(self, ranks: Sequence[int]) -> "ClusterPricing":
        """Return the prices for a plan whose ranks lie on these devices, by number."""
        cluster, variation = (replace(placed, ranks=tuple(ranks)) for placed in (self.cluster, self.variation))
        return replace(self, cluster=cluster, variation=variation, _devices={}, _collectives={}, _messages={}, _uses={})

    def for_another_plan(self) -> "ClusterPricing":
        """Return the same prices, with all that is known of groups and kernels, and no hold on the ops of plans."""
        other = replace(self, _known={})
        other.__dict__.update(self.__dict__)
        return other

    def price(self, plan: Plan, program: Program, op: Op, rank: int) -> Activity:
        """Return the activity of ``op`` on ``rank``."""
        if isinstance(op, Compute):
            on_host = runs_on_host(program, op)
            return self.hosts.kernel(program, op, rank) if on_host else self._compute(plan, program, op, rank)
        if isinstance(op, Copy):
            return self.hosts.copy(program, op, rank)
        if isinstance(op, Collective):
            return _yielding(op, self._collective(plan, program, op, rank))
        if isinstance(op, Send):
            return _yielding(op, self._message(plan, program, op, rank))
        return Activity()

    def launches_s(self, task: Task) -> tuple[float, ...]:
        """Return the host time per op of a task that a host thread launches; no other task waits for launches."""
        if not self.software.launches or not task.traits.launched:
            return ()
        if task.traits.coalesces and self.software.graph_launch_s is not None:
            return _whole(len(task.ops), self.software.task_launch_s + self.software.graph_launch_s)
        each_s = [self._launch_s(op, derived=task.traits.derived) for op in task.ops]
        if task.traits.coalesces:
            each_s[:1] = [first_s + self.software.task_launch_s for first_s in each_s[:1]]
        return tuple(each_s)

    def _launch_s(self, op: Op, *, derived: bool) -> float:
        """Return the host time of launching an op; a wait, which writes nothing, is no kernel."""
        if not isinstance(op, Compute):
            return self.software.from_autograd_s
        if not op.writes:
            return 0.0
        return self.software.kernel_launch_s(op.kernel, native=derived and not is_recomputed(op))

    def _number(self, program: Program, op: Compute | Collective) -> int:
        """Return a number per signature: ops alike in all but names and ranks have the same."""
        key = (id(program.buffers), id(op))
        known = self._known.get(key)
        if known is None:
            signature = kernel_signature(program, op) if isinstance(op, Compute) else _signature(program, op)
            number = self._signatures.setdefault(signature, len(self._signatures))
            known = self._known[key] = number, program, op  # kept, so that no others get their identities
        return known[0]

    # --- kernels -------------------------------------------------------------------------------------------

    def _compute(self, plan: Plan, program: Program, op: Compute, rank: int) -> Activity:
        """Return a kernel's demands; calls alike in all but names are priced once per rank."""
        number, mine = self._number(program, op), self._devices.get(rank)
        if mine is None:
            mine = self._devices[rank] = _Device.of(rank, self._device_of(rank), self._slowdowns[rank])
        found = mine.activities.get(number)
        if found is None:
            slowdown = mine.slowdown * self.variation.slowdown(KERNELS[op.kernel].family, rank)
            key = (number, mine.spec.name, slowdown)
            seconds = self._seconds.get(key)
            if seconds is None:
                seconds = self._seconds[key] = self._seconds_of(plan, program, op, mine.spec, slowdown)
            found = mine.activities[number] = mine.activity(*seconds)
        return found

    def _seconds_of(
        self, plan: Plan, program: Program, op: Compute, device: DeviceSpec, slowdown: float
    ) -> tuple[float, float, float]:
        """Return how long a kernel waits, computes, and moves bytes of a device's memory."""
        time = self._kernel_time(plan, program, op, device)
        compute_s = time.compute_s * slowdown / self._profile_of(device).sustained.clock_fraction
        memory_s = time.memory_s * slowdown
        if device.kind == "cpu":  # a core that waits for its memory does nothing else
            compute_s = max(compute_s, memory_s)
        return time.latency_s * slowdown, compute_s, memory_s

    @cached_property
    def _slowdowns(self) -> list[float]:
        """Return how many times as long each rank's device computes."""
        slowdowns: list[float] = self.cluster.topology.device_slowdown[self.cluster.devices].tolist()
        return slowdowns

    @cached_property
    def _type_numbers(self) -> list[int]:
        """Return the place of each rank's device among the types."""
        numbers: list[int] = self.cluster.device_type_of.tolist()
        return numbers

    def _device_of(self, rank: int) -> DeviceSpec:
        return self.cluster.device_types[self._type_numbers[rank]]

    def _profile_of(self, device: DeviceSpec) -> Profile:
        return self.profiles.get(device.generation, self.profile)

    def _kernel_time(self, plan: Plan, program: Program, op: Compute, device: DeviceSpec) -> KernelTime:
        """Return a kernel's time on a device; all kernels of a plan on the device are timed together, each once."""
        key = (device.name, self._number(program, op))
        if key not in self._kernels:
            is_on = self.cluster.device_type_of == self.cluster.device_types.index(device)
            others = [p for p in plan.programs if is_on[plan.rank_array_of(p)].any()]
            self._time_kernels([program, *others], device)
        return self._kernels[key]

    def _time_kernels(self, programs: Sequence[Program], device: DeviceSpec) -> None:
        """Time the kernels of programs on a device: those of a family on one type of number in one pass.

        Kernels with parameters of their own are each timed alone.
        """
        waiting: dict[tuple[Family, str, str], dict[tuple[str, int], tuple[str, Work]]] = {}
        seen, profile = set[tuple[str, int]](), self._profile_of(device)
        for program in {id(program.distinct_ops): program for program in programs}.values():
            for op in (op for op in program.distinct_ops.ops if isinstance(op, Compute)):
                key = (device.name, self._number(program, op))
                if key in seen or key in self._kernels or runs_on_host(program, op):
                    continue
                seen.add(key)
                work = kernel_work(program, op, fused=self.software.fuses(op.kernel))
                own = op.kernel if op.kernel in profile.kernels else ""
                alike = (KERNELS[op.kernel].family, _dtype(program, op, work), own)
                waiting.setdefault(alike, {})[key] = op.kernel, work
        for (family, dtype, own), works in waiting.items():
            times = times_of_kernels([work for _, work in works.values()], family, dtype, device, profile, own)
            for (key, (kernel, work)), time in zip(works.items(), times, strict=True):
                self._kernels[key] = self.software.slowed(time, work, family, kernel, dtype)

    # --- collectives and messages --------------------------------------------------------------------------

    def expect(self, plan: Plan, ranks: Collection[int], wanted: Wanted | None = None) -> None:
        """Price collectives without tables of sizes, and messages, of some ranks: one kind of all ranks in one pass.

        ``wanted``: only those of these tasks.
        """
        for exchange in exchanges(plan, ranks, wanted):
            if isinstance(exchange.op, Send):
                self._price_messages(exchange, exchange.op)
            elif isinstance(exchange.op, Collective) and not exchange.op.sizes:
                self._price_collectives(plan, exchange, exchange.op, ranks)

    def _price_messages(self, exchange: Exchange, op: Send) -> None:
        num_bytes = payload_bytes(exchange.program, op.reads)
        keys = [(num_bytes, source, target) for source, target in exchange.groups.tolist()]
        if not all(key in self._messages for key in keys):
            use = self.use_of(exchange)
            self._messages.update(zip(keys, self._activities(use), strict=True))

    def _price_collectives(self, plan: Plan, exchange: Exchange, op: Collective, ranks: Collection[int]) -> None:
        number, asked, known = self._number(exchange.program, op), set(ranks), self._collectives
        groups = exchange.groups.tolist()
        askers = [[(rank, number, plan.mesh.axes) for rank in group if rank in asked] for group in groups]
        if all(key in known for keys in askers for key in keys):
            return
        use = self._uses[_same(exchange)] = self.use_of(exchange)
        for keys, group, alone in zip(askers, groups, self._activities(use), strict=True):
            known.update(dict.fromkeys(keys, self._waited_for(alone, group)))

    def _collective(self, plan: Plan, program: Program, op: Collective, rank: int) -> Activity:
        mine = (rank, self._number(program, op), plan.mesh.axes)
        if mine not in self._collectives:
            group = op.group(plan.mesh, rank)
            self._collectives[mine] = self._of_group(program, op, group, collective_bytes(program, op))
        return self._collectives[mine]

    def _of_group(self, program: Program, op: Collective, group: tuple[int, ...], num_bytes: int) -> Activity:
        pairs = pair_bytes(program, op)
        key = (op.kind, group, num_bytes if pairs is None else pairs, op.root, op.levelled)
        if key not in self._collectives:
            if pairs is not None and op.levelled:
                cost = self.levelled.cost(group, pairs)
            else:
                table = None if pairs is None else pairs.array
                cost = self.network.collective(op.kind, num_bytes, group, self._algorithm(op), op.root, table)
            self._collectives[key] = self._waited_for(self._activity(cost), group)
        return self._collectives[key]

    def _waited_for(self, activity: Activity, group: Sequence[int]) -> Activity:
        """Return a collective that the framework waits for."""
        waiting_s = self.software.waiting_s(len(group))
        return self._taking_compute(replace(activity, latency_s=activity.latency_s + waiting_s), group)

    def _taking_compute(self, activity: Activity, group: Sequence[int]) -> Activity:
        """Return a collective with what it takes of its members' arithmetic while its bytes move."""
        if not any(profile.network.compute_share for profile in (self.profile, *self.profiles.values())):
            return activity
        demands = []
        for rank in group:
            share = self._profile_of(self._device_of(rank)).network.compute_share
            demands.append((("compute", rank), share * activity.occupancy_s))
        return replace(activity, demands=(*activity.demands, *(demand for demand in demands if demand[1] > 0)))

    def _algorithm(self, op: Collective) -> str:
        return self.algorithms.get(str(op.kind), "auto")

    def _message(self, plan: Plan, program: Program, op: Send, rank: int) -> Activity:
        key = payload_bytes(program, op.reads), rank, plan.mesh.shift(rank, op.axis, op.offset)
        if key not in self._messages:
            self._messages[key] = self._activity(self.network.message(*key))
        return self._messages[key]

    def _activity(self, cost: LinkCost) -> Activity:
        names = self._link_names
        return Activity(cost.latency_s, tuple([(names[link], seconds) for link, seconds in cost.links]))

    def _activities(self, use: LinkUse) -> list[Activity]:
        """Return each case of a use of links as an activity."""
        ends, latencies_s = use.ends(), use.latencies_s.tolist()
        parts = [slice(*both) for both in pairwise(ends)]
        if len(use.links) > _MANY_LINKS * len(parts):
            columns = [LinkDemands(use.links[part], use.seconds[part]) for part in parts]
            return [Activity(latency_s, found) for latency_s, found in zip(latencies_s, columns, strict=True)]
        names = map(self._link_names.__getitem__, use.links.tolist())
        demands = list(zip(names, use.seconds.tolist(), strict=True))
        return [Activity(latency_s, tuple(demands[part])) for latency_s, part in zip(latencies_s, parts, strict=True)]

    @cached_property
    def _link_names(self) -> "_LinkNames":
        """Cache of links as resources: exchanges of all ranks name one again and again."""
        return _LinkNames()

    @cached_property
    def network(self) -> Network:
        """Return the cluster's links, with the rates attained under the profile of each type of node's devices."""
        topology, profiles = self.cluster.topology, map(self._profile_of, self.cluster.layout_devices)
        libraries = tuple(
            library_on(network_parameters(self.cluster.node, profile), topology, layout, profile.network)
            for layout, profile in enumerate(profiles)
        )
        return Network(topology, self.cluster.devices, libraries)

    @cached_property
    def levelled(self) -> "levelling.LevelledExchanges":
        """Return the costs of exchanges in which every member stands for the busiest."""
        return levelling.LevelledExchanges(self.network, self.algorithms.get("all_to_all", "auto"))

    @cached_property
    def hosts(self) -> "host.HostPricing":
        """Return the prices of the hosts' work."""
        return host.HostPricing(self.cluster, host_paths.HostPaths(self.cluster.topology, self.cluster.devices))

    # --- what folding must respect -------------------------------------------------------------------------

    def rank_kinds(self, plan: Plan) -> NDArray[np.int64]:
        """Return a number per rank, the same for ranks whose devices are of one type and equally fast."""
        num_ranks = plan.mesh.size
        if self.variation.is_any:
            return np.arange(num_ranks)
        slowdown = self.cluster.topology.device_slowdown[self.cluster.devices[:num_ranks]]
        values, codes = numbered(slowdown)
        return numbered(self.cluster.device_type_of[:num_ranks].astype(np.int64) * len(values) + codes)[1]

    def link_kinds(self) -> NDArray[np.int32]:
        """Return a number per link, the same for links of one kind, bandwidth, latency and time per message."""
        return self._link_kinds

    @cached_property
    def _link_kinds(self) -> NDArray[np.int32]:
        links = self.cluster.topology.links
        columns = (links.kind, links.bandwidth_bytes_per_s, links.latency_s, links.message_s)
        at = np.flatnonzero(
            np.any([run_begins(column) for column in columns], axis=0)
        )  # links of one kind follow each other
        numbers = np.zeros(len(at), np.int64)
        for column in columns:
            values, codes = numbered(column[at])
            numbers = numbers * len(values) + codes
        return np.repeat(numbered(numbers)[1].astype(np.int32), np.diff(at, append=len(links)))

    def network_links(self) -> NDArray[np.bool_]:
        """Return which links are beyond the adapters."""
        beyond: NDArray[np.bool_] = self.cluster.topology.kind > LinkKind.NIC
        return beyond

    def link_images(self, ranks_to: NDArray[np.int64]) -> NDArray[np.int32] | None:
        """Return where each link goes if ranks go to others; None where devices without a switch change places.

        None too for in-network reduction, whose trees the network chooses for itself.
        """
        topology, devices = self.cluster.topology, self.cluster.devices[: len(ranks_to)]
        if topology.fabric is not None and topology.fabric.reduces:
            return None
        devices_to = np.arange(topology.num_devices)
        devices_to[devices] = devices[ranks_to]
        local = devices - topology.placement.first_device[topology.device_island[devices]]
        if not all(map(is_switched, topology.islands)) and (local[ranks_to] != local).any():
            return None
        images = link_images(topology, devices_to)
        return images if images is not None and (self._link_kinds[images] == self._link_kinds).all() else None

    def lie_alike(self, groups: NDArray[np.int64]) -> bool:
        """Return whether groups have as many members on each island, island by island in their order."""
        crossing = np.diff(self.cluster.topology.device_island[self.cluster.devices[groups]], axis=1)
        return bool((crossing >= 0).all() and ((crossing > 0) == (crossing[:1] > 0)).all())

    def loads(self, plan: Plan, exchanges: Iterator[Exchange]) -> Iterator[tuple[Exchange, Load]]:
        """Yield the loads of exchanges on links; of several over the same axes in the same proportions only the first.

        Axes of degree 1 name the same groups in several ways, and folding knows groups by their axes.
        """
        seen, known = defaultdict[tuple[object, ...], list[_Seen]](list), set[tuple[object, ...]]()
        for exchange in exchanges:
            if (proportions := self.proportions_of(exchange)) is not None:
                if proportions in known:
                    continue
                known.add(proportions)
            op, use = exchange.op, self.use_of(exchange)
            latencies = numbered_to_ten_digits(use.latencies_s)
            named = (op.axes, op.members, op.root) if isinstance(op, Collective) else ()
            this = _Seen(exchange.groups, use)
            alike = seen[type(op), named, exchange.digest, latencies.tobytes()]
            if not any(map(this.equals, alike)):
                alike.append(this)
                self._uses[_same(exchange)] = use
                yield exchange, Load(use.rows, use.links, use.seconds, latencies)

    def proportions_of(self, exchange: Exchange) -> tuple[object, ...] | None:
        """Return what is the same for collectives in the same proportions, as far as costs alone tell, else None."""
        op, groups = exchange.op, exchange.groups
        if not isinstance(op, Collective) or (op.sizes and not op.levelled):
            return None
        if op.levelled:
            return (op.kind, op.axes, "levelled", exchange.digest)
        num_bytes = collective_bytes(exchange.program, op)
        alike = self.network.proportions(op.kind, num_bytes, groups, self._algorithm(op), op.root)
        if alike is None:
            return None
        return (op.kind, op.axes, op.members, op.root, exchange.digest, *alike)

    def use_of(self, exchange: Exchange) -> LinkUse:
        """Return the loads on links of each group, message, copy or kernel on a host that an exchange stands for."""
        program, op, groups = exchange.program, exchange.op, exchange.groups
        if (known := self._uses.get(_same(exchange))) is not None:
            return known
        if isinstance(op, Copy | Compute):
            return self.hosts.links(program, op, groups[:, 0])
        if isinstance(op, Send):
            return self.network.messages(payload_bytes(program, op.reads), groups[:, 0], groups[:, 1])
        pairs, num_bytes = pair_bytes(program, op), collective_bytes(program, op)
        if pairs is not None and op.levelled:
            return self.levelled.use(groups, pairs)
        table = None if pairs is None else pairs.array
        return self.network.collectives(op.kind, num_bytes, groups, self._algorithm(op), op.root, table)


class _Device(Struct, frozen=True, eq=False):
    """The device of a rank: its type, its slowdown and resources, and the activities of its kernels by number."""

    spec: DeviceSpec
    slowdown: float
    compute: Resource
    memory: Resource
    activities: dict[int, Activity] = field(default_factory=dict)

    @classmethod
    def of(cls, rank: int, spec: DeviceSpec, slowdown: float) -> "_Device":
        """Return that of a rank."""
        return cls(spec, slowdown, ("compute", rank), ("memory", rank))

    def activity(self, latency_s: float, compute_s: float, memory_s: float) -> Activity:
        """Return a kernel that waits, computes, and moves bytes of the memory for so long."""
        both = (self.compute, compute_s), (self.memory, memory_s)
        is_both = compute_s > 0 and memory_s > 0
        return Activity(latency_s, both if is_both else tuple([demand for demand in both if demand[1] > 0]))


class _LinkNames(dict[int, Resource]):
    """Links as resources, by number: one object for each that is named, which is a small part of a large cluster's."""

    def __missing__(self, link: int) -> Resource:
        name = self[link] = ("link", link)
        return name


def _dtype(program: Program, op: Compute, work: Work) -> str:
    """Return the type of the numbers that a kernel computes with."""
    if work.dtype:
        return work.dtype
    buffers = (program.buffers[name] for name in (*op.reads, *op.writes))
    return next((buffer.dtype for buffer in buffers if "float" in buffer.dtype), "float32")


def _whole(num_ops: int, launch_s: float) -> tuple[float, ...]:
    """Return the host time per op of a task that is launched as one."""
    return (launch_s, *[0.0] * (num_ops - 1)) if num_ops else ()


def _signature(program: Program, op: Collective) -> tuple[object, ...]:
    return (op.kind, op.axes, op.members, collective_bytes(program, op), op.sizes, op.levelled, op.root)


def _same(exchange: Exchange) -> tuple[object, ...]:
    """Return what is the same for exchanges of the same groups that move equally many bytes the same way."""
    return (*signature(exchange.program, exchange.op), exchange.digest)


class _Seen(Struct, frozen=True, eq=False, dict=True):
    """Groups, and their use of links."""

    groups: NDArray[np.int64]
    use: LinkUse

    @cached_property
    def shares(self) -> NDArray[np.int64]:
        """Return the seconds on links, in units of the tenth digit of the longest."""
        seconds = self.use.seconds
        shares: NDArray[np.int64] = np.rint(seconds / seconds.max(initial=1e-300) * 1e10).astype(np.int64)
        return shares

    def equals(self, other: "_Seen") -> bool:
        """Return whether the same groups use the same links in the same proportions."""
        mine, theirs = ((seen.groups, seen.use.rows, seen.use.links, seen.shares) for seen in (self, other))
        return all(map(np.array_equal, mine, theirs))


def _yielding(op: Collective | Send, activity: Activity) -> Activity:
    """Return the activity of communication, which yields to all other if it is on a stream of the background."""
    return replace(activity, yields=True) if stream_of(op.stream).purpose is Purpose.BACKGROUND else activity
