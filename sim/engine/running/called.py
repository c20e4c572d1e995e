"""The calls of each task of a rank, with the nodes that they were compiled to."""

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from sim.engine.compiling.graph import SENT, Pattern, UnitColumns
from sim.plan.words.calls import Calls
from sim.plan.words.program import Program
from sim.sorting import distinct_values

Ints = NDArray[np.int64]


class TaskCalls(Struct, frozen=True):
    """Calls of one task: which, the node of each, and which of them run by which pattern (None: by none).

    They are those of one rank, or of several, one rank's after the other's. ``is_single``: whose ops are nodes of their
    own.
    """

    calls: Ints
    nodes: Ints
    rows_of: Mapping[Pattern | None, Ints]
    is_single: NDArray[np.bool_]

    def within(self, calls: range) -> "TaskCalls":
        """Return those of a rank that are among ``calls``, which are in a row."""
        if len(self.calls) and calls.start <= self.calls[0] and self.calls[-1] < calls.stop:
            return self
        kept = (self.calls >= calls.start) & (self.calls < calls.stop)
        row = np.cumsum(kept) - 1
        rows_of = {pattern: row[rows[kept[rows]]] for pattern, rows in self.rows_of.items() if kept[rows].any()}
        return TaskCalls(self.calls[kept], self.nodes[kept], rows_of, self.is_single[kept])

    @classmethod
    def joined(cls, parts: "Sequence[TaskCalls]") -> "TaskCalls":
        """Return all calls of the parts, one part after the other."""
        if len(parts) == 1:
            return parts[0]
        calls, nodes, is_single = (
            np.concatenate(column) for column in zip(*[(p.calls, p.nodes, p.is_single) for p in parts], strict=True)
        )
        rows_of, begin = dict[Pattern | None, list[Ints]](), 0
        for part in parts:
            for pattern, rows in part.rows_of.items():
                rows_of.setdefault(pattern, []).append(begin + rows)
            begin += len(part.calls)
        return cls(calls, nodes, {pattern: np.concatenate(rows) for pattern, rows in rows_of.items()}, is_single)


def calls_by_task(program: Program, units: UnitColumns, own: slice) -> dict[str, TaskCalls]:
    """Return the calls of each task of a rank, in the order of first use.

    ``own``: its units, of all steps; of the last one those that it begins with may be all.
    """
    calls, nodes, numbers = Calls.of(program.calls), units.nodes[own], units.numbers[own]
    is_single = (numbers == id(None)) | (numbers == id(SENT))
    step_rows = np.arange(0, len(nodes), max(len(calls), 1))[:, None]
    found = {}
    for name, first in calls.first_calls.items():
        of_task = (step_rows + np.flatnonzero(calls.tasks == calls.tasks[first])).ravel()
        of_task = of_task[: of_task.searchsorted(len(nodes))]
        rows_of = _rows_by_pattern(numbers[of_task], units.patterns)
        found[name] = TaskCalls(of_task, nodes[of_task], rows_of, is_single[of_task])
    return found


def _rows_by_pattern(numbers: Ints, patterns: Mapping[int, Pattern | None]) -> dict[Pattern | None, Ints]:
    """Return the places of calls by their patterns, whose identities are ``numbers``: mostly one for all of a task."""
    if len(numbers) and (numbers == numbers[0]).all():
        return {patterns[int(numbers[0])]: np.arange(len(numbers))}
    return {patterns[number]: np.flatnonzero(numbers == number) for number in distinct_values(numbers).tolist()}
