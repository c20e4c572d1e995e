"""The compiled plan: flat lists of nodes with counts and successors, as the event loop runs them."""

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum
from functools import cached_property
from itertools import chain, count, pairwise, repeat
from typing import Any, Final

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace
from numpy.typing import NDArray

from sim.engine.compiling.shape import NO_PATH
from sim.engine.prices.activity import Activity


class NodeKind(IntEnum):
    """What happens when all that a node waits for is done."""

    FIXED = 0
    """It lasts its stated duration, whatever else runs: an op, or a block with one entry and one exit."""
    SHARED = 1
    """A latency of ``duration_s``, then the demands of the node's activity on shared resources."""
    JOIN = 2
    """Nothing: it is done at once (a receive whose message is there)."""
    MEMBER = 3
    """One rank's part of a collective: waits for the other members."""
    BLOCK = 4
    """A block whose exits are done at times that follow from when its entries were released."""
    ENTRY = 5
    """One of several entries of a block."""
    EXIT = 6
    """An op of a block that others wait for."""
    LEFT_OUT = 7
    """Periods that the run does not pass through (see ``LeftOutPeriods``)."""


_FIXED, _SHARED = NodeKind.FIXED, NodeKind.SHARED
NOTHING: Final = Activity()
"""What a node demands that uses no shared resources."""


class Pattern(Struct, frozen=True, eq=False):
    """How a coalesced call runs: ``offsets[k][j]`` is the start of op j after the release of entry k.

    ``main_exit`` is the op at whose end the block's own node is done, ``span_s`` when that is after its only
    entry (0 where there are several). ``predecessors``: what each op waits for inside the call.
    """

    entries: tuple[int, ...]
    offsets: list[list[float]]
    durations_s: list[float]
    main_exit: int
    span_s: float
    predecessors: tuple[tuple[int, ...], ...] = ()

    def end_s(self, op: int, released_s: Sequence[float]) -> float:
        """Return when an op ends, from when the entries were released."""
        return max(t + row[op] for t, row in zip(released_s, self.offsets, strict=True)) + self.durations_s[op]


SENT = Pattern((0,), [[0.0]], [0.0], 0, 0.0)
"""The send of a message that is one node with its receive: over when the node starts."""


class Block(Struct):
    """A coalesced call with several entries, or with exits besides the main one.

    ``ranks``: where it is a call of several ranks, whose ops the pattern has one after the other, which (see teams).
    """

    pattern: Pattern
    released_s: list[float]
    pending: int
    exits: dict[int, int] = field(default_factory=dict)
    ranks: tuple[int, ...] = ()


class Joint(Struct):
    """A collective over several simulated ranks: begins when all members have arrived."""

    members: list[int]
    pending: int
    activity: Activity
    shared: bool


class OpNodes(Struct, frozen=True):
    """The nodes of a task's ops, one each, for every call: ``successors`` and ``waits`` are those inside the call.

    ``shared``: the activities of the ops on shared resources, ``NOTHING`` for others.
    """

    kinds: list[int]
    waits: list[int]
    successors: list[list[int]]
    durations_s: list[float]
    shared: list[Activity]

    @classmethod
    def of(cls, predecessors: Sequence[Sequence[int]], ops: Sequence[tuple[NodeKind, float, Activity]]) -> "OpNodes":
        """Return those of ops of some kinds, durations and activities; ``predecessors``: what each waits for."""
        successors: list[list[int]] = [[] for _ in ops]
        for op, before in enumerate(predecessors):
            for earlier in before:
                successors[earlier].append(op)
        shared = [activity if kind is NodeKind.SHARED else NOTHING for kind, _, activity in ops]
        waits = [len(before) for before in predecessors]
        return cls([kind for kind, _, _ in ops], waits, successors, [lasting_s for _, lasting_s, _ in ops], shared)


class LeftOutPeriods(Struct, frozen=True):
    """Nodes that stand for ``times`` periods each; by node two whose ends are such a period apart, the later first."""

    times: int = 0
    apart: Mapping[int, tuple[int, int]] = {}


Unit = tuple[int, int, int, Pattern | None]
"""One call of a simulated rank: (rank, call, node, pattern). Without a pattern its ops are nodes from ``node`` on."""


class Units(Struct):
    """The calls of simulated ranks, one rank's after the other's: they read as ``Unit`` and are held as columns.

    ``begins``: where the calls of each of the ``ranks`` begin.
    """

    nodes: list[int] = field(default_factory=list)
    patterns: list[Pattern | None] = field(default_factory=list)
    ranks: list[int] = field(default_factory=list)
    begins: list[int] = field(default_factory=list)

    def add(self, rank: int, nodes: Sequence[int], patterns: Sequence[Pattern | None]) -> None:
        """Add all calls of a rank, in order."""
        self.ranks.append(rank)
        self.begins.append(len(self.nodes))
        self.nodes += nodes
        self.patterns += patterns

    def __len__(self) -> int:
        return len(self.nodes)

    def __getitem__(self, place: int) -> Unit:
        """Return the call at a place, counted from 0."""
        owner = bisect_right(self.begins, place) - 1
        return self.ranks[owner], place - self.begins[owner], self.nodes[place], self.patterns[place]

    def __iter__(self) -> Iterator[Unit]:
        bounds = pairwise([*self.begins, len(self.nodes)])
        for rank, (begin, end) in zip(self.ranks, bounds, strict=True):
            yield from zip(repeat(rank), count(), self.nodes[begin:end], self.patterns[begin:end], strict=False)


class Messages(Struct):
    """Messages: the nodes of their sends, their journeys and their receives.

    Where a wire stands for a message, its journey is its receive, and may be its send.
    """

    sends: list[int] = field(default_factory=list)
    journeys: list[int] = field(default_factory=list)
    receives: list[int] = field(default_factory=list)

    def add(self, sends: Sequence[int], journeys: Sequence[int], receives: Sequence[int]) -> None:
        """Add some messages."""
        self.sends += sends
        self.journeys += journeys
        self.receives += receives

    def __len__(self) -> int:
        return len(self.sends)


class UnitColumns(Struct, frozen=True, eq=False):
    """The nodes of calls, and the identities of their patterns; ``patterns``: by identity."""

    nodes: NDArray[np.int64]
    numbers: NDArray[np.int64]
    patterns: Mapping[int, Pattern | None]

    @classmethod
    def of(cls, units: Units) -> "UnitColumns":
        """Return those of some calls."""
        nodes = np.fromiter(units.nodes, np.int64, len(units))
        numbers = np.fromiter(map(id, units.patterns), np.int64, len(units))
        return cls(nodes, numbers, {id(pattern): pattern for pattern in set(units.patterns)})


class Graph(Struct, dict=True):
    """Everything the event loop needs, indexed by node. Its columns are asked for once it is compiled."""

    kinds: list[int] = field(default_factory=list)
    waits: list[int] = field(default_factory=list)
    successors: list[list[int]] = field(default_factory=list)
    durations_s: list[float] = field(default_factory=list)
    shared: list[Activity] = field(default_factory=list)
    """The activities of nodes on shared resources, ``NOTHING`` for others."""
    blocks: dict[int, Block] = field(default_factory=dict)
    entries: dict[int, tuple[int, int]] = field(default_factory=dict)
    joints: list[Joint] = field(default_factory=list)
    joint_of: dict[int, int] = field(default_factory=dict)
    units: Units = field(default_factory=Units)
    messages: Messages = field(default_factory=Messages)
    early_exits: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    """(block, entry, op) of nodes that lead from one entry to an op that may be done before all entries let go."""
    team_calls: list[tuple[tuple[int, ...], int, tuple[int, ...]]] = field(default_factory=list)
    """(ranks, call, ops that are one collective of all of them) of calls that are one block of several ranks."""
    left_out: LeftOutPeriods = LeftOutPeriods()

    @property
    def kinds_of_nodes(self) -> NDArray[np.uint8]:
        """Return the kinds as numbers."""
        return np.frombuffer(bytes(self.kinds), dtype=np.uint8)

    def with_nodes(self, **changes: Any) -> "Graph":
        """Return a graph with other nodes for the same calls and messages; it shares what is known of these."""
        found = replace(self, **changes)
        found.__dict__.update(unit_columns=self.unit_columns, message_columns=self.message_columns)
        return found

    @cached_property
    def unit_columns(self) -> UnitColumns:
        """Return the calls as columns."""
        return UnitColumns.of(self.units)

    @cached_property
    def message_columns(self) -> NDArray[np.int64]:
        """Return the sends, the journeys and the receives of messages, a row each."""
        messages = self.messages
        nodes = chain(messages.sends, messages.journeys, messages.receives)
        return np.fromiter(nodes, np.int64, 3 * len(messages)).reshape(3, -1)

    def add(self, kind: NodeKind, duration_s: float = 0.0, shared: Activity = NOTHING) -> int:
        """Add a node that waits for nothing yet; return its index. ``shared``: its activity on shared resources."""
        kinds = self.kinds
        node = len(kinds)
        kinds.append(kind)
        self.waits.append(0)
        self.successors.append([])
        self.durations_s.append(duration_s)
        self.shared.append(shared)
        return node

    def add_ops(self, nodes: OpNodes) -> int:
        """Add the nodes of a call's ops, with what is between them; return the index of the first."""
        base = len(self.kinds)
        self.kinds += nodes.kinds
        self.waits += nodes.waits
        self.successors += [
            [base + after[0]] if len(after) == 1 else [base + op for op in after] for after in nodes.successors
        ]  # one is by far the most frequent number
        self.durations_s += nodes.durations_s
        self.shared += nodes.shared
        return base

    def add_messages(self, sends: Sequence[tuple[int, float]], receives: Sequence[int]) -> None:
        """Add messages on their way: each receive waits for a node that begins at a send's end.

        ``sends``: nodes, and how long after each its message arrives.
        """
        journeys = range(len(self.kinds), len(self.kinds) + len(sends))
        self.kinds += [NodeKind.FIXED] * len(sends)
        self.waits += [1] * len(sends)
        self.successors += [[receive] for receive in receives]
        self.durations_s += [latency_s for _, latency_s in sends]
        self.shared += [NOTHING] * len(sends)
        for (send, _), journey, receive in zip(sends, journeys, receives, strict=True):
            self.successors[send].append(journey)
            self.waits[receive] += 1
        self.messages.add([send for send, _ in sends], journeys, receives)

    def link(self, before: int, after: int) -> None:
        """Make one node wait for another."""
        self.successors[before].append(after)
        self.waits[after] += 1

    def link_early_exit(self, node: int, block: int, pattern: Pattern, op: int, entries: Sequence[int]) -> None:
        """Make a node wait for an op of a block that some of its ``entries`` (nodes by slot) do not lead to.

        The op is done when those that lead to it say so, which may be before the block begins.
        """
        for slot, (entry, row) in enumerate(zip(entries, pattern.offsets, strict=True)):
            if row[op] != NO_PATH:
                path = self.add(NodeKind.FIXED, row[op] + pattern.durations_s[op])
                self.early_exits[path] = (block, slot, op)
                self.link(entry, path)
                self.link(path, node)


class Wire(Struct):
    """A channel whose messages come in order: their receives are their journeys, one node each.

    ``at_once``: its sends occupy nothing and are the start of that node; else they are nodes of their own, and what
    they lead to is linked once all ranks are compiled.
    """

    graph: Graph
    latency_s: float
    at_once: bool
    receives: list[int] = field(default_factory=list)
    sends: list[int] = field(default_factory=list)
    num_received: int = 0

    def send(self, ops: Sequence[tuple[object, NodeKind, float, Activity]]) -> list[int]:
        """Add sends that each wait for the one before; return their nodes. ``ops``: what the node of each needs."""
        if not ops:
            return []
        graph, first = self.graph, len(self.graph.kinds)
        _, kinds, durations_s, activities = zip(*ops, strict=True)
        self.sends = [*range(first, first + len(ops))]
        graph.kinds += kinds
        graph.waits += [0, *[1] * (len(ops) - 1)]
        graph.successors += [[node] for node in self.sends[1:]] + [[]]
        graph.durations_s += durations_s
        demanded = zip(kinds, activities, strict=True)
        graph.shared += [activity if kind is _SHARED else NOTHING for kind, activity in demanded]
        return self.sends

    def send_at_once(self, count: int) -> list[int]:
        """Return the nodes with whose starts so many messages are sent."""
        self._add(count - len(self.receives))
        self.sends = self.receives[:count]
        return self.sends

    def receive(self, count: int) -> list[int]:
        """Return the nodes of so many messages that are received."""
        self.num_received = count
        self._add(count - len(self.receives))
        return self.receives[:count]

    def link(self) -> None:
        """Let all messages travel once they are sent, those that nobody receives too."""
        if not self.at_once:
            self._add(len(self.sends) - len(self.receives))
            successors, waits = self.graph.successors, self.graph.waits
            for send, receive in zip(self.sends, self.receives, strict=True):
                successors[send].append(receive)
                waits[receive] += 1
        self.graph.messages.add(self.sends, self.receives, self.receives)

    def _add(self, count: int) -> None:
        """Add so many journeys."""
        if count > 0:
            graph, first = self.graph, len(self.graph.kinds)
            self.receives += range(first, first + count)
            graph.kinds += [_FIXED] * count
            graph.waits += [0] * count
            graph.successors += [[] for _ in range(count)]
            graph.durations_s += [self.latency_s] * count
            graph.shared += [NOTHING] * count


class PricedTask(Struct, frozen=True):
    """One task on one simulated rank: the demands of each op.

    ``launches_s``: host time of launching each op, none: it takes none; what ops wait for it is in their latencies.
    Where it takes none, ops that are alike (``Program.distinct_ops``) have one activity.
    """

    activities: tuple[Activity, ...]
    launches_s: tuple[float, ...] = ()

    def keys(self, places: Sequence[int]) -> Sequence[int | tuple[int, int]]:
        """Return per op what is equal for ops that are alike and have one activity.

        ``places``: of the ops among the distinct ones of their program.
        """
        return list(zip(places, map(id, self.activities), strict=True)) if self.launches_s else places

    @property
    def durations_s(self) -> list[float]:
        """Return how long each op lasts when alone."""
        return [activity.duration_s for activity in self.activities]

    @property
    def singles_s(self) -> list[float]:
        """Return how long each op lasts when alone, without the others that it may stand for."""
        return [activity.single_duration_s for activity in self.activities]
