"""The critical path of a finished run: the walk from its last node back to the begin."""

from bisect import bisect_right
from collections.abc import Iterator
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from sim.engine.compiling.graph import SENT, NodeKind, Pattern
from sim.engine.compiling.shape import NO_PATH
from sim.engine.findings.path_parts import LeftOut, PathPart, Step, Way
from sim.engine.running.period import EQUAL, Times
from sim.engine.running.run import SimulatedRun
from sim.plan.words.calls import task_at
from sim.plan.words.op import Op
from sim.sorting import first_largest

_LASTING: Final = frozenset({NodeKind.FIXED, NodeKind.SHARED, NodeKind.MEMBER})
"""Kinds of nodes that are ops, messages on their way, or ways through calls: most of a path."""

_OPS: Final = _LASTING | {NodeKind.JOIN}
"""Kinds of nodes that a call's ops may be: receives take no time."""

FEWEST: Final = 12
"""Ops in a row that are kept as a way: arrays of fewer take longer than as many steps."""


_Parts = list[PathPart | LeftOut]


class _Call(Struct, frozen=True, eq=False):
    """A call of a simulated rank: its number, its node or that of its first op, and its task's ops (see ``Unit``).

    ``end``: the node after its last.
    """

    rank: int
    number: int
    base: int
    end: int
    pattern: Pattern | None
    ops: tuple[Op, ...]


class Walk:
    """Walks a compiled run backwards, node by node."""

    def __init__(self, run: SimulatedRun) -> None:
        self.run, graph = run, run.graph
        self.slack_s = EQUAL * float(run.loop.times_s[1].max(initial=0.0))
        self.waited_for = _waited_for(run, self.slack_s)
        places = np.flatnonzero(run.units.numbers != id(SENT))
        bases = run.units.nodes[places]
        by_base = np.argsort(bases, kind="stable")
        self.bases, self.places = bases[by_base].data, places[by_base].data
        self.exits = {node: (b, op) for b, block in graph.blocks.items() for op, node in block.exits.items()}
        self.entry_nodes = {place: node for node, place in graph.entries.items()}
        self.ways: dict[tuple[Pattern, int, int], tuple[NDArray[np.int64], Times]] = {}
        """Ops of a pattern from an entry (its slot) to an op, the last first, and their starts after the entry.

        They are found once for all calls.
        """
        self.calls: dict[int, _Call] = {}
        """The calls met so far, by their place in ``bases``: mostly many steps of the path are of one."""

    def back(self) -> Iterator[PathPart | LeftOut]:
        """Yield the parts of the path, the last first: each ends where the one before it in this order begins.

        Steps that the clock does not resolve are left out.
        """
        begin_s, end_s, node = self._bounds()
        paced = self.run.paced
        if paced is not None and self.run.num_steps == 1 and paced.pace_s[node]:
            yield LeftOut(self.run.loop.ends_s[node], end_s, float(paced.pace_s[node]))
            end_s = self.run.loop.ends_s[node]
        for found in self._parts(node):
            if end_s <= begin_s:
                break
            part = found
            if isinstance(part, Way):
                starts_s = np.minimum.accumulate(np.clip(part.starts_s, begin_s, end_s))
                start_s = float(starts_s[-1])
                part = replace(part, starts_s=starts_s - begin_s, end_s=end_s - begin_s)
            else:
                start_s = max(part.start_s, begin_s)
                if begin_s or part.start_s != start_s or part.end_s != end_s:
                    part = part.within(start_s - begin_s, end_s - begin_s)
            if start_s < end_s:
                yield part
                end_s = start_s

    def _bounds(self) -> tuple[float, float, int]:
        """Return when the path begins and when it ends, and the node with which it ends (-1: there is none)."""
        loop, graph = self.run.loop, self.run.graph
        if self.run.paced is not None and self.run.num_steps == 1:
            return 0.0, self.run.makespan_s, self._last(self.run.paced.of_step_s(loop.times_s[1]))
        if self.run.period_nodes is None:
            return 0.0, float(loop.times_s[1].max(initial=0.0)), self._last(loop.times_s[1])
        before, node = self.run.period_nodes
        released = graph.blocks[node].released_s if node in graph.blocks else [0.0]
        entry = first_largest(released, self.slack_s)
        waited_for = self.waited_for[self.entry_nodes.get((node, entry), node)]
        return loop.starts_s[before], loop.starts_s[node], waited_for

    def _last(self, ends_s: Times) -> int:
        """Return the node that ends last; -1: there is none."""
        return int(np.argmax(ends_s >= ends_s.max() - self.slack_s)) if len(ends_s) else -1

    def _parts(self, node: int) -> Iterator[PathPart | LeftOut]:
        """Yield what leads to the end of a node, the last part first."""
        while node >= 0:
            parts, node = self._through(node)
            yield from parts

    def _through(self, node: int) -> tuple[_Parts, int]:
        """Return the parts that a node stands for, the last first, and the node that they waited for (-1: none)."""
        graph, loop, paced = self.run.graph, self.run.loop, self.run.paced
        if paced is not None and node in paced.added:
            period_s = (loop.ends_s[node] - loop.starts_s[node]) / paced.times
            return [LeftOut(loop.starts_s[node], loop.ends_s[node], period_s)], self.waited_for[node]
        kind = graph.kinds[node]
        if kind in _LASTING:
            return self._through_single(node)
        if kind == NodeKind.EXIT:
            block, op = self.exits[node]
            return self._through_block(block, op)
        if kind == NodeKind.BLOCK:
            return self._through_block(node, graph.blocks[node].pattern.main_exit)
        return [], self.waited_for[node]

    def _through_single(self, node: int) -> tuple[_Parts, int]:
        """Return the same of a node that lasts: an op, a message on its way, or a way through a call."""
        graph, begin_s = self.run.graph, self.run.loop.starts_s[node]
        if node in graph.early_exits:
            block, entry, op = graph.early_exits[node]
            return self._from_entry(block, entry, op, begin_s)
        call = self._call(node)
        if call is None:
            return [Step(-1, -1, None, begin_s, self.run.loop.ends_s[node])], self.waited_for[node]
        if call.pattern is not None and call.base == node:
            way = self._inside((call.rank,), call, call.pattern, 0, call.pattern.main_exit, begin_s)
            return [way], self.waited_for[node]
        return self._row(node, call)

    def _row(self, node: int, call: "_Call") -> tuple[_Parts, int]:
        """Return the same of an op that is a node of its own, with the ops before it in its call that led to it.

        They are one way if there are many. Where ranks have paces of their own, periods of the path are found op by op.
        """
        kinds, base, end, row = self.run.graph.kinds, call.base, call.end, list[int]()
        goes_on = True
        while goes_on:
            row.append(node)
            node = self._last_to_come(node) if kinds[node] == NodeKind.MEMBER else self.waited_for[node]
            goes_on = base <= node < end and kinds[node] in _OPS and self.run.paced is None
        if len(row) >= FEWEST:
            nodes = np.array(row, dtype=np.int64)
            starts_s = self.run.loop.times_s[0][nodes]
            return [Way((call.rank,), call.number, call.ops, nodes - base, starts_s, float(starts_s[0]))], node
        loop, ops = self.run.loop, call.ops
        return [Step(call.rank, call.number, ops[at - base], loop.starts_s[at], loop.ends_s[at]) for at in row], node

    def _through_block(self, node: int, op: int) -> tuple[_Parts, int]:
        """Return the way through a block up to the end of an op, and the node that let the deciding entry go."""
        block = self.run.graph.blocks[node]
        pattern, released = block.pattern, block.released_s
        ends_s = [start_s + row[op] for start_s, row in zip(released, pattern.offsets, strict=True)]
        entry = first_largest(ends_s, self.slack_s)
        return self._from_entry(node, entry, op, released[entry])

    def _from_entry(self, node: int, entry: int, op: int, released_s: float) -> tuple[_Parts, int]:
        """Return the way through a block from an entry to the end of an op, and the node that let the entry go."""
        block = self.run.graph.blocks[node]
        call = self._call(node)
        assert call is not None
        way = self._inside(block.ranks or (call.rank,), call, block.pattern, entry, op, released_s)
        return [way], self.waited_for[self.entry_nodes.get((node, entry), node)]

    def _inside(
        self, ranks: tuple[int, ...], call: "_Call", pattern: Pattern, entry: int, op: int, begin_s: float
    ) -> Way:
        """Return the way of a coalesced call from an entry to the end of an op; its end is not looked at.

        Of several ``ranks``, the pattern has the ops one rank after the other.
        """
        key = (pattern, entry, op)
        if key not in self.ways:
            places = np.array(_way(pattern, entry, op, len(call.ops)), dtype=np.int64)
            self.ways[key] = places, np.array(pattern.offsets[entry])[places]
        places, offsets_s = self.ways[key]
        return Way(ranks, call.number, call.ops, places, begin_s + offsets_s, begin_s)

    def _call(self, node: int) -> "_Call | None":
        """Return the call that a node belongs to; None for a message on its way."""
        position = bisect_right(self.bases, node) - 1
        if position < 0:
            return None
        found = self.calls.get(position)
        if found is None:
            rank, index, base, pattern = self.run.graph.units[self.places[position]]
            program = self.run.programs[rank]
            number = index % len(program.calls)
            ops = program.tasks[task_at(program.calls, number)].ops
            end = base + (1 if pattern is not None else len(ops))
            found = self.calls[position] = _Call(rank, number, base, end, pattern, ops)
        return found if node < found.end else None

    def _last_to_come(self, node: int) -> int:
        """Return what the last member of a collective waited for."""
        joint = self.run.graph.joints[self.run.graph.joint_of[node]]
        ends = self.run.loop.ends_s
        waits = [self.waited_for[member] for member in joint.members]
        return waits[first_largest([ends[other] if other >= 0 else 0.0 for other in waits], self.slack_s)]


def _waited_for(run: SimulatedRun, slack_s: float) -> memoryview:
    """Return the node that each node waited for longest, -1 if it began at once; of equal ones the first.

    Ends that differ by ``slack_s`` or less are equal.
    """
    (before, after), ends_s = run.edges, run.loop.times_s[1]
    released_s = np.full(len(ends_s), -np.inf)
    np.maximum.at(released_s, after, ends_s[before])
    last = np.flatnonzero(ends_s[before] >= (released_s - slack_s)[after])[::-1]
    waited_for = np.full(len(ends_s), -1)
    waited_for[after[last]] = before[last]  # where several are assigned, the last one stays
    return waited_for.data  # a path comes to few of the nodes


def _way(pattern: Pattern, entry: int, op: int, num_ops: int) -> tuple[int, ...]:
    """Return the ops, each ``num_ops`` of them one rank's, that lead from an entry to an op, the last first.

    Every op is followed by what it waited for longest: an op that comes earlier in the task, so the way ends.
    """
    offsets, durations = pattern.offsets[entry], pattern.durations_s
    way = [op]
    while waited := [i for i in pattern.predecessors[op] if offsets[i] != NO_PATH]:
        place = op // num_ops
        op = max(waited, key=lambda i: (offsets[i] + durations[i], i // num_ops == place, i))
        way.append(op)
    return tuple(way)
