"""When every node of a run's graph began and ended, and the ops of calls by them."""

from collections.abc import Mapping
from functools import cached_property
from typing import Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from sim.engine.compiling.graph import SENT, Graph, Pattern
from sim.engine.running.called import TaskCalls
from sim.engine.running.loop import EventLoop
from sim.engine.running.paced import Paced
from sim.engine.running.period import Times
from sim.engine.running.task_times import TaskTimes
from sim.plan.words.op import Recv
from sim.plan.words.program import Program, Task
from sim.sorting import run_begins

Ints = NDArray[np.int64]

_NONE: Final = np.zeros(0, np.int64)
"""No calls, and no nodes."""


class NodeTimes(Struct, dict=True, eq=False):
    """Times of the nodes of a run. ``calls_of``: the calls of each task of every simulated rank."""

    graph: Graph
    loop: EventLoop
    programs: Mapping[int, Program]
    calls_of: Mapping[int, Mapping[str, TaskCalls]]
    paced: Paced | None

    def of_calls(self, task: Task, called: TaskCalls) -> TaskTimes:
        """Return when the ops of a task ran in some of its calls, of one rank or of several."""
        nodes, from_s, course_of = called.nodes, np.zeros(len(called.nodes)), np.empty(len(called.nodes), np.int64)
        alone = {
            pattern: rows
            for pattern, rows in called.rows_of.items()
            if pattern is not None and len(pattern.entries) == 1
        }
        courses, count = list[tuple[Times, Times]](), len(alone)  # starts and ends after the moments ``from_s``
        if alone:
            rows = np.concatenate([*alone.values()])
            from_s[rows] = self._released_s[nodes[rows]]
            course_of[rows] = np.repeat(np.arange(count), list(map(len, alone.values())))
            begin_after_s = np.array([pattern.offsets[0] for pattern in alone])
            courses.append((begin_after_s, begin_after_s + np.array([pattern.durations_s for pattern in alone])))
        for pattern, rows in called.rows_of.items():
            if pattern not in alone:
                courses.append(self._own_courses(pattern, nodes[rows], len(task.ops)))
                course_of[rows] = np.arange(count, count + len(rows))
                count += len(rows)
        begin_after_s, end_after_s = (
            courses[0] if len(courses) == 1 else map(np.concatenate, zip(*courses, strict=True))
        )
        own = np.where(called.is_single, nodes, -1)
        wired = SENT in called.rows_of
        return TaskTimes(task, called.calls, own, from_s, course_of, begin_after_s, end_after_s, wired)

    def _own_courses(self, pattern: Pattern | None, nodes: Ints, num_ops: int) -> tuple[Times, Times]:
        """Return the starts and the ends of the ops of calls that run by no pattern, or by one with several entries."""
        if pattern is None:
            ops = nodes[:, None] + np.arange(num_ops)
            return self._node_starts[ops], self._node_ends[ops]
        released = np.array([self.graph.blocks[node].released_s for node in nodes.tolist()])
        starts_s: Times = (released[:, :, None] + np.array(pattern.offsets)).max(axis=1)
        return starts_s, starts_s + np.array(pattern.durations_s)

    @property
    def _released_s(self) -> Times:
        """Return when all that a node waited for was done."""
        return self.loop.times_s[0]

    @cached_property
    def _node_starts(self) -> Times:
        """Return the start of every op that is a node; a receive's is its message's, or when its stream is free."""
        starts, ends = self._released_s.copy(), self._node_ends
        sent_s = np.zeros(len(starts))
        sends, _, receives = self.graph.message_columns
        sent_s[receives] = self._released_s[sends]
        if self.paced is not None:
            sent_s[receives] += self.paced.on_the_way_s(self.graph, *self.loop.times_s)
        nodes, queues = self._receives
        free_s = np.roll(ends[nodes], 1)
        if self.paced is not None:
            free_s += self.paced.between_s(np.roll(nodes, 1), nodes)
        free_s[run_begins(queues)] = 0.0
        starts[nodes] = np.minimum(np.maximum(free_s, sent_s[nodes]), ends[nodes])
        return starts

    @property
    def _receives(self) -> tuple[Ints, Ints]:
        """Return the nodes of all receives, those of one stream of a rank after the other, in order, and a number.

        It is that of the stream.
        """
        numbers, parts = dict[tuple[int, str], int](), [(0, 0, _NONE, _NONE)]
        known: dict[int, list[tuple[int, str]]] = {}  # of tasks, which ranks share
        for rank, of_tasks in self.calls_of.items():
            for name, found in of_tasks.items():
                task = self.programs[rank].tasks[name]
                if id(task) not in known:
                    known[id(task)] = _receives_of(task)
                rows = found.rows_of.get(None) if known[id(task)] else None
                for op, stream in known[id(task)] if rows is not None else ():
                    queue = numbers.setdefault((rank, stream), len(numbers))
                    parts.append((queue, op, found.calls[rows], found.nodes[rows] + op))
        of_parts, ops, calls_of, nodes_of = zip(*parts, strict=True)
        sizes = list(map(len, nodes_of))
        queues, places = np.repeat(of_parts, sizes), np.repeat(ops, sizes)
        calls, nodes = np.concatenate(calls_of), np.concatenate(nodes_of)
        order = np.lexsort((places, calls, queues))
        return nodes[order], queues[order]

    @property
    def _node_ends(self) -> Times:
        return self.loop.times_s[1]


def _receives_of(task: Task) -> list[tuple[int, str]]:
    """Return the receives of a task, by number, and their streams."""
    return [(op, found.stream) for op, found in enumerate(task.ops) if isinstance(found, Recv)]
