"""A simulated run: when every op of every simulated rank ran."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from sim.engine.folding import Folding
from sim.engine.graph import Graph, PricedTask, Unit
from sim.engine.loop import EventLoop
from sim.plan.op import Recv
from sim.plan.program import Plan, Program, Task

Times = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class TaskTimes:
    """All calls of one task of one rank: ``starts_s[c, j]`` is when op j of the c-th call began."""

    task: Task
    calls: NDArray[np.int64]
    starts_s: Times
    ends_s: Times


@dataclass
class SimulatedRun:
    """What the engine found out; ``wall_time_s`` is what it took to price, compile and run."""

    plan: Plan
    folding: Folding
    programs: Mapping[int, Program]
    priced: Mapping[int, Mapping[str, PricedTask]]
    graph: Graph
    loop: EventLoop
    makespan_s: float
    wall_time_s: float

    @property
    def num_events(self) -> int:
        """Return how many SimPy events the run took."""
        return self.loop.num_events

    @cached_property
    def _units(self) -> dict[tuple[int, str], list[Unit]]:
        table: dict[tuple[int, str], list[Unit]] = {}
        for unit in self.graph.units:
            table.setdefault((unit.rank, self.programs[unit.rank].calls[unit.call].task), []).append(unit)
        return table

    def task_times(self, rank: int) -> Iterator[TaskTimes]:
        """Yield the times of a simulated rank, task by task in the order of first use."""
        for (owner, name), units in self._units.items():
            if owner == rank:
                yield self._times(rank, self.programs[rank].tasks[name], units)

    def _times(self, rank: int, task: Task, units: list[Unit]) -> TaskTimes:
        num_ops = len(task.ops)
        starts = np.empty((len(units), num_ops))
        ends = np.empty((len(units), num_ops))
        blocks: dict[tuple[int, ...], list[int]] = {}
        for row, unit in enumerate(units):
            if unit.block is None:
                starts[row] = self._node_starts[unit.base : unit.base + num_ops]
                ends[row] = self._node_ends[unit.base : unit.base + num_ops]
            else:
                blocks.setdefault(unit.block.entries, []).append(row)
        for rows in blocks.values():
            pattern = units[rows[0]].block
            assert pattern is not None
            released = np.array([block.released_s for row in rows if (block := units[row].block) is not None])
            offsets = np.array(pattern.offsets)
            starts[rows] = (released[:, :, None] + offsets[None, :, :]).max(axis=1)
            ends[rows] = starts[rows] + np.array(pattern.durations_s)
        return TaskTimes(task, np.array([unit.call for unit in units]), starts, ends)

    @cached_property
    def _node_starts(self) -> Times:
        """Return the start of every node; a receive starts when its message does, or its stream is free."""
        starts = np.array(self.loop.starts_s)
        ends = self._node_ends
        previous: dict[tuple[int, str], float] = {}
        sender = {receive: send for send, (receive, _) in self.graph.arrivals.items()}
        for unit in self.graph.units:
            if unit.block is not None:
                continue
            program = self.programs[unit.rank]
            for j, op in enumerate(program.tasks[program.calls[unit.call].task].ops):
                if isinstance(op, Recv):
                    node, stream = unit.base + j, (unit.rank, op.stream)
                    sent = self.loop.starts_s[sender[node]]
                    starts[node] = min(max(previous.get(stream, 0.0), sent), ends[node])
                    previous[stream] = ends[node]
        return starts

    @cached_property
    def _node_ends(self) -> Times:
        return np.array(self.loop.ends_s)
