"""The reads and writes of a program's ops as numbers: passes over all of them take arrays, not names."""

from collections.abc import Iterable, Mapping
from functools import cached_property
from itertools import chain, repeat
from typing import Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from sim.plan.words.buffer import Buffer, Scope
from sim.plan.words.op import Op
from sim.sorting import run_begins, sorted_order

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

NEVER: Final = -1
"""The op that does what none does."""


class Touches(Struct, frozen=True, dict=True, eq=False):
    """The reads and writes of a program's ops, task by task and op by op; the reads of an op come before its writes.

    ``op``, ``buffer``: places among all ops, task by task, and among the buffers of the program. A buffer that does not
    exist has the place after the last. ``first_op``: by task the place of its first op, and last the number of ops.
    ``is_of``: by scope, which places of buffers are its.
    """

    num_buffers: int
    is_of: Mapping[Scope, Flags]
    first_op: Ints
    op: Ints
    buffer: Ints
    is_write: Flags

    @classmethod
    def of(cls, buffers: Mapping[str, Buffer], tasks: Iterable[tuple[Op, ...]]) -> "Touches":
        """Return the reads and writes of tasks, given by their ops."""
        places, of_tasks = {name: place for place, name in enumerate(buffers)}, list(tasks)
        sides = [side for ops in of_tasks for op in ops for side in (op.reads, op.writes)]
        counts = np.fromiter(map(len, sides), np.int64, len(sides))
        named = map(places.get, chain.from_iterable(sides), repeat(len(places)))
        buffer = np.fromiter(named, np.int64, int(counts.sum()))
        side = np.repeat(np.arange(len(sides)), counts)
        first_op = np.cumsum([0, *map(len, of_tasks)])
        scopes = [buffer.scope for buffer in buffers.values()]
        is_of = {scope: np.array([own is scope for own in scopes] + [False], np.bool_) for scope in Scope}
        return cls(len(places), is_of, first_op, side // 2, buffer, side % 2 == 1)

    @property
    def task(self) -> Ints:
        """Return the task of each, by its place in the program."""
        return np.searchsorted(self.first_op, self.op, side="right") - 1

    @cached_property
    def uses(self) -> "Uses":
        """Return what each task does with each buffer that it touches."""
        cells = self.task * (self.num_buffers + 1) + self.buffer
        order = sorted_order(cells)
        op, is_write, is_first = self.op[order], self.is_write[order], run_begins(cells[order])
        first = np.flatnonzero(is_first)
        row = np.empty(len(order), np.int64)
        row[order] = np.cumsum(is_first) - 1
        last_read, last_write = (_last(np.where(is_done, op, NEVER), first) for is_done in (~is_write, is_write))
        return Uses(
            first_op=self.first_op, task=self.task[order[first]], buffer=self.buffer[order[first]],
            first=op[first], last=_last(op, first), reads_first=~is_write[first],
            last_read=last_read, last_write=last_write, of_touch=row,
        )  # fmt: skip


def _last(ops: Ints, begins: Ints) -> Ints:
    """Return the last op of each run; ``begins``: of the runs."""
    found: Ints = np.maximum.reduceat(ops, begins) if len(begins) else begins
    return found


class Uses(Struct, frozen=True, eq=False):
    """What tasks do with buffers, a row for each task and each buffer that it touches, in the order of both.

    ``first``, ``last``: the ops that touch it first and last. ``reads_first``: the first one reads it, so the task
    needs what was there before. ``last_read``, ``last_write``: NEVER where no op does. ``of_touch``: the row of each
    read and write.
    """

    first_op: Ints
    task: Ints
    buffer: Ints
    first: Ints
    last: Ints
    reads_first: Flags
    last_read: Ints
    last_write: Ints
    of_touch: Ints

    def by_task(self, chosen: Flags) -> list[Ints]:
        """Return the buffers of the rows that are chosen, for each task of the program."""
        ends = np.searchsorted(self.task[chosen], np.arange(1, len(self.first_op) - 1))
        found: list[Ints] = np.split(self.buffer[chosen], ends)
        return found
