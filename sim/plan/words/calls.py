"""The calls of a program as numbers: most of a long step's calls differ in their micro-batch alone."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import chain, compress, pairwise
from typing import Final, Self

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from sim.integers import Integers, integer_type, narrowed, widened
from sim.plan.words.columns import Column, Columns
from sim.plan.words.program import Call, Program
from sim.sorting import distinct_values, first_places

NO_MICROBATCH: Final = -1
"""The micro-batch number of calls without one."""

_HASHED: Final = 64
"""About so many calls make up the hash of a key: programs of one plan seldom agree in them and not in others."""


class Calls(Columns[Call], frozen=True, dict=True, eq=False):
    """Calls in issue order.

    ``tasks``: the place of each call's task in ``names``; ``microbatches``: NO_MICROBATCH where a call has none. The
    columns are narrow (``sim.integers``).

        Calls.of(program.calls).counts()     # {"forward.0": 4096, ...}
    """

    names: tuple[str, ...]
    tasks: Integers
    microbatches: Integers
    lags: Integers

    @classmethod
    def of(cls, calls: Iterable[Call]) -> "Calls":
        """Return calls as numbers; those that are numbers already, as they are."""
        if isinstance(calls, Calls):
            return calls
        names, microbatches, lags = zip(*found, strict=True) if (found := tuple(calls)) else ((), (), ())
        numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
        tasks = np.fromiter(map(numbers.__getitem__, names), integer_type(len(numbers)), len(names))
        known = [NO_MICROBATCH if number is None else number for number in microbatches]
        columns = (narrowed(np.array(column, np.int64)) for column in (known, lags))
        return cls(tuple(numbers), tasks, *columns)

    @classmethod
    def joined(cls, *parts: Iterable[Call]) -> "Calls":
        """Return all calls of the parts, one part after the other."""
        found, numbers = [cls.of(part) for part in parts], dict[str, int]()
        of_parts = [[numbers.setdefault(name, len(numbers)) for name in part.names] for part in found]
        kind = integer_type(len(numbers))
        tasks = [np.array(own, kind).take(part.tasks) for own, part in zip(of_parts, found, strict=True)]
        others = zip(*[part.columns[1:] for part in found], strict=True)
        return cls(tuple(numbers), np.concatenate(tasks), *map(np.concatenate, others))

    @cached_property
    def key(self) -> "CallsKey":
        """Return what tells calls from others, and is soon hashed and compared."""
        return CallsKey(self.names, self.columns)

    @property
    def columns(self) -> tuple[Column, ...]:
        """Return tasks, micro-batches and lags."""
        return self.tasks, self.microbatches, self.lags

    def with_columns(self, *columns: Column) -> Self:
        """Return other calls of the same names."""
        tasks, microbatches, lags = columns
        return replace(self, tasks=tasks, microbatches=microbatches, lags=lags)

    def rows(self) -> Iterator[Call]:
        """Yield the calls."""
        microbatches = (None if number == NO_MICROBATCH else number for number in self.microbatches.tolist())
        rows = zip(map(self.names.__getitem__, self.tasks.tolist()), microbatches, self.lags.tolist(), strict=True)
        return map(partial(tuple.__new__, Call), rows)  # as ``Call`` does, without a function in between

    def later(self, microbatches: int) -> Self:
        """Return the same calls for micro-batches later; those without one stay."""
        moved = np.where(self.microbatches == NO_MICROBATCH, NO_MICROBATCH, widened(self.microbatches) + microbatches)
        return replace(self, microbatches=narrowed(moved))

    def without(self, names: Collection[str]) -> Self:
        """Return the calls of other tasks than these."""
        stays = [name not in names for name in self.names]
        if all(stays):
            return self
        return self.taken(np.array(stays, np.bool_).take(self.tasks)) if any(stays) else self[:0]

    def with_inserted(self, before: Mapping[int, Iterable[Call]]) -> "Calls":
        """Return the calls with other calls before some of them."""
        edges = [0, *sorted(before), len(self)]
        parts = [(self[begin:end], before.get(end, ())) for begin, end in pairwise(edges)]
        return Calls.joined(*chain.from_iterable(parts))

    @property
    def are_different(self) -> bool:
        """Return whether no task is called twice for one micro-batch."""
        numbered = self.microbatches != NO_MICROBATCH
        tasks, microbatches = widened(self.tasks[numbered]), self.microbatches[numbered]
        return len(distinct_values(tasks * (int(microbatches.max(initial=0)) + 1) + microbatches)) == len(tasks)

    def numbered(self, names: Collection[str]) -> Integers:
        """Return the place of each call's task in other names. Raises KeyError where a task that is called is none."""
        if names == self.names:
            return self.tasks
        numbers = {name: number for number, name in enumerate(names)}
        if not numbers.keys() >= set(self.names):
            numbers = dict.fromkeys(self.names, 0) | {name: numbers[name] for name in self.called()}
        of_names = np.array(list(map(numbers.__getitem__, self.names)), integer_type(len(names)))
        return of_names.take(self.tasks)

    @cached_property
    def first_calls(self) -> Mapping[str, int]:
        """Return the first call of each task, in their order."""
        first = first_places(self.tasks, len(self.names))
        called = np.argsort(first)[: np.count_nonzero(first < len(self))]
        return dict(zip(map(self.names.__getitem__, called.tolist()), first[called].tolist(), strict=True))

    def called(self) -> list[str]:
        """Return the tasks that are called, in the order of their names here."""
        return list(compress(self.names, np.bincount(self.tasks, minlength=len(self.names)).tolist()))

    def counts(self) -> Mapping[str, int]:
        """Return how many calls of each task there are, in the order of their first calls."""
        return self._counts

    @cached_property
    def _counts(self) -> Mapping[str, int]:
        counts = dict(zip(self.names, np.bincount(self.tasks, minlength=len(self.names)).tolist(), strict=True))
        return {name: counts[name] for name in self.first_calls}


class CallsKey(Struct, frozen=True, dict=True, eq=False):
    """Calls as a key of a mapping: equal to that of the same calls. Its hash is that of some of them."""

    names: tuple[str, ...]
    columns: tuple[Column, ...]

    @cached_property
    def _hash(self) -> int:
        num_calls = len(self.columns[0])
        some = slice(None, None, 1 + num_calls // _HASHED)
        return hash((self.names, num_calls, *[widened(column[some]).tobytes() for column in self.columns]))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, CallsKey):
            return NotImplemented
        pairs = zip(self.columns, other.columns, strict=True)
        return self.names == other.names and all(np.array_equal(mine, theirs) for mine, theirs in pairs)


def task_at(calls: Sequence[Call], place: int) -> str:
    """Return the task of one call; of calls that are numbers, no record is made."""
    return calls.names[calls.tasks[place]] if isinstance(calls, Calls) else calls[place].task


def num_ops_of(program: Program) -> int:
    """Return how many ops a rank with this program runs."""
    return sum(count * len(program.tasks[name].ops) for name, count in Calls.of(program.calls).counts().items())
