"""The critical path of a run: ops that follow each other without a gap from 0 to the end, and decide how long it takes.

Walked back from what ends last: of everything that an op waited for, the one that ended last. What an op waited for is
what the compiler recorded: order on a stream, hazards on buffers, members of a collective, messages. To first
order a run lasts longer by as much as the ops on this path do (the derivative of a longest path), unless they share
resources with others. Of several paths of one length, one is taken. Of steps without a barrier between them it is the
path from the begin of one step to that of the next, a period long.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from costmodels.kernels import KERNELS
from sim.engine.compiling.graph import SENT, NodeKind, Pattern, Unit
from sim.engine.compiling.shape import NO_PATH
from sim.engine.running.period import Repeated
from sim.engine.running.run import SimulatedRun
from sim.plan.words.op import Collective, Compute, Copy, Op

MESSAGE: Final = "message"
COPY: Final = "copy"
"""Between memory tiers."""


def kind_of(op: Op | None) -> str:
    """Return an op's kernel family or kind of collective; MESSAGE for a message, on its way or at its ends; COPY."""
    if isinstance(op, Compute):
        return str(KERNELS[op.kernel].family)
    if isinstance(op, Copy):
        return COPY
    return str(op.kind) if isinstance(op, Collective) else MESSAGE


class Step(NamedTuple):
    """A part of the path: an op of a rank's call, or a message on its way (no op), from when to when in seconds.

    ``times``: how often the path comes by it, where the run passed through its period once for many.
    """

    rank: int
    call: int
    op: Op | None
    start_s: float
    end_s: float
    times: int = 1

    @property
    def duration_s(self) -> float:
        """Return how long the path stays with it, all times together."""
        return self.times * (self.end_s - self.start_s)


@dataclass(frozen=True, slots=True)
class CriticalPath:
    """Steps in order of time, each beginning where the one before ends; those of a period are there once."""

    run: SimulatedRun
    steps: tuple[Step, ...]

    @property
    def seconds(self) -> dict[str, float]:
        """Return how long the path stays with each kernel family, each kind of collective and messages."""
        found: dict[str, float] = {}
        for step in self.steps:
            kind = kind_of(step.op)
            found[kind] = found.get(kind, 0.0) + step.duration_s
        return found


def critical_path(run: SimulatedRun) -> CriticalPath:
    """Return the path of a run that has ended."""
    steps = list(_Walk(run).back())
    if run.repeated is not None:
        repeated = _repeated(steps, run.repeated)
        if repeated is None:  # of several paths that are equally long it does not keep to one
            return critical_path(run.whole)
        steps = repeated
    return CriticalPath(run, tuple(reversed(steps)))


def _repeated(steps: Sequence[Step], period: Repeated) -> list[Step] | None:
    """Return a path, its last step first, with the steps of a period as often as they are made.

    None where the path does not come to the same op at the begin and the end of the period.
    """
    slack_s = 1e-9 * period.length_s
    end, begin = (
        next((at for at, step in enumerate(steps) if step.start_s < moment_s - slack_s), len(steps))
        for moment_s in (period.end_s, period.begin_s)
    )
    if begin == len(steps):
        return None
    later, earlier = steps[end], steps[begin]
    apart_s = later.start_s - earlier.start_s - period.length_s
    if (later.rank, later.op) != (earlier.rank, earlier.op) or abs(apart_s) > slack_s:
        return None
    more = [step._replace(times=1 + period.times) for step in steps[end:begin]]
    return [*steps[:end], *more, *steps[begin:]]


@dataclass(slots=True)
class _Walk:
    """Walks a compiled run backwards, node by node."""

    run: SimulatedRun
    before: NDArray[np.int64] = field(init=False)
    first: NDArray[np.int64] = field(init=False)
    units: list[Unit] = field(init=False)
    bases: NDArray[np.int64] = field(init=False)
    exits: dict[int, tuple[int, int]] = field(init=False)
    entry_nodes: dict[tuple[int, int], int] = field(init=False)
    ways: dict[tuple[Pattern, int, int], tuple[int, ...]] = field(init=False, default_factory=dict)
    """Ops of a pattern that lead from an entry (its slot) to an op, the last first: found once for all its calls."""

    def __post_init__(self) -> None:
        graph = self.run.graph
        before, after = self.run.edges
        order = np.argsort(after, kind="stable")
        self.before = before[order]
        self.first = np.searchsorted(after[order], np.arange(len(graph.kinds) + 1))
        self.units = sorted((unit for unit in graph.units if unit[3] is not SENT), key=lambda unit: unit[2])
        self.bases = np.array([unit[2] for unit in self.units], dtype=np.int64)
        self.exits = {node: (b, op) for b, block in graph.blocks.items() for op, node in block.exits.items()}
        self.entry_nodes = {place: node for node, place in graph.entries.items()}

    def back(self) -> Iterator[Step]:
        """Yield the steps of the path, the last first: each ends where the one before it in this order begins.

        Steps that the clock does not resolve are left out.
        """
        begin_s, end_s, node = self._bounds()
        while node >= 0 and end_s > begin_s:
            steps, node = self._through(node)
            for rank, call, op, started_s, _, _ in steps:
                start_s = max(started_s, begin_s)
                if start_s < end_s:
                    yield Step(rank, call, op, start_s - begin_s, end_s - begin_s)
                    end_s = start_s

    def _bounds(self) -> tuple[float, float, int]:
        """Return when the path begins and when it ends, and the node with which it ends (-1: there is none)."""
        loop, graph = self.run.loop, self.run.graph
        if self.run.period_nodes is None:
            last = int(np.argmax(loop.ends_s)) if loop.ends_s else -1
            return 0.0, max(loop.ends_s, default=0.0), last
        before, node = self.run.period_nodes
        released = graph.blocks[node].released_s if node in graph.blocks else [0.0]
        entry = max(range(len(released)), key=released.__getitem__)
        waited_for = self._waited_for(self.entry_nodes.get((node, entry), node))
        return loop.starts_s[before], loop.starts_s[node], waited_for

    def _through(self, node: int) -> tuple[list[Step], int]:
        """Return the steps that a node stands for, the last first, and the node that it waited for (-1: none)."""
        graph, loop = self.run.graph, self.run.loop
        kind = graph.kinds[node]
        if kind == NodeKind.EXIT:
            block, op = self.exits[node]
            return self._through_block(block, op)
        if kind == NodeKind.BLOCK:
            return self._through_block(node, graph.blocks[node].pattern.main_exit)
        if kind in {NodeKind.ENTRY, NodeKind.JOIN}:
            return [], self._waited_for(node)
        if node in graph.early_exits:
            block, entry, op = graph.early_exits[node]
            return self._from_entry(block, entry, op, loop.starts_s[node])
        if kind == NodeKind.MEMBER:
            step = self._step(node, loop.starts_s[node], loop.ends_s[node])
            return [step], self._last_to_come(node)
        rank, call, base, pattern = self._unit(node)
        start_s = loop.starts_s[node]
        if pattern is not None and base == node:
            return list(self._inside((rank,), call, pattern, 0, pattern.main_exit, start_s)), self._waited_for(node)
        return [self._step(node, start_s, loop.ends_s[node])], self._waited_for(node)

    def _through_block(self, node: int, op: int) -> tuple[list[Step], int]:
        """Return the steps of a block up to the end of an op, and the node that let the deciding entry go."""
        block = self.run.graph.blocks[node]
        pattern, released = block.pattern, block.released_s
        entry = max(range(len(released)), key=lambda k: released[k] + pattern.offsets[k][op])
        return self._from_entry(node, entry, op, released[entry])

    def _from_entry(self, node: int, entry: int, op: int, released_s: float) -> tuple[list[Step], int]:
        """Return the steps of a block from an entry to the end of an op, and the node that let the entry go."""
        block = self.run.graph.blocks[node]
        rank, call, _, _ = self._unit(node)
        steps = list(self._inside(block.ranks or (rank,), call, block.pattern, entry, op, released_s))
        return steps, self._waited_for(self.entry_nodes.get((node, entry), node))

    def _inside(
        self, ranks: tuple[int, ...], call: int, pattern: Pattern, entry: int, op: int, begin_s: float
    ) -> Iterator[Step]:
        """Yield the ops of a coalesced call that lead from an entry to the end of an op, the last first.

        Of several ``ranks``, the pattern has the ops one rank after the other.
        """
        program = self.run.programs[ranks[0]]
        ops = program.tasks[program.calls[call].task].ops
        offsets, durations = pattern.offsets[entry], pattern.durations_s
        way = self.ways.get((pattern, entry, op))
        if way is None:
            way = self.ways[pattern, entry, op] = self._way(pattern, entry, op, len(ops))
        for at in way:
            start_s, (place, own) = begin_s + offsets[at], divmod(at, len(ops))
            yield Step(ranks[place], call, ops[own], start_s, start_s + durations[at])

    def _way(self, pattern: Pattern, entry: int, op: int, num_ops: int) -> tuple[int, ...]:
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

    def _unit(self, node: int) -> Unit:
        """Return the call that a node belongs to; one of no rank for a message on its way."""
        position = int(np.searchsorted(self.bases, node, side="right")) - 1
        if position >= 0:
            rank, index, base, pattern = self.units[position]
            program = self.run.programs[rank]
            call = index % len(program.calls)
            size = 1 if pattern is not None else len(program.tasks[program.calls[call].task].ops)
            if node < base + size:
                return (rank, call, base, pattern)
        return (-1, -1, node, None)

    def _step(self, node: int, start_s: float, end_s: float) -> Step:
        rank, call, base, _ = self._unit(node)
        if rank < 0:
            return Step(rank, call, None, start_s, end_s)
        program = self.run.programs[rank]
        return Step(rank, call, program.tasks[program.calls[call].task].ops[node - base], start_s, end_s)

    def _waited_for(self, node: int) -> int:
        """Return what a node waited for longest, -1 where it could begin at once."""
        earlier = self.before[self.first[node] : self.first[node + 1]].tolist()
        return max(earlier, key=self.run.loop.ends_s.__getitem__, default=-1)

    def _last_to_come(self, node: int) -> int:
        """Return what the last member of a collective waited for."""
        joint = self.run.graph.joints[self.run.graph.joint_of[node]]
        ends = self.run.loop.ends_s
        waits = (self._waited_for(member) for member in joint.members)
        return max(waits, key=lambda other: ends[other] if other >= 0 else 0.0)
