"""Lifetimes of buffers: the rule by which both backends count memory.

Memory is counted in issue order, as a caching allocator of an asynchronous device counts it. An instance is born just
before the issue of the first op that writes it, and dies just after the issue of the last op that uses it. Persistent
buffers always live.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from sim.plan.facts.repetition import CodedCalls
from sim.plan.words.buffer import Scope
from sim.plan.words.program import Program
from sim.sorting import distinct_values

Ints = NDArray[np.int64]


class Ends(NamedTuple):
    """Births or deaths in one call: the op of the task, and the buffer by its place in the program."""

    op: Ints
    buffer: Ints


_NONE: Final = Ends(np.zeros(0, np.int64), np.zeros(0, np.int64))


class CallLife(Struct, frozen=True, dict=True, eq=False):
    """The buffers that are born, and those that die, in one call. ``names``: of the program's buffers.

    A MICROBATCH buffer belongs to the call's micro-batch; a STEP buffer has one instance.
    """

    names: Sequence[str]
    born: Ends = _NONE
    dead: Ends = _NONE

    @cached_property
    def births(self) -> tuple[tuple[int, str], ...]:
        """Return the births as (op of the task, buffer), in issue order."""
        return self._named(self.born)

    @cached_property
    def deaths(self) -> tuple[tuple[int, str], ...]:
        """Return the deaths as (op of the task, buffer), in issue order."""
        return self._named(self.dead)

    def _named(self, ends: Ends) -> tuple[tuple[int, str], ...]:
        return tuple(sorted(zip(ends.op.tolist(), map(self.names.__getitem__, ends.buffer.tolist()), strict=True)))


class Lifetimes(Struct, frozen=True, eq=False):
    """The lives of a program's calls, in call order: call c has ``kinds[of_call[c]]``. Most calls share a few."""

    kinds: tuple[CallLife, ...]
    of_call: NDArray[np.int64]

    def __iter__(self) -> Iterator[CallLife]:
        return map(self.kinds.__getitem__, self.of_call.tolist())


_Kinds = tuple[CallLife, ...]


class KnownLives(Struct, frozen=True):
    """The lives found so far: programs that share tasks and buffers share kinds of lives if their orders are equal."""

    _kinds: dict[tuple[object, ...], tuple[Program, tuple[_Kinds, list[int]]]] = field(default_factory=dict)

    def kinds_of(self, program: Program, orders: Sequence[Ints], step: Ints, of_call: Ints) -> tuple[_Kinds, list[int]]:
        """Return the kinds of lives of a program's calls.

        They are those of each sequence of tasks in ``orders``, and last those of some of the calls in ``step``, which
        touch STEP buffers; the places of these in it come second. ``of_call``: the kind that each of these would have.
        """
        of_tasks = [tasks.tobytes() for tasks in orders]
        key = id(program.tasks), id(program.buffers), of_call.tobytes(), step.tobytes(), *of_tasks
        if key not in self._kinds:  # kept with the program, so that no others get their identities
            self._kinds[key] = program, _kinds(program, orders, step, of_call)
        return self._kinds[key][1]


def lifetimes(program: Program, known: KnownLives | None = None) -> Lifetimes:
    """Return the births and deaths of buffers in every call of a program. ``known``: what was found so far."""
    known, coded, uses = known or KnownLives(), CodedCalls.of(program), program.touches.uses
    of_call, num_kinds, orders = np.zeros(len(coded.tasks), dtype=np.int64), 0, list[Ints]()
    for calls in coded.by_sequence():
        orders.append(coded.tasks[calls[0]])
        of_call[calls] = num_kinds + np.arange(len(orders[-1]))
        num_kinds += len(orders[-1])
    in_step = np.bincount(uses.task[program.touches.is_of[Scope.STEP][uses.buffer]], minlength=len(program.tasks))
    step = np.flatnonzero(in_step[coded.tasks])
    kinds, ending = known.kinds_of(program, orders, coded.tasks[step], of_call[step])
    of_call[step[ending]] = np.arange(num_kinds, len(kinds))
    return Lifetimes(kinds, of_call)


def _kinds(program: Program, orders: Sequence[Ints], step: Ints, of_call: Ints) -> tuple[_Kinds, list[int]]:
    """Return kinds of lives (see ``KnownLives.kinds_of``)."""
    names, kinds = tuple(program.buffers), list[CallLife]()
    for tasks in orders:
        ends = _ends(program, tasks, Scope.MICROBATCH)
        kinds += [CallLife(names, *ends.get(place, ())) for place in range(len(tasks))]
    in_step = _ends(program, step, Scope.STEP)
    for place, (born, dead) in in_step.items():
        before = kinds[of_call[place]]
        kinds.append(CallLife(names, _joined(before.born, born), _joined(before.dead, dead)))
    return tuple(kinds), [*in_step]


def _ends(program: Program, tasks: Ints, scope: Scope) -> dict[int, tuple[Ends, Ends]]:
    """Return births and deaths, by place, for tasks that are called in this order on the same instances.

    The first call of a task and its last decide. Places without any are left out.
    """
    touches, uses = program.touches, program.touches.uses
    places, is_called = np.arange(len(tasks)), np.zeros(len(program.tasks), np.bool_)
    first, last = np.zeros((2, len(program.tasks)), np.int64)
    is_called[tasks], first[tasks[::-1]], last[tasks] = True, places[::-1], places  # of several writes the last stays
    rows = np.flatnonzero(touches.is_of[scope][uses.buffer] & is_called[uses.task])
    task, buffer = uses.task[rows], uses.buffer[rows]
    born, dead = np.full(touches.num_buffers, len(tasks)), np.full(touches.num_buffers, -1)
    np.minimum.at(born, buffer, first[task])
    np.maximum.at(dead, buffer, last[task])
    births, deaths = (
        _by_place(place[is_end], Ends((op - touches.first_op[uses.task])[rows][is_end], buffer[is_end]))
        for place, op, is_end in (
            (first[task], uses.first, first[task] == born[buffer]),
            (last[task], uses.last, last[task] == dead[buffer]),
        )
    )
    return {place: (births.get(place, _NONE), deaths.get(place, _NONE)) for place in sorted({*births, *deaths})}


def _by_place(place: Ints, ends: Ends) -> Mapping[int, Ends]:
    """Return births or deaths by the place of their call."""
    return {at: Ends(*[column[place == at] for column in ends]) for at in distinct_values(place).tolist()}


def _joined(a: Ends, b: Ends) -> Ends:
    return Ends(*map(np.concatenate, zip(a, b, strict=True)))
