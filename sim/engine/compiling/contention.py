"""Which ops may ever meet another one on a resource. The others have fixed durations and can be coalesced."""

from collections.abc import Callable, Mapping
from functools import cached_property

from msgspec import Struct, field

from sim.engine.compiling.graph import PricedTask
from sim.engine.prices.activity import Resource
from sim.plan.words.op import Collective, Op
from sim.plan.words.program import Program


class Contention(Struct, frozen=True):
    """Where ops may compete.

    ``contended``: resources with more than one user. ``exposed_from[rank]``: the first call of a coalescing task that
    may meet others there. Before this call, the users have the resource to themselves.
    """

    contended: frozenset[Resource]
    exposed_from: Mapping[int, int]


def find_contention(
    programs: Mapping[int, Program],
    priced: Mapping[int, Mapping[str, PricedTask]],
    user_of: Callable[[int, Collective], int],
) -> Contention:
    """Return where ops of different streams or ranks may compete.

    ``programs`` and ``priced`` are per simulated rank. ``user_of`` names one simulated rank for all that take part in
    a collective: on one stream they run one at a time. A side task, which does not coalesce, cannot meet coalescing
    calls that come before the one that it waits for. Messages may meet any call.
    """
    main: dict[Resource, set[tuple[int, str]]] = {}
    side: dict[Resource, set[_Side]] = {}
    of_tasks = {id(program.tasks): program for program in programs.values()}  # which ranks share
    known = {key: _distinct_ops(program) for key, program in of_tasks.items()}
    for rank, program in programs.items():
        for name, coalesces, distinct in known[id(program.tasks)]:
            activities = priced[rank][name].activities
            for at, op in distinct.items():
                user, stream = user_of(rank, op) if isinstance(op, Collective) else rank, op.stream
                for resource, seconds in activities[at].demands:
                    if seconds <= 0:
                        continue
                    if coalesces:
                        main.setdefault(resource, set()).add((user, stream))
                    else:
                        side.setdefault(resource, set()).add(_Side(user, stream, rank, name))
    contended = {r for r in (*main, *side) if len(_users(main, side, r)) > 1}
    exposed = dict.fromkeys(programs, 2**62)
    earliest = {rank: _Earliest(program) for rank, program in programs.items()}
    for resource in contended & main.keys():
        for rank, _ in main[resource]:
            meeting = _first_meeting(earliest[rank], rank, main[resource], side.get(resource, set()))
            exposed[rank] = min(exposed[rank], meeting)
    return Contention(frozenset(contended), exposed)


def _distinct_ops(program: Program) -> list[tuple[str, bool, dict[int, Op]]]:
    """Return each task's name, whether it coalesces, and the first by number of its ops that are alike.

    What is alike demands the same resources, however late its launch makes it.
    """
    found = []
    for name, task in program.tasks.items():
        firsts = dict(zip(reversed(program.distinct_ops.of_task[name]), range(len(task.ops) - 1, -1, -1), strict=True))
        found.append((name, task.traits.coalesces, {at: task.ops[at] for at in firsts.values()}))
    return found


class _Side(Struct, frozen=True):
    """A user of a resource beside coalescing tasks: an op on a stream of a task of a simulated rank.

    ``user`` is the one rank that stands for all that take part in the op.
    """

    user: int
    stream: str
    rank: int
    task: str


def _users(
    main: Mapping[Resource, set[tuple[int, str]]], side: Mapping[Resource, set[_Side]], r: Resource
) -> set[tuple[int, str]]:
    return main.get(r, set()) | {(found.user, found.stream) for found in side.get(r, ())}


def _first_meeting(earliest: "_Earliest", rank: int, mains: set[tuple[int, str]], sides: set[_Side]) -> int:
    """Return the first call of ``rank`` of a coalescing task that may meet another user.

    A collective of several simulated ranks begins no earlier than this rank's part of it; its other parts, whose tasks
    may have ops of other streams here, need no look.
    """
    if len(mains) > 1 or any(found.user != rank for found in sides):
        return 0
    streams = {stream for _, stream in mains}
    own = [found for found in sides if found.rank == rank]
    others = sorted({(found.task, found.stream) for found in own if found.stream not in streams})
    return min((earliest.start(name, stream) for name, stream in others), default=2**62)


class _Earliest(Struct, frozen=True, dict=True):
    """Lower bounds, as indices of coalescing calls, of what the ops of a program's side tasks wait for."""

    program: Program
    known: dict[str, list[int]] = field(default_factory=dict)

    @cached_property
    def _writers(self) -> Mapping[str, frozenset[str]]:
        """Return the tasks that write each buffer."""
        found: dict[str, set[str]] = {}
        for name, task in self.program.tasks.items():
            for written in {written for op in task.ops for written in op.writes}:
                found.setdefault(written, set()).add(name)
        return {written: frozenset(names) for written, names in found.items()}

    def start(self, name: str, stream: str) -> int:
        """Return a coalescing call that a task's ops on one stream wait for, 0 where there may be none."""
        ops = self.program.tasks[name].ops
        return min(call for op, call in zip(ops, self._of(name), strict=True) if op.stream == stream)

    def _of(self, name: str) -> list[int]:
        """Return, per op of a task's first call, the last call that it is known to wait for."""
        if name not in self.known:
            waits: list[int] = []
            ops = self.program.tasks[name].ops
            for j, op in enumerate(ops):
                before = [i for i in range(j) if ops[i].stream == op.stream or not _apart(op.reads, ops[i].writes)]
                waits.append(max([self._last_writer(name, op), *(waits[i] for i in before)]))
            self.known[name] = waits
        return self.known[name]

    def _last_writer(self, name: str, reader: Op) -> int:
        """Return the last coalescing call before a task's first call whose writes an op of it waits for.

        What another task wrote in between is waited for as well, and with it what that task waited for.
        """
        tasks = self.program.tasks
        writers = frozenset[str]().union(*(self._writers.get(read, ()) for read in reader.reads))
        latest, between = 0, dict[str, None]()
        for index, call in enumerate(self.program.calls):
            if call.task == name:
                break
            if call.task in writers and tasks[call.task].traits.coalesces:
                latest = index
            elif call.task in writers:
                between[call.task] = None
        for other in between:
            wrote = [j for j, op in enumerate(tasks[other].ops) if not _apart(reader.reads, op.writes)]
            latest = max(latest, min(self._of(other)[j] for j in wrote))
        return latest


def _apart(reads: tuple[str, ...], writes: tuple[str, ...]) -> bool:
    return set(reads).isdisjoint(writes)
