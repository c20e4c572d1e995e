"""Lifetimes of buffers: the rule by which both backends count memory.

Memory is counted in issue order, as a caching allocator of an asynchronous device counts it. An instance is born just
before the issue of the first op that writes it, and dies just after the issue of the last op that uses it. Persistent
buffers always live.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from sim.plan.facts.repetition import CodedCalls
from sim.plan.words.buffer import Scope
from sim.plan.words.program import Program, Task

Ints = NDArray[np.int64]

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


_Touches = dict[Scope, dict[str, _Touch]]

_Kinds = tuple[CallLife, ...]


class KnownLives(Struct, frozen=True):
    """The lives found so far: programs that share tasks, and call them in the same orders, share kinds of lives."""

    _touches: dict[int, tuple[Program, dict[str, _Touches]]] = field(default_factory=dict)
    _kinds: dict[tuple[object, ...], tuple[_Kinds, list[int]]] = field(default_factory=dict)

    def touches_of(self, program: Program) -> dict[str, _Touches]:
        """Return what each task of a program touches."""
        key = id(program.tasks)
        if key not in self._touches:  # kept with the program, so that no other tasks get their identity
            self._touches[key] = program, {name: _touches(program, task) for name, task in program.tasks.items()}
        return self._touches[key][1]

    def kinds_of(self, program: Program, orders: Sequence[Ints], step: Ints, of_call: Ints) -> tuple[_Kinds, list[int]]:
        """Return the kinds of lives of a program's calls.

        They are those of each sequence of tasks in ``orders``, and last those of some of the calls in ``step``, which
        touch STEP buffers; the places of these in it come second. ``of_call``: the kind that each of these would have.
        """
        key = id(program.tasks), of_call.tobytes(), step.tobytes(), *[tasks.tobytes() for tasks in orders]
        if key not in self._kinds:
            self._kinds[key] = _kinds(self.touches_of(program), orders, step, of_call)
        return self._kinds[key]


def lifetimes(program: Program, known: KnownLives | None = None) -> Lifetimes:
    """Return the births and deaths of buffers in every call of a program. ``known``: what was found so far."""
    known = known or KnownLives()
    coded, touches = CodedCalls.of(program), known.touches_of(program)
    of_call, num_kinds, orders = np.zeros(len(coded.tasks), dtype=np.int64), 0, list[Ints]()
    for calls in coded.by_sequence():
        orders.append(coded.tasks[calls[0]])
        of_call[calls] = num_kinds + np.arange(len(orders[-1]))
        num_kinds += len(orders[-1])
    in_step = np.array([bool(found[Scope.STEP]) for found in touches.values()], dtype=np.bool_)
    step = np.flatnonzero(in_step[coded.tasks])
    kinds, ending = known.kinds_of(program, orders, coded.tasks[step], of_call[step])
    of_call[step[ending]] = np.arange(num_kinds, len(kinds))
    return Lifetimes(kinds, of_call)


def _kinds(
    touches: Mapping[str, _Touches], orders: Sequence[Ints], step: Ints, of_call: Ints
) -> tuple[_Kinds, list[int]]:
    """Return kinds of lives (see ``KnownLives.kinds_of``)."""
    names, kinds = [*touches], list[CallLife]()
    of_microbatch, of_step = ({name: found[scope] for name, found in touches.items()} for scope in _BORN)
    for tasks in orders:
        kinds += _lives_of_sequence([names[task] for task in tasks.tolist()], of_microbatch)
    ends = _ends([names[task] for task in step.tolist()], of_step)
    for place, life in ends.items():
        before = kinds[of_call[place]]
        kinds.append(CallLife(_merge(before.births, life.births), _merge(before.deaths, life.deaths)))
    return tuple(kinds), [*ends]


def _touches(program: Program, task: Task) -> _Touches:
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
