"""What the compiler knows of each task before the first call."""

from collections.abc import Callable, Mapping, Sequence, Set
from functools import cached_property
from itertools import filterfalse
from typing import Any, Final

import numpy as np
from msgspec import Struct, field
from msgspec.structs import asdict
from numpy.typing import NDArray

from sim.engine.compiling.contention import Contention
from sim.engine.compiling.graph import NodeKind, OpNodes, PricedTask, Wire
from sim.engine.compiling.shape import TaskShape
from sim.engine.prices.activity import Activity
from sim.plan.words.buffer import Scope
from sim.plan.words.calls import NO_MICROBATCH, Calls
from sim.plan.words.op import Channel, Collective, Op, Recv, Send, channel_of
from sim.plan.words.program import Program, Task
from sim.plan.words.touches import NEVER

MAIN_STREAM = "compute"

Ints = NDArray[np.int64]

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
    ``on_main``: on a stream that coalescing tasks use. ``sends``: it has one. ``message``: one send or receive alone;
    ``channel`` is then its axis, offset, direction, is a send, and ``wire`` what stands for its messages where they
    come in order (see channels). ``channels``: its sends and receives by channel. ``last_ops``: each stream's last op.
    ``joint_ops``: collectives of several simulated ranks. ``units`` and ``last_unit`` are filled in while compiling.
    """

    task: Task
    shape: TaskShape
    activities: tuple[Activity, ...]
    main: bool
    may_coalesce: bool
    candidate: bool
    contended: bool
    recipe: list[Recipe]
    main_starts_first: dict[str, bool]
    main_ends_last: dict[str, bool]
    per_microbatch: dict[str, bool]
    on_main: bool
    sends: bool
    message: bool
    is_send: bool
    channel: Channel
    channels: dict[Channel, list[int]]
    last_ops: tuple[tuple[str, int], ...]
    joint_ops: tuple[int, ...]
    wire: Wire | None = None
    tracked: tuple[str, ...] = ()
    shared: "list[tuple[Shared, list[TaskTable]]]" = field(default_factory=list)
    shared_each: "list[tuple[Shared, list[TaskTable]]]" = field(default_factory=list)
    sources: "list[tuple[TaskTable, int, tuple[int, ...]]]" = field(default_factory=list)
    single_sources: "list[tuple[TaskTable, int, tuple[int, ...]]]" = field(default_factory=list)
    first_sources: "list[tuple[TaskTable, int, tuple[int, ...]]]" = field(default_factory=list)
    late_sources: "list[tuple[TaskTable, int, tuple[int, ...]]]" = field(default_factory=list)
    steady: bool = False
    units: dict[int | None, int] = field(default_factory=dict)
    last_unit: int = -1

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


class _Outline(Struct, frozen=True):
    """What a table says of a task whatever its prices, for all programs that share it (fields as in TaskTable)."""

    main_starts_first: dict[str, bool]
    main_ends_last: dict[str, bool]
    per_microbatch: dict[str, bool]
    on_main: bool
    sends: bool
    is_send: bool
    channel: Channel
    channels: dict[Channel, list[int]]
    last_ops: tuple[tuple[str, int], ...]


class _Links(Struct, frozen=True):
    """What a task waits for by its buffers: ``tracked`` ones, and (writing task, its op, reading ops) of others.

    ``shared``: the tracked ones by the tasks that touch them.
    """

    tracked: tuple[str, ...]
    sources: tuple[tuple[str, int, tuple[int, ...]], ...]
    shared: tuple[Shared, ...]


class KnownTasks(Struct, frozen=True):
    """What tables say whatever the prices, found once for programs that share tasks. They must live as long as this."""

    _outlines: dict[int, dict[str, _Outline]] = field(default_factory=dict)
    _links: dict[tuple[int, frozenset[bytes]], dict[str, _Links]] = field(default_factory=dict)

    def outlines(self, program: Program, shapes: Mapping[str, TaskShape]) -> Mapping[str, _Outline]:
        """Return the outline of each task of a program."""
        key = id(program.tasks)
        if key not in self._outlines:
            streams, flags = _main_streams(program, shapes), program.touches.is_of[Scope.MICROBATCH].tolist()
            each = dict(zip(program.buffers, flags, strict=False))
            self._outlines[key] = {
                name: _outline(task, shapes[name], streams, each) for name, task in program.tasks.items()
            }
        return self._outlines[key]

    def links(self, program: Program, shapes: Mapping[str, TaskShape]) -> Mapping[str, _Links]:
        """Return what each task of a program waits for."""
        kinds = _kinds_of_microbatch(program)
        key = id(program.tasks), frozenset(kind.tobytes() for kind in kinds)
        if key not in self._links:
            self._links[key] = _links(program, shapes, kinds)
        return self._links[key]


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
    streams, outlines = _main_streams(program, shapes), known.outlines(program, shapes)
    coalescable = {NodeKind.FIXED, NodeKind.SHARED, *([NodeKind.MEMBER] if in_team else [])}
    recipes, tables = _Recipes(_sharing(priced, contention), joint), dict[str, TaskTable]()
    for name, task in program.tasks.items():
        shape, activities = shapes[name], priced[name].activities
        recipe = recipes.of_ops(task.ops, program.distinct_ops.of_task[name], activities)
        kinds = {kind for _, kind, _, _ in recipe}
        local = kinds <= coalescable and not outlines[name].sends
        tables[name] = TaskTable(
            task=task,
            shape=shape,
            activities=activities,
            main=task.traits.coalesces,
            may_coalesce=name not in single,
            candidate=task.traits.coalesces and name not in single and local and MAIN_STREAM in shape.first
            and shape.first.keys() == streams,
            contended=NodeKind.SHARED in kinds,
            recipe=recipe,
            message=len(task.ops) == 1 and isinstance(task.ops[0], Send | Recv),
            joint_ops=tuple(j for j, (_, kind, _, _) in enumerate(recipe) if kind is NodeKind.MEMBER)
            if NodeKind.MEMBER in kinds else (),
            **asdict(outlines[name]),
        )  # fmt: skip
    _connect(tables, known.links(program, shapes))
    if in_team:
        for table in tables.values():
            table.steady = False
    return tables


def _main_streams(program: Program, shapes: Mapping[str, TaskShape]) -> set[str]:
    """Return the streams of the tasks that coalesce."""
    return {stream for name, task in program.tasks.items() if task.traits.coalesces for stream in shapes[name].first}


def _outline(task: Task, shape: TaskShape, streams: Set[str], per_microbatch: dict[str, bool]) -> _Outline:
    """Return a task's outline. ``streams``: those of the tasks that coalesce; ``per_microbatch``: of all buffers."""
    op, first, last = task.ops[0], shape.first.get(MAIN_STREAM), shape.last.get(MAIN_STREAM)
    return _Outline(
        main_starts_first={s: first is not None and shape.descends(j, first) for s, j in shape.first.items()},
        main_ends_last={s: last is not None and shape.descends(last, j) for s, j in shape.last.items()},
        per_microbatch=per_microbatch,
        on_main=not streams.isdisjoint(shape.first),
        sends=any(isinstance(op, Send) for op in task.ops),
        is_send=isinstance(op, Send),
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
    """Recipes of ops, found once for those that are alike and have one activity."""

    sharing: Set[int]
    joint: Callable[[Collective], bool]
    _known: dict[tuple[int, int], Recipe] = {}

    def of_ops(self, ops: Sequence[Op], places: Sequence[int], activities: Sequence[Activity]) -> list[Recipe]:
        """Return the recipes of ops. ``places``: theirs among the distinct ops of their program."""
        known, recipes = self._known, list[Recipe]()
        for place, op, activity in zip(places, ops, activities, strict=True):
            key = place, id(activity)
            recipe = known.get(key)
            if recipe is None:
                kind = _kind(op, activity, self.sharing, self.joint)
                recipe = known[key] = op, kind, lasting_s(op, kind, activity), activity
            recipes.append(recipe)
        return recipes


def _sharing(priced: Mapping[str, PricedTask], contention: Contention) -> set[int]:
    """Return the identities of the activities that may meet others on a resource; many ops have one activity."""
    activities = {id(activity): activity for task in priced.values() for activity in task.activities}
    contended = contention.contended
    return {key for key, found in activities.items() if any(r in contended and d > 0 for r, d in found.demands)}


def _kind(op: Op, activity: Activity, sharing: Set[int], joint: Callable[[Collective], bool]) -> NodeKind:
    if isinstance(op, Recv):
        return NodeKind.JOIN
    if isinstance(op, Collective) and joint(op):
        return NodeKind.MEMBER
    return NodeKind.SHARED if id(activity) in sharing else NodeKind.FIXED


def lasting_s(op: Op, kind: NodeKind, activity: Activity) -> float:
    """Return what the node of an op lasts: all of it, or the latency before it uses shared resources.

    A send's latency passes after it.
    """
    if kind is NodeKind.FIXED:
        return activity.occupancy_s if isinstance(op, Send) else activity.duration_s
    return activity.latency_s if kind is NodeKind.SHARED and not isinstance(op, Send) else 0.0


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


def _links(program: Program, shapes: Mapping[str, TaskShape], kinds: Ints) -> dict[str, _Links]:
    """Return what each task waits for. ``kinds``: see ``_kinds_of_microbatch``."""
    once = _written_once(program, kinds)
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


def _written_once(program: Program, kinds: Ints) -> dict[str, tuple[str, ...]]:
    """Return the buffers of which one call at most writes the instance of each micro-batch, with the tasks that may.

    A schedule may have several such tasks: a backward in one piece for some micro-batches, in two for others.
    """
    touches, uses, names = program.touches, program.touches.uses, [*program.tasks]
    rows = np.flatnonzero(touches.is_of[Scope.MICROBATCH][uses.buffer] & (uses.last_write != NEVER))
    task, buffer = uses.task[rows], uses.buffer[rows]
    writers: dict[int, tuple[int, ...]] = {}
    for place, number in zip(buffer.tolist(), task.tolist(), strict=True):
        writers[place] = (*writers.get(place, ()), number)
    buffers = [*program.buffers]
    groups = {group: tuple([names[number] for number in group]) for group in set(writers.values())}
    alone = {group for group in groups if (kinds[:, list(group)].sum(axis=1) <= 1).all()}
    return {buffers[place]: groups[group] for place, group in writers.items() if group in alone}


def _kinds_of_microbatch(program: Program) -> Ints:
    """Return how often each task is called for a micro-batch, in every way that occurs: kinds x tasks."""
    calls = Calls.of(program.calls)
    tasks, num_tasks = calls.numbered(program.tasks), len(program.tasks)
    cells = (calls.microbatches - NO_MICROBATCH) * num_tasks + tasks
    every = np.bincount(cells, minlength=num_tasks * (int(calls.microbatches.max(initial=0)) - NO_MICROBATCH + 1))
    found = {row.tobytes(): row for row in every.reshape(-1, num_tasks)}
    return np.array([*found.values()], dtype=np.int64).reshape(-1, num_tasks)


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
