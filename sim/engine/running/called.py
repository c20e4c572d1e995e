"""The calls of each task of a rank, with the nodes that they were compiled to."""

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from sim.engine.compiling.graph import SENT, Pattern, UnitColumns
from sim.integers import widened
from sim.plan.words.calls import Calls
from sim.plan.words.program import Program
from sim.sorting import distinct_values, run_begins, sorted_order

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
        if len(patterns := {pattern for part in parts for pattern in part.rows_of}) == 1:
            return cls(calls, nodes, dict.fromkeys(patterns, np.arange(len(calls))), is_single)
        rows_of, begin = dict[Pattern | None, list[Ints]](), 0
        for part in parts:
            for pattern, rows in part.rows_of.items():
                rows_of.setdefault(pattern, []).append(begin + rows)
            begin += len(part.calls)
        return cls(calls, nodes, {pattern: np.concatenate(rows) for pattern, rows in rows_of.items()}, is_single)


def calls_by_task(
    programs: Mapping[int, Program], units: UnitColumns, own: Mapping[int, slice]
) -> dict[int, dict[str, TaskCalls]]:
    """Return the calls of each task of each rank, in the order of first use.

    ``own``: a rank's units, of all steps; of the last one those that it begins with may be all.
    """
    found: dict[int, dict[str, TaskCalls]] = {rank: {} for rank in programs}
    if not len(units.nodes):
        return found
    tasks, names = list[Ints](), list[tuple[int, str]]()
    for rank, program in programs.items():
        calls = Calls.of(program.calls)
        tasks.append(len(names) + np.resize(widened(calls.tasks), own[rank].stop - own[rank].start))
        names += [(rank, name) for name in calls.names]
    order = sorted_order(task := np.concatenate(tasks))
    first = np.flatnonzero(run_begins(task[order]))
    counts, numbers = np.diff(first, append=len(order)), units.numbers[order]
    alike = np.logical_and.reduceat(numbers == np.repeat(numbers[first], counts), first)
    begin_of_rank = np.repeat([own[rank].start for rank in programs], list(map(len, tasks)))
    index, nodes, is_single = (
        order - begin_of_rank[order],
        units.nodes[order],
        (numbers == id(None)) | (numbers == id(SENT)),
    )
    for at in np.argsort(order[first]).tolist():
        rows = slice(int(first[at]), int(first[at] + counts[at]))
        rows_of = _rows_by_pattern(numbers[rows], units.patterns, alike=bool(alike[at]))
        rank, name = names[task[order[rows.start]]]
        found[rank][name] = TaskCalls(index[rows], nodes[rows], rows_of, is_single[rows])
    return found


def _rows_by_pattern(
    numbers: Ints, patterns: Mapping[int, Pattern | None], *, alike: bool
) -> dict[Pattern | None, Ints]:
    """Return the places of calls by their patterns, whose identities are ``numbers``: mostly one for all of a task."""
    if alike:
        return {patterns[int(numbers[0])]: np.arange(len(numbers))}
    return {patterns[number]: np.flatnonzero(numbers == number) for number in distinct_values(numbers).tolist()}
