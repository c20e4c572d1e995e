"""Which ops may ever meet another one on a resource. The others have fixed durations and can be coalesced."""

from collections.abc import Mapping
from dataclasses import dataclass

from sim.engine.activity import Resource
from sim.engine.graph import PricedTask
from sim.plan.op import Op
from sim.plan.program import Phase, Program

MAIN_PHASES = (Phase.FORWARD, Phase.BACKWARD)


@dataclass(frozen=True, slots=True)
class Contention:
    """``contended``: resources with more than one user; ``exposed_from[rank]``: from which call on an op of a
    forward or backward may meet others there (before it, its users have the resource to themselves).
    """

    contended: frozenset[Resource]
    exposed_from: Mapping[int, int]


def find_contention(programs: Mapping[int, Program], priced: Mapping[int, Mapping[str, PricedTask]]) -> Contention:
    """Return where ops of different streams or ranks may compete.

    ``programs`` and ``priced`` are per simulated rank. A synchronisation at the end of the step cannot meet
    forwards and backwards that come before the one that it waits for; messages may meet any.
    """
    main: dict[Resource, set[tuple[int, str]]] = {}
    side: dict[Resource, set[tuple[int, str, str]]] = {}
    for rank, program in programs.items():
        for name, task in program.tasks.items():
            for op, activity in zip(task.ops, priced[rank][name].activities, strict=True):
                for resource, seconds in activity.demands:
                    if seconds <= 0:
                        continue
                    if task.phase in MAIN_PHASES:
                        main.setdefault(resource, set()).add((rank, op.stream))
                    else:
                        side.setdefault(resource, set()).add((rank, op.stream, name))
    contended = {r for r in (*main, *side) if len(_users(main, side, r)) > 1}
    exposed = dict.fromkeys(programs, 2**62)
    for resource in contended & main.keys():
        for rank, _ in main[resource]:
            meeting = _first_meeting(programs[rank], rank, main[resource], side.get(resource, set()))
            exposed[rank] = min(exposed[rank], meeting)
    return Contention(frozenset(contended), exposed)


def _users(
    main: Mapping[Resource, set[tuple[int, str]]], side: Mapping[Resource, set[tuple[int, str, str]]], r: Resource
) -> set[tuple[int, str]]:
    return main.get(r, set()) | {(rank, stream) for rank, stream, _ in side.get(r, ())}


def _first_meeting(program: Program, rank: int, mains: set[tuple[int, str]], sides: set[tuple[int, str, str]]) -> int:
    """Return the first call of ``rank`` whose forwards or backwards may meet another user."""
    if len(mains) > 1 or any(other != rank for other, _, _ in sides):
        return 0
    streams = {stream for _, stream in mains}
    names = {name for _, stream, name in sides if stream not in streams}
    return min((_earliest_start(program, name) for name in sorted(names)), default=2**62)


def _earliest_start(program: Program, name: str) -> int:
    """Return the call that a task's first call must wait for, as the first op of each stream reads what it writes."""
    first: dict[str, Op] = {}
    for op in program.tasks[name].ops:
        first.setdefault(op.stream, op)
    return min(_last_writer(program, name, op) for op in first.values())


def _last_writer(program: Program, name: str, reader: Op) -> int:
    """Return the last forward or backward before a task's first call that writes what an op of it reads, else 0."""
    writers = {
        other for other, task in program.tasks.items()
        if task.phase in MAIN_PHASES and any(not set(reader.reads).isdisjoint(op.writes) for op in task.ops)
    }  # fmt: skip
    latest = 0
    for index, call in enumerate(program.calls):
        if call.task == name:
            return latest
        if call.task in writers:
            latest = index
    return latest
