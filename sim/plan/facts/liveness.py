"""Lifetimes of buffers: the rule by which both backends count memory.

Memory is counted in issue order, as a caching allocator of an asynchronous device counts it. An instance is born just
before the issue of the first op that writes it, and dies just after the issue of the last op that uses it. Persistent
buffers always live.
"""

from collections.abc import Iterable, Sequence

from msgspec import Struct

from sim.plan.words.buffer import Scope
from sim.plan.words.program import Program, Task


class CallLife(Struct, frozen=True):
    """The buffers that are born, and those that die, in one call: (op of the task, buffer), in issue order.

    A MICROBATCH buffer belongs to the call's micro-batch; a STEP buffer has one instance.
    """

    births: tuple[tuple[int, str], ...] = ()
    deaths: tuple[tuple[int, str], ...] = ()


class _Touch(Struct, frozen=True):
    first: int
    last: int


def lifetimes(program: Program) -> list[CallLife]:
    """Return the births and deaths of buffers in every call of a program, in call order."""
    touches = {
        scope: {name: _touches(program, task, scope) for name, task in program.tasks.items()}
        for scope in (Scope.MICROBATCH, Scope.STEP)
    }
    by_microbatch: dict[int | None, list[int]] = {}
    for index, call in enumerate(program.calls):
        by_microbatch.setdefault(call.microbatch, []).append(index)
    lives = [CallLife()] * len(program.calls)
    known: dict[tuple[str, ...], list[CallLife]] = {}
    for calls in by_microbatch.values():
        tasks = tuple(program.calls[i].task for i in calls)
        if tasks not in known:
            known[tasks] = _lives_of_sequence(tasks, touches[Scope.MICROBATCH])
        for index, life in zip(calls, known[tasks], strict=True):
            lives[index] = life
    step = [i for i, call in enumerate(program.calls) if touches[Scope.STEP][call.task]]
    for index, life in zip(
        step, _lives_of_sequence([program.calls[i].task for i in step], touches[Scope.STEP]), strict=True
    ):
        lives[index] = CallLife(_merge(lives[index].births, life.births), _merge(lives[index].deaths, life.deaths))
    return lives


def _touches(program: Program, task: Task, scope: Scope) -> dict[str, _Touch]:
    """Return the first and the last op of a task that use each of its buffers of a scope."""
    found: dict[str, _Touch] = {}
    for j, op in enumerate(task.ops):
        for name in (*op.reads, *op.writes):
            if program.buffers[name].scope is scope:
                found[name] = _Touch(found[name].first if name in found else j, j)
    return found


def _lives_of_sequence(tasks: Sequence[str], touches: dict[str, dict[str, _Touch]]) -> list[CallLife]:
    """Return the births and deaths for tasks that are called in this order on the same instances."""
    born: dict[str, int] = {}
    last: dict[str, int] = {}
    for position, task in enumerate(tasks):
        for name in touches[task]:
            born.setdefault(name, position)
            last[name] = position
    births: list[list[tuple[int, str]]] = [[] for _ in tasks]
    deaths: list[list[tuple[int, str]]] = [[] for _ in tasks]
    for name, position in born.items():
        births[position].append((touches[tasks[position]][name].first, name))
        deaths[last[name]].append((touches[tasks[last[name]]][name].last, name))
    return [CallLife(tuple(sorted(b)), tuple(sorted(d))) for b, d in zip(births, deaths, strict=True)]


def _merge(a: Iterable[tuple[int, str]], b: Iterable[tuple[int, str]]) -> tuple[tuple[int, str], ...]:
    return tuple(sorted((*a, *b)))
