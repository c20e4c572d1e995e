"""The load of collectives and messages on the links of a cluster.

Closed forms (``costmodels.collectives``) give the bytes of a protocol and the latency of a collective. An algorithm's
flows and the topology's routes give the links that carry the bytes. If every device of a node has a port into a switch,
the flows of rings, trees and direct exchanges are scaled: the busiest member and node then send the closed form's
bytes, because profiles are calibrated with the closed forms.

The time of consecutive phases follows from the topology: the sum over phases of the load on the busiest link of each.
One activity demands all its links at the same time. So the excess of that sum over the busiest link's total load counts
as latency.

Checked against a simulation step by step: tests/sim/cluster/test_one_activity.py states the differences and their
reasons.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache
from operator import itemgetter
from typing import Any, Final

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace
from numpy.typing import NDArray

from costmodels.collectives import catalogue, stepwise
from costmodels.collectives.cost import collective_cost, exclusive_seconds, point_to_point_cost
from costmodels.collectives.flows import Flows, Phased, collective_flows, phased_flows, step_flows, tree_flows
from costmodels.collectives.network import COLLNET, CollectiveCost, NetworkParameters
from costmodels.digest import blake2b
from sim.cluster import reduction_tree
from sim.cluster.link_use import LinkCost, LinkUse, hop_sums, link_use, side_by_side, summed
from sim.cluster.nominal import Library, inside_bytes_per_s, is_switched
from sim.cluster.rings import Ring, nvlink_rings
from sim.cluster.topology.fabrics import torus
from sim.cluster.topology.links import NONE, AnyInts, LinkKind, num_hops
from sim.cluster.topology.topology import Topology
from sim.sorting import distinct

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_FRACTIONS = ("intra_fraction", "inter_fraction")
INSIDE = (
    LinkKind.NVLINK,
    LinkKind.NVSWITCH,
    LinkKind.PORT,
    LinkKind.PCIE,
    LinkKind.HOST,
    LinkKind.SOCKET,
    LinkKind.MEMORY,
    LinkKind.DRIVES,
)


MOST_PATTERNS: Final = 16
MOST_HOPS: Final = 100_000
"""Of uneven exchanges among the same ranks the links are kept for so few patterns of who sends to whom, none longer."""


class Network(Struct, frozen=True, dict=True):
    """The links of a cluster, seen from ranks.

    ``devices[r]``: the device of rank r.
    ``libraries``: the rates of a library on each type of island of the topology. Between types the slowest rate
        decides. Closed forms count the topology's islands as nodes: nodes, or NVSwitch domains of several nodes.
    """

    topology: Topology
    devices: Ints
    libraries: tuple[Library, ...]

    @property
    def parameters(self) -> NetworkParameters:
        """Return the nominal parameters of the first type of island."""
        return self.libraries[0].parameters

    @cached_property
    def _is_switched(self) -> tuple[bool, ...]:
        return tuple(map(is_switched, self.topology.islands))

    @cached_property
    def _layout_of_device(self) -> Ints:
        layouts: Ints = self.topology.placement.layout[self.topology.device_island].astype(np.int64)
        return layouts

    @cached_property
    def _rings_of(self) -> "dict[tuple[int, tuple[int, ...]], _IslandRings]":
        """Cache of the rings over sets of devices, by type of island and devices."""
        return {}

    @cached_property
    def _known_rings(self) -> "list[_IslandRings]":
        """Cache of the distinct ring rates found so far."""
        return []

    @cached_property
    def _batches_of(self) -> "dict[tuple[bytes, int, int, bool], list[_Batch]]":
        """Cache of the batches of groups, by a digest of these."""
        return {}

    @cached_property
    def seconds_per_byte(self) -> Floats:
        """Return the seconds for which a byte of a collective occupies each link."""
        intra, inter = (self._of_links([getattr(lib, name) for lib in self.libraries]) for name in _FRACTIONS)
        attained: Floats = np.where(self._is_inside, intra, inter)
        attained *= self.topology.bandwidth_bytes_per_s
        return np.divide(1.0, attained, out=attained)  # in place, as arrays of all links fill memory

    @cached_property
    def _message_seconds_per_byte(self) -> Floats:
        """Return the seconds for which a byte of a single message occupies each link."""
        fraction = self._of_links([library.parameters.message_adapter_fraction for library in self.libraries])
        found: Floats = np.where(self._is_inside, 1.0, fraction)
        return np.divide(self.seconds_per_byte, found, out=found)

    @property
    def _is_inside(self) -> NDArray[np.bool_]:
        """Return which links are inside islands."""
        is_inside = np.zeros(len(LinkKind), np.bool_)
        is_inside[list(INSIDE)] = True
        return is_inside[self.topology.kind]

    def _of_links(self, values: Sequence[float]) -> Floats:
        """Return the value of each link: its island's value, and the smaller one between two islands.

        Links between switches have the largest value, since a slower island is limited by its own adapters.
        """
        if len(set(values)) == 1:
            return np.broadcast_to(np.float64(values[0]), self.topology.num_links)
        of_vertex = np.append(np.array(values)[self.topology.placement.layout], np.inf)[self.topology.island_of_vertex]
        least = np.minimum(of_vertex[self.topology.source], of_vertex[self.topology.target])
        return np.where(np.isinf(least), max(values), least)

    # --- messages ------------------------------------------------------------------------------------------

    def message(self, num_bytes: int, source: int, target: int) -> LinkCost:
        """Return the cost of one message between two ranks."""
        use = self.messages(num_bytes, np.array([source]), np.array([target]))
        return use.costs()[0]

    def messages(self, num_bytes: int, sources: Ints, targets: Ints) -> LinkUse:
        """Return the loads on links of a message from each source rank to its target rank."""
        sources, targets = self.devices[sources], self.devices[targets]
        hops = np.sort(self.topology.hops(sources, targets), axis=1)  # no route uses a link twice
        rows, links = np.repeat(np.arange(len(hops)), num_hops(hops)), hops[hops != NONE].astype(np.int64)
        seconds = self._message_seconds_per_byte[links]
        seconds *= num_bytes
        seconds += self.topology.message_s[links]
        without_hops = [replace(library.parameters, intra_latency_s=0.0) for library in self.libraries]
        fixed_s = np.array([point_to_point_cost(num_bytes, True, network).latency_s for network in without_hops])
        layouts = self._layout_of_device
        slower_s = np.maximum(fixed_s[layouts[sources]], fixed_s[layouts[targets]])
        latencies_s = slower_s + hop_sums(hops, self.topology.latency_s)
        carried = np.broadcast_to(np.float64(num_bytes), seconds.shape)
        return LinkUse(rows, links, seconds, carried, latencies_s).without_zeros()

    # --- collectives ---------------------------------------------------------------------------------------

    def collective(
        self,
        kind: str,
        num_bytes: int,
        group: Sequence[int],
        algorithm: str = "auto",
        root: int = 0,
        pair_bytes: Ints | None = None,
    ) -> LinkCost:
        """Return the cost of one collective; ``group`` are ranks, ``root`` a position in it.

        ``pair_bytes``: what each position sends to each in an uneven all_to_all.
        """
        return self.collectives(kind, num_bytes, np.array([group]), algorithm, root, pair_bytes).costs()[0]

    def collectives(
        self,
        kind: str,
        num_bytes: int,
        groups: Ints,
        algorithm: str = "auto",
        root: int = 0,
        pair_bytes: Ints | None = None,
    ) -> LinkUse:
        """Return the loads on links of the same collective in several groups. ``groups``: [groups, positions]."""
        uses, latencies_s = [], np.zeros(len(groups))
        for batch in self._known_batches(groups, root, keep_order=pair_bytes is not None):
            table = _in_order(pair_bytes, batch)
            cost = self._cost(kind, num_bytes, batch, algorithm, table)
            use = self._use(kind, num_bytes, cost, batch, table)
            uses.append(replace(use, rows=batch.rows[use.rows]))
            latencies_s[batch.rows] = cost.latency_s
            if table is not None or phased_flows(kind, cost.algorithm, batch.ranks_per_node) is not None:
                for row, devices in zip(batch.rows.tolist(), batch.devices, strict=True):
                    alone = replace(batch, devices=devices[None, :])
                    latencies_s[row] += self._in_turn_s(kind, num_bytes, cost, alone, table)
        return replace(side_by_side(uses), latencies_s=latencies_s)

    def proportions(
        self, kind: str, num_bytes: int, groups: Ints, algorithm: str = "auto", root: int = 0
    ) -> tuple[object, ...] | None:
        """Return what is the same for sizes whose loads on links differ by one factor, and which wait alike.

        ``groups`` are the same. None where it takes the loads to know.
        """
        batches = self._known_batches(groups, root, keep_order=False)
        costs = [self._cost(kind, num_bytes, batch, algorithm) for batch in batches]
        if any(phased_flows(kind, c.algorithm, b.ranks_per_node) for c, b in zip(costs, batches, strict=True)):
            return None
        moved = np.array([(c.port_bytes, c.nic_bytes, num_bytes * c.wire_overhead) for c in costs])
        latencies_s = np.array([cost.latency_s for cost in costs])
        scaled = (np.round(each / max(each.max(initial=0.0), 1e-300), 10) for each in (moved, latencies_s))
        return (*(cost.algorithm for cost in costs), *(each.tobytes() for each in scaled))

    def overheads(self, kind: str, num_bytes: int, groups: Ints, algorithm: str = "auto") -> tuple[float, ...]:
        """Return the bytes on links per byte of payload of a collective, for each placement that some groups have."""
        batches = self._known_batches(groups, 0, keep_order=False)
        return tuple(self._cost(kind, num_bytes, batch, algorithm).wire_overhead for batch in batches)

    def seat(self, group: Sequence[int]) -> "Seat":
        """Return how a group lies on its nodes, and the parameters of each type of island that it is on."""
        [batch] = self._known_batches(np.array([group]), 0, keep_order=True)
        return Seat(batch.order, batch.devices[0], batch.ranks_per_node, tuple(self._parameters_of(batch)))

    def ranks_per_node(self, group: Sequence[int]) -> tuple[int, ...]:
        """Return the number of ranks of a group on each of its nodes (or domains of nodes), in node order."""
        return self._known_batches(np.array([group]), 0, keep_order=False)[0].ranks_per_node

    def _known_batches(self, groups: Ints, root: int, *, keep_order: bool) -> "list[_Batch]":
        """Return the batches of groups: many collectives of one plan are over the same groups."""
        key = blake2b(groups.tobytes()).digest(), groups.shape[1], root, keep_order
        if key not in self._batches_of:
            self._batches_of[key] = list(self._batches(groups, root, keep_order=keep_order))
        return self._batches_of[key]

    def _batches(self, groups: Ints, root: int, *, keep_order: bool = False) -> "Iterator[_Batch]":
        """Yield batches of groups with the same placement: ranks per island and type, and latencies.

        The root's island first.
        """
        devices = self.devices[groups]
        nodes = self.topology.device_island[devices].astype(np.int64)
        if root:
            nodes = np.where(nodes == nodes[:, [root]], -1, nodes)
        first = (np.arange(groups.shape[1]) != root) if root else np.zeros(groups.shape[1])
        if root or (nodes[:, 1:] < nodes[:, :-1]).any():
            order = np.lexsort((np.broadcast_to(first, nodes.shape), nodes), axis=1)
            devices, nodes = (np.take_along_axis(values, order, axis=1) for values in (devices, nodes))
        else:
            order = np.broadcast_to(np.arange(groups.shape[1]), groups.shape)
        begins = np.diff(nodes, axis=1, prepend=-2) != 0
        intra_s, inter_s = self._latencies(devices, begins)
        island_rings, types = self._slowest_rings(devices, begins), self._types(devices)
        kept = order if keep_order else order[:, :0]
        for rows in _equal_rows(
            np.packbits(begins, axis=1), kept, intra_s, inter_s, island_rings, np.packbits(types, axis=1)
        ):
            example = int(rows[0])
            starts = np.append(np.flatnonzero(begins[example]), groups.shape[1])
            yield _Batch(
                rows=rows,
                devices=devices[rows],
                order=tuple(order[example].tolist()),
                ranks_per_node=tuple(np.diff(starts).tolist()),
                intra_latency_s=float(intra_s[example]),
                inter_latency_s=float(inter_s[example]),
                island_rings=self._known_rings[int(island_rings[example])],
                layouts=tuple(np.flatnonzero(types[example]).tolist()),
            )

    def _types(self, devices: Ints) -> NDArray[np.bool_]:
        """Return whether each group has members on each type of island, as [groups, types]."""
        found = np.zeros((len(devices), len(self.libraries)), dtype=np.bool_)
        found[np.arange(len(devices))[:, None], self._layout_of_device[devices]] = True
        return found

    def _slowest_rings(self, devices: Ints, begins: NDArray[np.bool_]) -> Ints:
        """Return, per group, the index in ``_known_rings`` of the slowest rings inside its islands.

        In a switch all sets of ports are equal; without a switch the rate depends on the members.
        """
        if all(self._is_switched):
            of_layout = np.array([library.parameters.intra_bandwidth_bytes_per_s for library in self.libraries])
            rates: Floats = of_layout[self._layout_of_device[devices]].min(axis=1)
            values, where = np.unique(rates, return_inverse=True)
            numbers = np.array([self._numbered(_IslandRings(rate)) for rate in values.tolist()], dtype=np.int64)
            return numbers[where.ravel()]
        found = np.zeros(len(devices), dtype=np.int64)
        for row in range(len(devices)):
            starts = np.flatnonzero(begins[row])
            ends = np.append(starts[1:], devices.shape[1])
            several = ends - starts > 1
            parts = zip(starts[several].tolist(), ends[several].tolist(), strict=True)
            each = [self._rings_over(devices[row, start:end]) for start, end in parts]
            slowest = min(each, key=lambda one: one.bandwidth_bytes_per_s, default=_IslandRings(0.0))
            found[row] = self._numbered(slowest if len(starts) == 1 else replace(slowest, rings=()))
        return found

    def _numbered(self, rings: "_IslandRings") -> int:
        if rings not in self._known_rings:
            self._known_rings.append(rings)
        return self._known_rings.index(rings)

    def _rings_over(self, devices: Ints) -> "_IslandRings":
        """Return the rings over some devices of an island, and their rate."""
        layout, island = int(self._layout_of_device[devices[0]]), int(self.topology.device_island[devices[0]])
        members = tuple((devices - self.topology.placement.first_device[island]).tolist())
        if (layout, members) not in self._rings_of:
            shape, fraction = self.topology.islands[layout], self.libraries[layout].intra_fraction
            rings, rate = nvlink_rings(shape, members)
            attained = len(rings) * rate or inside_bytes_per_s(shape, members)
            self._rings_of[layout, members] = _IslandRings(attained * fraction, rings)
        return self._rings_of[layout, members]

    def _latencies(self, devices: Ints, begins: NDArray[np.bool_]) -> tuple[Floats, Floats]:
        """Return, per group, the longest latency between ring neighbours inside nodes and between nodes; 0 for none."""
        following = np.roll(devices, -1, axis=1)
        crosses = np.roll(begins, -1, axis=1) & (begins.sum(axis=1, keepdims=True) > 1)
        hops = self.topology.hops(devices.ravel(), following.ravel())
        latencies_s = hop_sums(hops, self.topology.latency_s).reshape(devices.shape)
        inside = np.where(crosses, 0.0, latencies_s).max(axis=1)
        return inside, np.where(crosses, latencies_s, 0.0).max(axis=1)

    def _cost(
        self, kind: str, num_bytes: int, batch: "_Batch", algorithm: str, table: Ints | None = None
    ) -> CollectiveCost:
        """Return the cost for the slowest type of island that a group lies on."""
        costs = []
        for network in self._parameters_of(batch):
            if table is not None:
                cost = stepwise.uneven_all_to_all_cost(table, batch.ranks_per_node, network, algorithm)
            else:
                cost = collective_cost(kind, num_bytes, batch.ranks_per_node, network, algorithm)
            costs.append((exclusive_seconds(cost, batch.ranks_per_node, network), cost))
        return max(costs, key=itemgetter(0))[1]

    def _parameters_of(self, batch: "_Batch") -> list[NetworkParameters]:
        """Return each type's library parameters for a group's links.

        The rates between islands are the same for all types.
        """
        libraries = [self.libraries[layout].parameters for layout in batch.layouts]
        between = min(library.inter_bandwidth_bytes_per_s for library in libraries)
        adapters = min(library.nics_per_node for library in libraries)
        return [
            replace(
                library,
                intra_bandwidth_bytes_per_s=batch.island_rings.bandwidth_bytes_per_s
                or library.intra_bandwidth_bytes_per_s,
                intra_latency_s=batch.intra_latency_s or library.intra_latency_s,
                inter_bandwidth_bytes_per_s=between,
                inter_latency_s=batch.inter_latency_s or library.inter_latency_s,
                nics_per_node=adapters,
            )
            for library in libraries
        ]

    def _use(self, kind: str, num_bytes: int, cost: CollectiveCost, batch: "_Batch", table: Ints | None) -> LinkUse:
        """Return the loads on links of a batch of groups; row i is the batch's i-th group."""
        if table is not None:
            flows = _uneven_flows(table, cost.algorithm, batch).flows
            payload = flows.parts
            flow_bytes = payload * cost.wire_overhead
        elif cost.algorithm == "tree" and kind == "all_reduce" and isinstance(self.topology.fabric, torus.Torus):
            flows = tree_flows(batch.ranks_per_node)
            payload = flows.parts * num_bytes
            flow_bytes = payload * cost.wire_overhead
        elif (phased := phased_flows(kind, cost.algorithm, batch.ranks_per_node)) is not None:
            flows = phased.flows
            payload = flows.parts * num_bytes
            flow_bytes = payload * cost.wire_overhead
        elif all(self._is_switched[layout] for layout in batch.layouts):
            flows, inside, busiest = _scaled_flows(kind, cost.algorithm, batch.ranks_per_node)
            payload = flows.parts * busiest * num_bytes
            flow_bytes = flows.parts * np.where(inside, cost.port_bytes, cost.nic_bytes)
        else:
            flows = collective_flows(kind, cost.algorithm, batch.ranks_per_node, batch.island_rings.rings)
            payload = flows.parts * num_bytes
            flow_bytes = payload * cost.wire_overhead
        routed = self._routed(batch, flows, flow_bytes > 0, even=table is None)
        charged, carried = flow_bytes[routed.flows], payload[routed.flows]
        seconds = charged * self.seconds_per_byte[routed.links]
        if cost.algorithm not in COLLNET:
            return summed(routed.cells, routed.where, seconds, carried, self.topology.num_links)
        in_trees, tree_links, parts = reduction_tree.reduction_trees(
            self.topology, kind, batch.devices, batch.ranks_per_node
        )
        in_tree_s = parts * (num_bytes * cost.wire_overhead) * self.seconds_per_byte[tree_links]
        return link_use(
            np.concatenate([routed.cells[routed.where] // self.topology.num_links, in_trees]),
            np.concatenate([routed.links, tree_links]),
            np.concatenate([seconds, in_tree_s]),
            np.concatenate([carried, parts * num_bytes]),
            self.topology.num_links,
        )

    def _routed(self, batch: "_Batch", flows: Flows, used: NDArray[np.bool_], *, even: bool) -> "_Routed":
        """Return the links of the flows that are used, in every group; ``even``: of a collective without a table."""
        key = flows.ends, used.tobytes()
        if (known := batch.routed.get(key)) is not None:
            return known
        sources, targets = flows.sources[used], flows.targets[used]
        routes = self.topology.routes(batch.devices[:, sources].ravel(), batch.devices[:, targets].ravel())
        rows = np.repeat(np.repeat(np.arange(len(batch.devices)), len(sources)), routes.num_hops)
        of_flow = np.repeat(np.tile(np.flatnonzero(used), len(batch.devices)), routes.num_hops)
        cells, where = distinct(rows * self.topology.num_links + routes.links)
        found = _Routed(cells, where, routes.links, of_flow)
        if even or (len(batch.routed) < MOST_PATTERNS and len(routes.links) < MOST_HOPS):
            batch.routed[key] = found
        return found

    def _in_turn_s(self, kind: str, num_bytes: int, cost: CollectiveCost, batch: "_Batch", table: Ints | None) -> float:
        """Return the latency of consecutive phases in seconds, beyond that of the closed form.

        It is the sum over phases of the busiest link's load, less the busiest link's load in total.
        """
        if table is not None:
            phased: Phased | None = _uneven_flows(table, cost.algorithm, batch)
        else:
            phased = phased_flows(kind, cost.algorithm, batch.ranks_per_node)
        if phased is None:
            return 0.0
        if not phased.phases.any():  # one phase, whose busiest link is that of all
            return -cost.in_turn_s
        flows, payload = phased.flows, num_bytes if table is None else 1
        routes = self.topology.routes(batch.devices[0, flows.sources], batch.devices[0, flows.targets])
        flow_bytes = np.repeat(flows.parts * (payload * cost.wire_overhead), routes.num_hops)
        seconds = flow_bytes * self.seconds_per_byte[routes.links]
        phases = np.repeat(phased.phases, routes.num_hops)
        use = link_use(phases, routes.links, seconds, flow_bytes, self.topology.num_links)
        in_phases = np.zeros(int(phased.phases.max(initial=0)) + 1)
        np.maximum.at(in_phases, use.rows, use.seconds)
        in_all = np.bincount(use.links, use.seconds).max(initial=0.0)
        return float(in_phases.sum() - in_all) - cost.in_turn_s


class Seat(Struct, frozen=True, eq=False):
    """A group, node by node: ``order`` of its positions, their devices, how many each node has.

    ``parameters``: of the network, for each type of island that the group lies on.
    """

    order: tuple[int, ...]
    devices: Ints
    ranks_per_node: tuple[int, ...]
    parameters: tuple[NetworkParameters, ...]


class _IslandRings(Struct, frozen=True):
    """The rate of rings inside islands; for a group within one node without a switch, also its rings by position."""

    bandwidth_bytes_per_s: float
    rings: tuple[Ring, ...] = ()


class _Batch(Struct, frozen=True, kw_only=True, eq=False):
    """Groups with the same placement: ``devices[i]`` are those of group ``rows[i]``, node by node.

    ``order``: positions.
    """

    rows: Ints
    devices: Ints
    order: tuple[int, ...]
    ranks_per_node: tuple[int, ...]
    intra_latency_s: float
    inter_latency_s: float
    island_rings: _IslandRings
    layouts: tuple[int, ...]
    routed: "dict[tuple[bytes, bytes], _Routed]" = field(default_factory=dict)
    """Cache of the links of flows, by who sends to whom, and which of these flows are used."""


class _Routed(Struct, frozen=True, eq=False):
    """In a group of the batch, flow ``flows[i]`` uses link ``links[i]``: cell ``cells[where[i]]``.

    A cell is group x number of links + link; they are sorted.
    """

    cells: Ints
    where: Ints
    links: AnyInts
    flows: Ints


def _equal_rows(*columns: NDArray[Any]) -> list[Ints]:
    """Return the indices of equal rows, group by group; rows are equal if all columns (or blocks of columns) are."""
    if len(columns[0]) == 1:
        return [np.zeros(1, dtype=np.int64)]
    parts = [np.ascontiguousarray(column).reshape(len(column), -1).view(np.uint8) for column in columns if column.size]
    cells = np.ascontiguousarray(np.concatenate(parts, axis=1))
    if len(cells) and (cells == cells[0]).all():
        return [np.arange(len(cells))]
    rows: dict[bytes, list[int]] = {}
    for row, cell in enumerate(cells):
        rows.setdefault(cell.tobytes(), []).append(row)
    return [np.array(found, dtype=np.int64) for found in rows.values()]


def _in_order(pair_bytes: Ints | None, batch: _Batch) -> Ints | None:
    """Return the bytes between the members of a batch's groups, in its order; None where there is no such table."""
    return None if pair_bytes is None else pair_bytes[np.ix_(batch.order, batch.order)]


def _uneven_flows(table: Ints, algorithm: str, batch: _Batch) -> Phased:
    """Return the flows in bytes of an all_to_all with these chunk sizes between members."""
    sizes = table.astype(np.float64)
    if algorithm not in {"none", "direct", "pairwise"}:
        steps = catalogue.collective_steps("all_to_all", algorithm, batch.ranks_per_node)
        return step_flows(steps, sizes.ravel().tolist())
    np.fill_diagonal(sizes, 0.0)
    sources, targets = np.nonzero(sizes)
    rounds = (targets - sources) % len(sizes) if algorithm == "pairwise" else np.zeros(len(sources), dtype=np.int64)
    return Phased(Flows(sources, targets, sizes[sources, targets]), rounds)


@lru_cache(maxsize=4096)
def _scaled_flows(
    kind: str, algorithm: str, ranks_per_node: tuple[int, ...]
) -> tuple[Flows, NDArray[np.bool_], Floats]:
    """Return the flows of a collective as fractions of the busiest member's, or node's, traffic.

    Also returns which flows stay inside a node, and by flow the traffic of that busiest member or node as a fraction of
    the payload.
    """
    flows = collective_flows(kind, algorithm, ranks_per_node)
    node = np.repeat(np.arange(len(ranks_per_node)), ranks_per_node)
    sources, targets = node[flows.sources], node[flows.targets]
    inside = sources == targets
    busiest_rank = _busiest(flows.sources[inside], flows.targets[inside], flows.parts[inside])
    busiest_node = _busiest(sources[~inside], targets[~inside], flows.parts[~inside])
    busiest = np.where(inside, busiest_rank, busiest_node)
    return Flows(flows.sources, flows.targets, flows.parts / busiest), inside, busiest


def _busiest(sources: Ints, targets: Ints, parts: Floats) -> float:
    if not len(parts):
        return 1.0
    return float(max(np.bincount(sources, parts).max(), np.bincount(targets, parts).max()))
