"""Programs that are equal but for names: most stages of a pipeline are.

They share the buffers and tasks of the first of them. So what follows from tasks alone is found once: passes know by
the identity of a program's tasks that they have seen them.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import chain
from operator import attrgetter, itemgetter
from typing import Any, Final, get_args

from msgspec import Struct
from msgspec.structs import astuple, replace

from sim.plan.functions.gradients import is_recomputed
from sim.plan.words.buffer import Buffer, Initial
from sim.plan.words.calls import Calls
from sim.plan.words.distinct_ops import unseeded
from sim.plan.words.op import Compute, Op
from sim.plan.words.program import Namesake, Plan, Program

Form = tuple[object, ...]
"""All of a program but names and calls: what is left of its tasks, ops and buffers, buffers by their places."""


def sharing_tasks(plan: Plan) -> Plan:
    """Return a plan in which programs that are equal but for names have the buffers and tasks of the first of them.

    Calls name the tasks that they share; ``Program.named`` has each program's own.
    """
    outlines = [_outline(program) for program in plan.programs]
    tasks = [id(program.tasks) for program in plan.programs]
    counts = Counter(outline for _, outline in set(zip(tasks, outlines, strict=True)))
    firsts: dict[tuple[object, ...], list[tuple[Form, Program]]] = defaultdict(list)
    programs = [
        _sharing(_first(program, firsts[outline]), program) if counts[outline] > 1 else program
        for program, outline in zip(plan.programs, outlines, strict=True)
    ]
    return replace(plan, programs=tuple(programs))


def apart(plan: Plan) -> Plan:
    """Return a plan whose programs share no tasks: each has its own names for all that it has."""
    return replace(plan, programs=tuple(map(_under_own_names, plan.programs)))


def _under_own_names(program: Program) -> Program:
    return program if program.own is None else program.own.program


def _first(program: Program, firsts: list[tuple[Form, Program]]) -> Program:
    """Return the first program that is equal to one but for names; a new one joins ``firsts``."""
    for _, first in firsts:
        if first.tasks is program.tasks:
            return first
    form = _form(program)
    for known, first in firsts:
        if known == form:
            return first
    firsts.append((form, program))
    return program


def _outline(program: Program) -> tuple[object, ...]:
    """Return what is soon seen to differ in most programs that are not equal but for names.

    Buffers that a program releases are told by their names, as few release any.
    """
    tasks = tuple((task.phase, len(task.ops)) for task in program.tasks.values())
    return tuple(program.role), program.released, tasks, len(program.buffers)


def _sharing(first: Program, program: Program) -> Program:
    """Return a program with the buffers and tasks of one that is equal but for names."""
    if program.tasks is first.tasks:
        return program
    shared = dict(zip(program.tasks, first.tasks, strict=True))
    calls = Calls.of(program.calls)
    return first.calling(
        Calls(tuple(map(shared.__getitem__, calls.names)), *calls.columns),
        role=program.role,
        released=program.released,
        own=Namesake(tuple(first.tasks), partial(_under_own_names, program)),
    )


def _form(program: Program) -> Form:
    """Return a program's form."""
    places = {name: place for place, name in enumerate(program.buffers)}
    ops = [op for task in program.tasks.values() for op in task.ops]
    sides = [*map(_READS, ops), *map(_WRITES, ops)]
    return (
        _outline(program),
        list(map(type, ops)), [_FACTS[type(op)](astuple(op)) for op in ops], list(map(is_recomputed, ops)),
        [unseeded(op.attributes) for op in ops if isinstance(op, Compute)],
        list(map(len, sides)), list(map(places.get, chain.from_iterable(sides))),
        _facts_of(Buffer, program.buffers.values()), _initials(program.buffers.values()),
    )  # fmt: skip


def _initials(buffers: Iterable[Buffer]) -> list[object]:
    """Return what is left of the initial values of buffers, with how many buffers each is made of."""
    initials = [(place, buffer.initial) for place, buffer in enumerate(buffers) if buffer.initial is not None]
    facts = _facts_of(Initial, [initial for _, initial in initials])
    return [(place, len(initial.of), left) for (place, initial), left in zip(initials, facts, strict=True)]


def _facts_of(kind: type[Struct], records: Iterable[Struct]) -> list[object]:
    return list(map(_FACTS[kind], map(astuple, records)))


def _all_but(kind: type[Struct], *names: str) -> Callable[[tuple[Any, ...]], object]:
    """Return what takes the fields of a record but some from a tuple of all of them."""
    return itemgetter(*[place for place, name in enumerate(kind.__struct_fields__) if name not in names])


_READS: Final = attrgetter("reads")
_WRITES: Final = attrgetter("writes")
_FACTS: Final[Mapping[type[Struct], Callable[[tuple[Any, ...]], object]]] = {
    Buffer: _all_but(Buffer, "name", "initial"),
    Initial: _all_but(Initial, "source", "of"),
    **{kind: _all_but(kind, "name", "reads", "writes", "attributes") for kind in get_args(Op)},
}
"""What is left of a record of each class without names, and without what is looked at apart."""
