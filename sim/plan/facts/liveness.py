"""Lifetimes of buffers: the rule by which both backends count memory.

Memory is counted in issue order, as a caching allocator of an asynchronous device counts it. An instance is born just
before the issue of the first op that writes it, and dies just after the issue of the last op that uses it. Persistent
buffers always live.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from sim.plan.facts.repetition import CodedCalls
from sim.plan.words.buffer import Scope
from sim.plan.words.program import Program, Task

_BORN: Final = (Scope.MICROBATCH, Scope.STEP)
"""Scopes of buffers that do not always live."""


class CallLife(Struct, frozen=True):
    """The buffers that are born, and those that die, in one call: (op of the task, buffer), in issue order.

    A MICROBATCH buffer belongs to the call's micro-batch; a STEP buffer has one instance.
    """

    births: tuple[tuple[int, str], ...] = ()
    deaths: tuple[tuple[int, str], ...] = ()


class Lifetimes(Struct, frozen=True, eq=False):
    """The lives of a program's calls, in call order: call c has ``kinds[of_call[c]]``. Most calls share a few."""

    kinds: tuple[CallLife, ...]
    of_call: NDArray[np.int64]

    def __iter__(self) -> Iterator[CallLife]:
        return map(self.kinds.__getitem__, self.of_call.tolist())


class _Touch(Struct, frozen=True):
    first: int
    last: int


def lifetimes(program: Program) -> Lifetimes:
    """Return the births and deaths of buffers in every call of a program."""
    coded, names = CodedCalls.of(program), [*program.tasks]
    of_task = {name: _touches(program, task) for name, task in program.tasks.items()}
    touches = {scope: {name: found[scope] for name, found in of_task.items()} for scope in _BORN}
    of_call, kinds = np.zeros(len(coded.tasks), dtype=np.int64), list[CallLife]()
    for calls in coded.by_sequence():
        tasks = [names[task] for task in coded.tasks[calls[0]].tolist()]
        of_call[calls] = len(kinds) + np.arange(len(tasks))
        kinds += _lives_of_sequence(tasks, touches[Scope.MICROBATCH])
    step = np.flatnonzero(np.array([bool(touches[Scope.STEP][name]) for name in names])[coded.tasks])
    for place, life in _ends([names[task] for task in coded.tasks[step].tolist()], touches[Scope.STEP]).items():
        before = kinds[of_call[step[place]]]
        of_call[step[place]] = len(kinds)
        kinds.append(CallLife(_merge(before.births, life.births), _merge(before.deaths, life.deaths)))
    return Lifetimes(tuple(kinds), of_call)


def _touches(program: Program, task: Task) -> dict[Scope, dict[str, _Touch]]:
    """Return the first and the last op of a task that use each of its buffers, by the buffers' scopes."""
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for j, op in enumerate(task.ops):
        for name in op.reads + op.writes:
            first.setdefault(name, j)
            last[name] = j
    found: dict[Scope, dict[str, _Touch]] = {scope: {} for scope in Scope}
    for name, j in first.items():
        found[program.buffers[name].scope][name] = _Touch(j, last[name])
    return found


def _lives_of_sequence(tasks: Sequence[str], touches: Mapping[str, Mapping[str, _Touch]]) -> list[CallLife]:
    """Return the births and deaths for tasks that are called in this order on the same instances."""
    ends = _ends(tasks, touches)
    return [ends.get(place, CallLife()) for place in range(len(tasks))]


def _ends(tasks: Sequence[str], touches: Mapping[str, Mapping[str, _Touch]]) -> dict[int, CallLife]:
    """Return the same of the places that have any: the first call of a task and its last decide."""
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for place, task in enumerate(tasks):
        first.setdefault(task, place)
        last[task] = place
    born: dict[str, int] = {}
    dead: dict[str, int] = {}
    for task, earliest in first.items():
        for name in touches[task]:
            born[name] = min(born.get(name, earliest), earliest)
            dead[name] = max(dead.get(name, last[task]), last[task])
    births: dict[int, list[tuple[int, str]]] = {}
    deaths: dict[int, list[tuple[int, str]]] = {}
    for name, place in born.items():
        births.setdefault(place, []).append((touches[tasks[place]][name].first, name))
    for name, place in dead.items():
        deaths.setdefault(place, []).append((touches[tasks[place]][name].last, name))
    return {
        place: CallLife(tuple(sorted(births.get(place, ()))), tuple(sorted(deaths.get(place, ()))))
        for place in {*births, *deaths}
    }


def _merge(a: Iterable[tuple[int, str]], b: Iterable[tuple[int, str]]) -> tuple[tuple[int, str], ...]:
    return tuple(sorted((*a, *b)))
