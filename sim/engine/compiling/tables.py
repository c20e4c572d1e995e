"""What the compiler knows of each task before the first call."""

from collections.abc import Callable, Mapping, Sequence, Set
from functools import cached_property
from itertools import filterfalse
from typing import Any, Final

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace
from numpy.typing import NDArray

from sim.engine.compiling.contention import Contention
from sim.engine.compiling.graph import NodeKind, OpNodes, PricedTask, Wire
from sim.engine.compiling.shape import TaskShape
from sim.engine.prices.activity import Activity, Resource
from sim.integers import widened
from sim.plan.words.buffer import Scope
from sim.plan.words.calls import NO_MICROBATCH, Calls
from sim.plan.words.op import Channel, Collective, Op, Recv, Send, channel_of
from sim.plan.words.program import Program, Task
from sim.plan.words.touches import NEVER

_FIXED, _SHARED, _JOIN, _MEMBER = NodeKind.FIXED, NodeKind.SHARED, NodeKind.JOIN, NodeKind.MEMBER

MAIN_STREAM = "compute"

Ints = NDArray[np.int64]

Writer = tuple[str, ...]
"""The tasks that write a buffer: one, or several as where a backward is in one piece for some micro-batches."""

Writers = Mapping[str, Writer]

NO_CHANNEL: Final[Channel] = ("", 0, "", False)

Recipe = tuple[Any, NodeKind, float, Activity]
"""What a node of an op, or of one like it, needs: the op, the node's kind, what it lasts, and its activity."""


class Shared(Struct, frozen=True, eq=False):
    """Buffers that the same tasks write and touch on several streams; ``each``: with an instance per micro-batch."""

    buffers: tuple[str, ...]
    tasks: tuple[str, ...]
    each: bool


class TaskTable(Struct, dict=True):
    """One task of one simulated rank.

    ``main``: its calls coalesce; ``may_coalesce``: nobody wants its ops one by one; ``candidate``: its calls may
    become blocks; ``contended``: an op of it may meet another on a resource. ``recipe`` has one per op.
    ``sources`` lists (writing task, its op, my reading ops) for buffers that one call writes and others
    read; ``single_sources`` those whose writing task is never a block. ``tracked`` are the buffers that
    several calls write and several streams touch; ``shared`` has them by the tables of the tasks that touch them,
    ``shared_each`` those of them with an instance per micro-batch.
    ``first_sources`` are the single sources that its first op on the main stream reads, ``late_sources`` the
    others. ``steady``: its links can be those of the steady state (see the compiler).
    ``on_main``: on a stream that coalescing tasks use. ``message``: one send or receive alone; ``channel`` is then its
    axis, offset, direction, is a send, and ``wire`` what stands for its messages where they come in order (see
    channels). ``channels``: its sends and receives by channel. ``last_ops``: each stream's last op.
    ``joint_ops``: collectives of several simulated ranks. ``calls``, by micro-batch, and ``last_call`` are filled in
    while compiling.
    """

    task: Task
    shape: TaskShape
    main: bool
    candidate: bool
    main_starts_first: dict[str, bool]
    main_ends_last: dict[str, bool]
    per_microbatch: dict[str, bool]
    on_main: bool
    message: bool
    channel: Channel
    channels: dict[Channel, list[int]]
    last_ops: tuple[tuple[str, int], ...]
    activities: tuple[Activity, ...] = ()
    may_coalesce: bool = True
    contended: bool = False
    recipe: list[Recipe] = []
    joint_ops: tuple[int, ...] = ()
    wire: Wire | None = None
    tracked: tuple[str, ...] = ()
    shared: "list[tuple[Shared, list[TaskTable]]]" = field(default_factory=list)
    shared_each: "list[tuple[Shared, list[TaskTable]]]" = field(default_factory=list)
    sources: "list[tuple[TaskTable, int, tuple[int, ...]]]" = field(default_factory=list)
    single_sources: "list[tuple[TaskTable, int, tuple[int, ...]]]" = field(default_factory=list)
    first_sources: "list[tuple[TaskTable, int, tuple[int, ...]]]" = field(default_factory=list)
    late_sources: "list[tuple[TaskTable, int, tuple[int, ...]]]" = field(default_factory=list)
    steady: bool = False
    calls: dict[int | None, int] = field(default_factory=dict)
    last_call: int = -1

    @cached_property
    def nodes(self) -> OpNodes:
        """Return the nodes of a call's ops, one each."""
        return OpNodes.of(
            self.shape.predecessors, [(kind, lasting, activity) for _, kind, lasting, activity in self.recipe]
        )

    @cached_property
    def messages(self) -> dict[Channel, list[tuple[int, float]]]:
        """Return the sends and receives of each channel, by number, with the latency of each."""
        activities = self.activities
        return {channel: [(j, activities[j].latency_s) for j in ops] for channel, ops in self.channels.items()}

    @cached_property
    def joint(self) -> list[tuple[int, Collective, Activity]]:
        """Return the collectives of several simulated ranks, by number."""
        return [(j, op, activity) for j, (op, kind, _, activity) in enumerate(self.recipe) if kind is NodeKind.MEMBER]


class _Links(Struct, frozen=True):
    """What a task waits for by its buffers: ``tracked`` ones, and (writing task, its op, reading ops) of others.

    ``shared``: the tracked ones by the tasks that touch them.
    """

    tracked: tuple[str, ...]
    sources: tuple[tuple[str, int, tuple[int, ...]], ...]
    shared: tuple[Shared, ...]


class KnownTasks(Struct, frozen=True):
    """What tables say whatever the prices, found once for programs that share tasks. They must live as long as this."""

    _tables: dict[int, dict[str, TaskTable]] = field(default_factory=dict)
    _writers: dict[int, Writers] = field(default_factory=dict)
    _links: dict[tuple[int, frozenset[Writer]], dict[str, _Links]] = field(default_factory=dict)

    def tables(self, program: Program, shapes: Mapping[str, TaskShape]) -> Mapping[str, TaskTable]:
        """Return the table of each task of a program, as far as it follows from the task alone."""
        key = id(program.tasks)
        if key not in self._tables:
            streams, flags = _main_streams(program, shapes), program.touches.is_of[Scope.MICROBATCH].tolist()
            each = dict(zip(program.buffers, flags, strict=False))
            self._tables[key] = {
                name: _unpriced(task, shapes[name], streams, each) for name, task in program.tasks.items()
            }
        return self._tables[key]

    def links(self, program: Program, shapes: Mapping[str, TaskShape]) -> Mapping[str, _Links]:
        """Return what each task of a program waits for."""
        key = id(program.tasks)
        if key not in self._writers:
            self._writers[key] = _writers(program)
        writers = self._writers[key]
        once = _called_once(program, frozenset(writers.values()))
        if (key, once) not in self._links:
            buffers = {buffer: group for buffer, group in writers.items() if group in once}
            self._links[key, once] = _links(program, shapes, buffers)
        return self._links[key, once]


def tabulate(
    program: Program,
    priced: Mapping[str, PricedTask],
    shapes: Mapping[str, TaskShape],
    contention: Contention,
    single: frozenset[str],
    known: KnownTasks,
    *,
    joint: Callable[[Collective], bool],
    in_team: bool = False,
) -> dict[str, TaskTable]:
    """Return a table per task of a simulated rank's program.

    ``single`` are tasks that must not become blocks; ``joint`` says whether a collective has several simulated ranks;
    ``in_team``: calls may be blocks with all of them (see teams).
    """
    coalescable = {_FIXED, _SHARED, *([_MEMBER] if in_team else [])}
    recipes, tables = _Recipes(contention.contended, joint), dict[str, TaskTable]()
    for name, table in known.tables(program, shapes).items():
        recipe = recipes.of_ops(table.task.ops, program.distinct_ops.of_task[name], priced[name])
        kinds = {kind for _, kind, _, _ in recipe}
        tables[name] = replace(
            table,
            activities=priced[name].activities,
            may_coalesce=name not in single,
            candidate=table.candidate and name not in single and kinds <= coalescable,
            contended=_SHARED in kinds,
            recipe=recipe,
            joint_ops=tuple(j for j, (_, kind, _, _) in enumerate(recipe) if kind is _MEMBER)
            if _MEMBER in kinds else (),
            calls={},
        )  # fmt: skip
    _connect(tables, known.links(program, shapes))
    if in_team:
        for table in tables.values():
            table.steady = False
    return tables


def _main_streams(program: Program, shapes: Mapping[str, TaskShape]) -> set[str]:
    """Return the streams of the tasks that coalesce."""
    return {stream for name, task in program.tasks.items() if task.traits.coalesces for stream in shapes[name].first}


def _unpriced(task: Task, shape: TaskShape, streams: Set[str], per_microbatch: dict[str, bool]) -> TaskTable:
    """Return a task's table without its prices, of which some may keep its calls from becoming blocks.

    ``streams``: those of the tasks that coalesce; ``per_microbatch``: of all buffers.
    """
    op, first, last = task.ops[0], shape.first.get(MAIN_STREAM), shape.last.get(MAIN_STREAM)
    sends = any(isinstance(op, Send) for op in task.ops)
    return TaskTable(
        task=task,
        shape=shape,
        main=task.traits.coalesces,
        candidate=task.traits.coalesces and not sends and first is not None and shape.first.keys() == streams,
        main_starts_first={s: first is not None and shape.descends(j, first) for s, j in shape.first.items()},
        main_ends_last={s: last is not None and shape.descends(last, j) for s, j in shape.last.items()},
        per_microbatch=per_microbatch,
        on_main=not streams.isdisjoint(shape.first),
        message=len(task.ops) == 1 and isinstance(op, Send | Recv),
        channel=channel_of(op) if isinstance(op, Send | Recv) else NO_CHANNEL,
        channels=_channels(task.ops),
        last_ops=tuple(shape.last.items()),
    )


def _channels(ops: Sequence[Op]) -> dict[Channel, list[int]]:
    """Return the sends and receives of each channel, by number."""
    found: dict[Channel, list[int]] = {}
    for j, op in enumerate(ops):
        if isinstance(op, Send | Recv):
            found.setdefault(channel_of(op), []).append(j)
    return found


class _Recipes(Struct, frozen=True):
    """Recipes of ops, found once for those that are alike and have one activity.

    ``contended``: resources on which ops may meet; ``joint``: see ``tabulate``.
    """

    contended: Set[Resource]
    joint: Callable[[Collective], bool]
    _known: dict[int | tuple[int, int], Recipe] = {}

    def of_ops(self, ops: Sequence[Op], places: Sequence[int], priced: PricedTask) -> list[Recipe]:
        """Return the recipes of a task's ops. ``places``: theirs among the distinct ops of their program."""
        known, keys = self._known, priced.keys(places)
        found = dict(zip(keys, zip(ops, priced.activities, strict=True), strict=True))
        for key in found.keys() - known.keys():
            op, activity = found[key]
            kind = self._kind(op, activity)
            known[key] = op, kind, lasting_s(op, kind, activity), activity
        return list(map(known.__getitem__, keys))

    def _kind(self, op: Op, activity: Activity) -> NodeKind:
        if isinstance(op, Recv):
            return _JOIN
        if isinstance(op, Collective) and self.joint(op):
            return _MEMBER
        for resource, seconds in activity.demands:
            if resource in self.contended and seconds > 0:
                return _SHARED
        return _FIXED


def lasting_s(op: Op, kind: NodeKind, activity: Activity) -> float:
    """Return what the node of an op lasts: all of it, or the latency before it uses shared resources.

    A send's latency passes after it.
    """
    if kind is _FIXED:
        return activity.occupancy_s if isinstance(op, Send) else activity.duration_s
    return activity.latency_s if kind is _SHARED and not isinstance(op, Send) else 0.0


def _connect(tables: Mapping[str, TaskTable], links: Mapping[str, _Links]) -> None:
    """Say of every table where the buffers come from that its task reads from outside."""
    for name, table in tables.items():
        table.tracked = links[name].tracked
        table.message &= not table.tracked
        table.sources = [(tables[writer], op, readers) for writer, op, readers in links[name].sources]
        table.single_sources = [source for source in table.sources if not source[0].candidate]
        first = (table.shape.first.get(MAIN_STREAM, -1),)
        table.shared = [(shared, [tables[task] for task in shared.tasks]) for shared in links[name].shared]
        table.shared_each = [found for found in table.shared if found[0].each]
        table.first_sources = [source for source in table.single_sources if source[2] == first]
        table.late_sources = [source for source in table.single_sources if source[2] != first]
        table.steady = table.candidate and not table.shared_each


def _links(program: Program, shapes: Mapping[str, TaskShape], once: Writers) -> dict[str, _Links]:
    """Return what each task waits for. ``once``: buffers of which one call writes the instance of a micro-batch."""
    tracked = {name: tuple(filterfalse(once.__contains__, shapes[name].leaves)) for name in program.tasks}
    shared = _shared(program, tracked)
    return {name: _Links(tracked[name], _sources(name, shapes, once), tuple(shared[name])) for name in program.tasks}


def _shared(program: Program, tracked: Mapping[str, Sequence[str]]) -> Mapping[str, list[Shared]]:
    """Return the tracked buffers of each task, those together that the same tasks touch."""
    tasks_of: dict[str, list[str]] = {}
    for name, buffers in tracked.items():
        for buffer in buffers:
            tasks_of.setdefault(buffer, []).append(name)
    alike: dict[tuple[tuple[str, ...], bool], list[str]] = {}
    for buffer, tasks in tasks_of.items():
        each = program.buffers[buffer].scope is Scope.MICROBATCH
        alike.setdefault((tuple(tasks), each), []).append(buffer)
    found: dict[str, list[Shared]] = {name: [] for name in tracked}
    for (names, each), buffers in alike.items():
        shared = Shared(tuple(buffers), names, each)
        for name in names:
            found[name].append(shared)
    return found


def _writers(program: Program) -> Writers:
    """Return the tasks that write each buffer with an instance per micro-batch."""
    touches, uses, names, buffers = program.touches, program.touches.uses, [*program.tasks], [*program.buffers]
    rows = np.flatnonzero(touches.is_of[Scope.MICROBATCH][uses.buffer] & (uses.last_write != NEVER))
    found: dict[str, Writer] = {}
    for place, number in zip(uses.buffer[rows].tolist(), uses.task[rows].tolist(), strict=True):
        found[buffers[place]] = (*found.get(buffers[place], ()), names[number])
    return found


def _called_once(program: Program, groups: frozenset[Writer]) -> frozenset[Writer]:
    """Return the groups of tasks of which a program makes one call at most for any micro-batch."""
    calls = Calls.of(program.calls)
    cells = (widened(calls.microbatches) - NO_MICROBATCH) * len(calls.names) + calls.tasks
    counts = np.bincount(
        cells, minlength=len(calls.names) * (int(calls.microbatches.max(initial=0)) - NO_MICROBATCH + 1)
    )
    if counts.max(initial=0) <= 1 and all(len(group) == 1 for group in groups):
        return groups
    places = {name: place for place, name in enumerate(calls.names)}
    of_tasks = counts.reshape(-1, len(calls.names))
    called = {group: [places[name] for name in group if name in places] for group in groups}
    return frozenset(group for group, own in called.items() if of_tasks[:, own].sum(axis=1).max(initial=0) <= 1)


def _sources(
    name: str, shapes: Mapping[str, TaskShape], once: Mapping[str, Sequence[str]]
) -> tuple[tuple[str, int, tuple[int, ...]], ...]:
    """Return what a task reads that one earlier call wrote on another stream, each with its earliest readers."""
    shape = shapes[name]
    found: dict[tuple[str, int], list[int]] = {}
    read = [(buffer, readers, writer) for buffer, readers in shape.reads.items() for writer in once.get(buffer, ())]
    for buffer, readers, writer in read:
        if writer == name:
            continue
        op = shapes[writer].leaves[buffer][0]
        waiting = found.setdefault((writer, op), [])
        for j in readers:
            if shapes[writer].streams[op] != shape.streams[j] and not any(shape.descends(j, i) for i in waiting):
                waiting[:] = [i for i in waiting if not shape.descends(i, j)] + [j]
    return tuple((writer, op, tuple(waiting)) for (writer, op), waiting in found.items() if waiting)
