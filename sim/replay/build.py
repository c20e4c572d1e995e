"""The engine's graph from the dependencies of a profile."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from sim.engine.compiling.graph import Graph, Joint, NodeKind
from sim.engine.prices.activity import Activity
from sim.replay.changes import Changes
from sim.replay.device import DeviceOrder
from sim.replay.host import Host, HostCall
from sim.replay.transfers import NetworkSplit, Transfer
from traces.kineto.breakdown import CLASSES, COMPUTE, MEMORY
from traces.kineto.rank import DeviceRows
from traces.timeline import Floats

NO_NODE: Final = -1
Nodes = NDArray[np.int64]


class MeasuredRank(Struct, frozen=True):
    """A measured rank, in seconds on the common clock from 0; ``released_s``: when each row released its dependents."""

    number: int
    rows: DeviceRows
    host: Host
    order: DeviceOrder
    released_s: Floats


class RankNodes(Struct, frozen=True):
    """By row: the node of its end, and the node of its start (NO_NODE: it starts ``duration_s`` before its end)."""

    end: Nodes
    arrival: Nodes
    duration_s: Floats


@dataclass(slots=True)
class ReplayGraph:
    """Builder of the graph of all ranks, changes included."""

    split: NetworkSplit
    changes: Changes
    graph: Graph = field(default_factory=Graph)

    def add_rank(self, rank: MeasuredRank, shared: frozenset[int]) -> RankNodes:
        """Add a rank's calls and rows; ``shared`` rows are parts of transfers and wait for ``join``."""
        changes = self.changes.of_rank(rank.number)
        nodes = self._add_rows(rank, shared, changes)
        calls = self._add_calls(rank, nodes.end.tolist(), changes.host)
        first = np.where(nodes.arrival >= 0, nodes.arrival, nodes.end).tolist()
        ends = nodes.end.tolist()
        for row, before in enumerate(rank.order.before):
            for other in before:
                self.graph.link(ends[other], first[row])
            if rank.host.launch[row] >= 0:
                launched = calls[rank.host.launch[row]]
                if rank.order.launching_s[row]:
                    launched = self._after(launched, rank.order.launching_s[row])
                self.graph.link(launched, first[row])
        return nodes

    def join(self, transfers: Sequence[Transfer], ranks: Sequence[RankNodes], names: Sequence[str]) -> None:
        """Join the rows of every transfer into one; ``names`` are the names of their kernels."""
        for transfer, name in zip(transfers, names, strict=True):
            duration_s = self.split.changed_s(transfer.kind, transfer.duration_s, self.changes)
            members = [int(ranks[rank].end[row]) for rank, row in transfer.members]
            for node in members:
                self.graph.joint_of[node] = len(self.graph.joints)
            activity = Activity(latency_s=duration_s / self.changes.of_kernel(name))
            self.graph.joints.append(Joint(members, len(members), activity, shared=False))

    # --- the host ------------------------------------------------------------------------------------------

    def _add_calls(self, rank: MeasuredRank, row_nodes: list[int], speed: float) -> list[int]:
        """Add the calls; return the nodes after which they begin."""
        calls, begins, returns = rank.host.calls, list[int](), dict[int, int]()
        for position, call in enumerate(calls):
            gap_s, after = call.start_s, NO_NODE
            if call.before >= 0:
                before, waited = calls[call.before], call.returned and call.before in returns
                after = returns[call.before] if waited else begins[call.before]
                gap_s = (call.start_s - (before.end_s if waited else before.start_s)) / speed
            node = self.graph.add(NodeKind.FIXED, max(0.0, gap_s))
            if after != NO_NODE:
                self.graph.link(after, node)
            begins.append(node)
            if call.rows:
                held_s = max(float(rank.released_s[row]) for row in call.rows)
                returns[position] = self._add_return(node, call, held_s, speed)
                for row in call.rows:
                    self.graph.link(row_nodes[row], returns[position])
        return begins

    def _add_return(self, begin: int, call: HostCall, held_s: float, speed: float) -> int:
        """Add the return of a call that waits for rows, which end at ``held_s``; return its node.

        A call that did not have to wait keeps its own duration. A call that waited returns as long after the rows as it
        did.
        """
        if held_s > call.start_s:
            return self._after(begin, max(0.0, call.end_s - held_s) / speed)
        own_s = (call.end_s - call.start_s) / speed
        return self._after(self._after(begin, own_s) if own_s else begin, 0.0)

    def _after(self, before: int, duration_s: float) -> int:
        """Add a node of some duration after another node; return it."""
        node = self.graph.add(NodeKind.FIXED, duration_s)
        self.graph.link(before, node)
        return node

    # --- the device ----------------------------------------------------------------------------------------

    def _add_rows(self, rank: MeasuredRank, shared: frozenset[int], changes: Changes) -> RankNodes:
        """Add the rows' nodes: one for delay and run, or two for a row of a transfer, which follows the delay."""
        size = len(rank.rows)
        duration_s = self._duration_s(rank.rows, changes)
        end, arrival = np.empty(size, dtype=np.int64), np.full(size, NO_NODE, dtype=np.int64)
        for row, (delay_s, own_s) in enumerate(zip(rank.order.delay_s, duration_s.tolist(), strict=True)):
            if row in shared:
                arrival[row] = self.graph.add(NodeKind.FIXED, max(0.0, delay_s))
                end[row] = self.graph.add(NodeKind.MEMBER)
                self.graph.link(int(arrival[row]), int(end[row]))
            else:
                end[row] = self.graph.add(NodeKind.FIXED, max(0.0, delay_s + own_s))
        return RankNodes(end, arrival, duration_s)

    def _duration_s(self, rows: DeviceRows, changes: Changes) -> Floats:
        """Return the duration of each row in seconds, without waits."""
        duration_s = rows.end_s - rows.start_s
        speeds = np.array([changes.of_kernel(name) for name in rows.name.values] or [1.0])[rows.name.codes]
        by_class = {COMPUTE: changes.compute, MEMORY: changes.copies}
        kinds = np.array([by_class.get(CLASSES.get(kind, ""), 1.0) for kind in rows.kind.values] or [1.0])
        if changes.touches_network:
            for row, facts in rows.facts.items():
                duration_s[row] = self.split.changed_s(facts.kind, float(duration_s[row]), changes)
        return np.asarray(duration_s / speeds / kinds[rows.kind.codes])
