"""A simulated run: when every op of every simulated rank ran."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from sim.engine.folding import Folding
from sim.engine.graph import SENT, Graph, Pattern, PricedTask, Unit
from sim.engine.loop import EventLoop
from sim.engine.memory import MemoryUse, memory_use
from sim.plan.op import Recv
from sim.plan.program import Plan, Program, Task

Times = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class TaskTimes:
    """All calls of one task of one rank: ``starts_s[c, j]`` is when op j of the c-th call began.

    ``nodes[c] + j`` is that op's node, where ``nodes[c]`` is not -1 (a coalesced call). ``wired``: sends of messages
    that are one node with their receive.
    """

    task: Task
    calls: NDArray[np.int64]
    nodes: NDArray[np.int64]
    starts_s: Times
    ends_s: Times
    wired: bool


@dataclass
class SimulatedRun:
    """What the engine found out; ``wall_time_s`` is what it took to fold, price, compile and run."""

    plan: Plan
    folding: Folding
    programs: Mapping[int, Program]
    priced: Mapping[int, Mapping[str, PricedTask]]
    graph: Graph
    loop: EventLoop
    makespan_s: float
    wall_time_s: float = 0.0
    _memory: dict[int, MemoryUse] = field(default_factory=dict, repr=False)

    @property
    def num_events(self) -> int:
        """Return how many SimPy events the run took."""
        return self.loop.num_events

    def memory_of(self, rank: int) -> MemoryUse:
        """Return the memory of a simulated rank; ranks with one program have the same."""
        program = self.programs[rank]
        if id(program) not in self._memory:
            self._memory[id(program)] = memory_use(program)
        return self._memory[id(program)]

    @cached_property
    def _units(self) -> dict[int, dict[str, list[Unit]]]:
        """Return the calls of each rank's tasks."""
        table: dict[int, dict[str, list[Unit]]] = {rank: {} for rank in self.programs}
        for unit in self.graph.units:
            rank, call, _, _ = unit
            table[rank].setdefault(self.programs[rank].calls[call].task, []).append(unit)
        return table

    def task_times(self, rank: int) -> Iterator[TaskTimes]:
        """Yield the times of a simulated rank, task by task in the order of first use."""
        for name, units in self._units[rank].items():
            yield self._times(rank, self.programs[rank].tasks[name], units)

    def _times(self, rank: int, task: Task, units: list[Unit]) -> TaskTimes:
        num_ops = len(task.ops)
        starts = np.empty((len(units), num_ops))
        ends = np.empty((len(units), num_ops))
        rows_of: dict[Pattern, list[int]] = {}
        for row, (_, _, node, pattern) in enumerate(units):
            if pattern is None:
                starts[row] = self._node_starts[node : node + num_ops]
                ends[row] = self._node_ends[node : node + num_ops]
            else:
                rows_of.setdefault(pattern, []).append(row)
        for pattern, rows in rows_of.items():
            released = self._released([units[row][2] for row in rows], pattern)
            starts[rows] = (released[:, :, None] + np.array(pattern.offsets)[None, :, :]).max(axis=1)
            ends[rows] = starts[rows] + np.array(pattern.durations_s)
        calls = np.array([call for _, call, _, _ in units])
        nodes = np.array([node if pattern is None or pattern is SENT else -1 for _, _, node, pattern in units])
        return TaskTimes(task, calls, nodes, starts, ends, wired=units[0][3] is SENT)

    def _released(self, nodes: list[int], pattern: Pattern) -> Times:
        """Return when each entry of each block was released, blocks x entries."""
        if len(pattern.entries) == 1:
            return self._released_s[nodes][:, None]
        return np.array([self.graph.blocks[node].released_s for node in nodes])

    @cached_property
    def _released_s(self) -> Times:
        """Return when all that a node waited for was done."""
        return np.array(self.loop.starts_s)

    @cached_property
    def _node_starts(self) -> Times:
        """Return the start of every op that is a node; a receive's is its message's, or when its stream is free."""
        starts = self._released_s.copy()
        ends = self._node_ends
        previous: dict[tuple[int, str], float] = {}
        sender = {receive: send for send, receive in self.graph.messages}
        for rank, call, base, pattern in self.graph.units:
            if pattern is not None:
                continue
            program = self.programs[rank]
            for j, op in enumerate(program.tasks[program.calls[call].task].ops):
                if isinstance(op, Recv):
                    node, stream = base + j, (rank, op.stream)
                    sent = self.loop.starts_s[sender[node]]
                    starts[node] = min(max(previous.get(stream, 0.0), sent), ends[node])
                    previous[stream] = ends[node]
        return starts

    @cached_property
    def _node_ends(self) -> Times:
        return np.array(self.loop.ends_s)
