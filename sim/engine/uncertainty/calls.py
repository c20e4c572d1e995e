"""The durations of calls and of their ops under drawn durations of the ops."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from msgspec import Struct

from sim.engine.uncertainty.longest_path import Floats

Predecessors = tuple[tuple[int, ...], ...]


class TaskTimes(Struct, frozen=True, cache_hash=True):
    """One task of one rank: its ops' durations with their waits for launches, and each launch's host time.

    ``rows``: of each op the row of the drawn factors that it errs with. ``launches_s`` may be empty: launching takes
    no time. Else ``singles_s`` are the durations without the others that ops stand for, as ops wait for their launches
    by these.
    """

    durations_s: tuple[float, ...]
    rows: tuple[int, ...]
    predecessors: Predecessors = ()
    launches_s: tuple[float, ...] = ()
    singles_s: tuple[float, ...] = ()

    def drawn_s(self, factors: Floats) -> Floats:
        """Return durations with drawn factors, ops x draws."""
        durations_s = np.array(self.durations_s)
        if self.launches_s:
            durations_s[durations_s == 0.0] = 1.0
        drawn_s = self.ratios(factors)
        drawn_s *= durations_s[:, None]
        return drawn_s

    def ratios(self, factors: Floats) -> Floats:
        """Return how many times as long ops last, ops x draws; what could begin sooner waits longer for its launch.

        Of an op that is predicted to take no time, the seconds that it lasts: it may wait for its launch.
        """
        ratios: Floats = factors[list(self.rows)]
        if self.launches_s:
            singles_s = np.array(self.singles_s)
            ratios = self._drawn_singles_s(ratios) / np.where(singles_s == 0.0, 1.0, singles_s)[:, None]
        return ratios

    def _drawn_singles_s(self, of_ops: Floats) -> Floats:
        """Return durations without the others that ops stand for, with the drawn factors of ops, ops x draws."""
        drawn_s, none_s = of_ops * self._not_late_s()[:, None], np.zeros(of_ops.shape[1])
        host_s, ends_s = 0.0, list[Floats]()
        for op, launch_s in enumerate(self.launches_s):
            host_s += launch_s
            ready_s = latest([ends_s[i] for i in self.predecessors[op]]) if self.predecessors[op] else none_s
            drawn_s[op] += np.maximum(host_s - ready_s, 0.0)
            ends_s.append(ready_s + drawn_s[op])
        return drawn_s

    def _not_late_s(self) -> Floats:
        """Return the same as predicted, without waits for launches (see ``sim.engine.prices.launching``)."""
        not_late_s, host_s, ends_s = np.array(self.singles_s), 0.0, list[float]()
        for op, launch_s in enumerate(self.launches_s):
            host_s += launch_s
            ready_s = max((ends_s[i] for i in self.predecessors[op]), default=0.0)
            ends_s.append(ready_s + self.singles_s[op])
            not_late_s[op] -= max(host_s - ready_s, 0.0)
        return not_late_s


class OpRatios(Struct, frozen=True, eq=False):
    """Of ops of a task, how many times as long as predicted they last; ``rows``: the row of each op asked for."""

    task: TaskTimes
    rows: dict[int, int] = {}

    def drawn(self, factors: Floats) -> list[Floats]:
        """Return the rows in their order, from the factors of all ops."""
        return list(self.task.ratios(factors)[list(self.rows)])


class CallTimes(Struct, frozen=True, eq=False):
    """When ops of a call that is one event end after one of its entries let go; ``rows``: by entry's slot and op.

    ``tasks``: that of every rank. Ops are counted over ranks, one rank after the other, in ``predecessors`` too; an op
    that is ``joint``, one collective of all ranks, has there what it waits for on any of them.
    """

    tasks: tuple[TaskTimes, ...]
    entries: tuple[int, ...]
    predecessors: Predecessors
    joint: tuple[int, ...]
    rows: dict[tuple[int, int], int] = {}

    def drawn(self, factors: Floats) -> list[Floats]:
        """Return the rows in their order, in seconds, from the factors of all ops."""
        num_ops, drawn_s = len(self.tasks[0].durations_s), [task.drawn_s(factors) for task in self.tasks]
        for other_s in drawn_s[1:]:
            other_s[list(self.joint)] = drawn_s[0][list(self.joint)]
        durations_s = np.concatenate(drawn_s) if len(drawn_s) > 1 else drawn_s[0]
        order = [place * num_ops + op for op in range(num_ops) for place in range(len(self.tasks))]
        wanted: dict[int, list[int]] = {}
        for slot, op in self.rows:
            wanted.setdefault(slot, []).append(op)
        found, whole = dict[int, Mapping[int, Floats]](), list[Mapping[int, Floats]]()
        for slot, ops in wanted.items():
            entry = self.entries[slot]
            through = next((ends_s for ends_s in whole if entry in ends_s), None)
            if through is not None and len(self.tasks) == 1 and _is_passed_by_all(entry, self.predecessors):
                release_s = through[entry] - durations_s[entry]
                found[slot] = {op: through[op] - release_s for op in ops}
                continue
            parts = range(entry % num_ops, len(order), num_ops) if entry % num_ops in self.joint else (entry,)
            found[slot] = _ends_after(parts, durations_s, self.predecessors, order)
            whole.append(found[slot])
        return [found[slot][op] for slot, op in self.rows]


def _ends_after(
    entry: Iterable[int], durations_s: Floats, predecessors: Predecessors, order: Iterable[int]
) -> Mapping[int, Floats]:
    """Return when the ops that an entry leads to end after its release, a value per draw: longest paths.

    ``entry``: the op that it lets go, or its parts on all ranks. ``order``: ops, each after all that it waits for.
    """
    entries, ends_s = set(entry), dict[int, Floats]()
    for op in order:
        waits = predecessors[op]
        if len(waits) == 1 and waits[0] in ends_s:  # as of most ops
            ends_s[op] = ends_s[waits[0]] + durations_s[op]
        elif waited := [ends_s[i] for i in waits if i in ends_s]:
            ends_s[op] = latest(waited) + durations_s[op]
        elif op in entries:
            ends_s[op] = durations_s[op]
    return ends_s


def _is_passed_by_all(op: int, predecessors: Predecessors) -> bool:
    """Return whether no later op waits for one before an op: what leads to both leads through it."""
    return all(min(waits, default=op) >= op for waits in predecessors[op + 1 :])


def latest(ends_s: Sequence[Floats]) -> Floats:
    """Return the latest of several ends, draw by draw."""
    latest_s = ends_s[0]
    for other_s in ends_s[1:]:
        latest_s = np.maximum(latest_s, other_s)
    return latest_s
