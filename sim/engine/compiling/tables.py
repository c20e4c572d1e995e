"""What the compiler knows of each task before the first call."""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

from msgspec import Struct, field

from sim.engine.compiling.contention import Contention
from sim.engine.compiling.graph import NodeKind, OpNodes, PricedTask, Wire
from sim.engine.compiling.shape import TaskShape
from sim.engine.prices.activity import Activity
from sim.plan.words.buffer import Scope
from sim.plan.words.op import Collective, Op, Recv, Send
from sim.plan.words.program import Program, Task

MAIN_STREAM = "compute"


class TaskTable(Struct, dict=True):
    """One task of one simulated rank.

    ``main``: its calls coalesce; ``may_coalesce``: nobody wants its ops one by one; ``candidate``: its calls may
    become blocks; ``contended``: an op of it may meet another on a resource. ``recipe`` has (op, node kind, duration,
    activity) per op.
    ``sources`` lists (writing task, its op, my reading ops) for buffers that one call writes and others
    read; ``single_sources`` those whose writing task is never a block. ``tracked`` are the buffers that
    several calls write and several streams touch, ``tracked_each`` those of them with an instance per micro-batch.
    ``first_sources`` are the single sources that its first op on the main stream reads, ``late_sources`` the
    others. ``steady``: its links can be those of the steady state (see the compiler).
    ``on_main``: on a stream that coalescing tasks use. ``message``: one send or receive and nothing else;
    ``channel`` is then its axis, offset, direction, is a send, and ``wire`` what stands for its messages where they
    come in order (see channels); ``receives`` gives the node of a receive's next message. ``last_ops``: each stream's
    last op. ``joint_ops``: collectives of several simulated ranks. ``units`` and ``last_unit`` are filled in while
    compiling.
    """

    task: Task
    shape: TaskShape
    activities: tuple[Activity, ...]
    main: bool
    may_coalesce: bool
    candidate: bool
    contended: bool
    recipe: list[tuple[Any, NodeKind, float, Activity]]
    main_starts_first: dict[str, bool]
    main_ends_last: dict[str, bool]
    per_microbatch: dict[str, bool]
    on_main: bool
    message: bool
    is_send: bool
    channel: tuple[str, int, str, bool]
    last_ops: tuple[tuple[str, int], ...]
    joint_ops: tuple[int, ...]
    wire: Wire | None = None
    receives: Callable[[], int] | None = None
    tracked: tuple[str, ...] = ()
    tracked_each: tuple[str, ...] = ()
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
    def with_others(self) -> list[tuple[int, Send | Recv | Collective, Activity]]:
        """Return the ops that other simulated ranks take part in, by number."""
        numbered = ((j, op, kind, activity) for j, (op, kind, _, activity) in enumerate(self.recipe))
        return [
            (j, op, activity)
            for j, op, kind, activity in numbered
            if kind is NodeKind.MEMBER or isinstance(op, Send | Recv)
        ]


def tabulate(
    program: Program,
    priced: Mapping[str, PricedTask],
    shapes: Mapping[str, TaskShape],
    contention: Contention,
    single: frozenset[str],
    *,
    joint: Callable[[Collective], bool],
    in_team: bool = False,
) -> dict[str, TaskTable]:
    """Return a table per task of a simulated rank's program.

    ``single`` are tasks that must not become blocks; ``joint`` says whether a collective has several simulated ranks;
    ``in_team``: calls may be blocks with all of them (see teams).
    """
    mains = [n for n, task in program.tasks.items() if task.traits.coalesces]
    streams = {stream for n in mains for stream in shapes[n].first}
    tables = {}
    for name, task in program.tasks.items():
        shape, activities = shapes[name], priced[name].activities
        recipe = [_recipe(op, activity, contention, joint) for op, activity in zip(task.ops, activities, strict=True)]
        coalescable = (NodeKind.FIXED, NodeKind.SHARED, *([NodeKind.MEMBER] if in_team else []))
        local = all(kind in coalescable for _, kind, _, _ in recipe)
        local = local and not any(isinstance(op, Send) for op in task.ops)
        first, last = shape.first.get(MAIN_STREAM), shape.last.get(MAIN_STREAM)
        tables[name] = TaskTable(
            task=task,
            shape=shape,
            activities=activities,
            main=task.traits.coalesces,
            may_coalesce=name not in single,
            candidate=name in mains and name not in single and local and first is not None
            and shape.first.keys() == streams,
            contended=any(kind is NodeKind.SHARED for _, kind, _, _ in recipe),
            recipe=recipe,
            main_starts_first={s: first is not None and shape.descends(j, first) for s, j in shape.first.items()},
            main_ends_last={s: last is not None and shape.descends(last, j) for s, j in shape.last.items()},
            on_main=not streams.isdisjoint(shape.first),
            is_send=isinstance(task.ops[0], Send),
            message=len(task.ops) == 1 and isinstance(task.ops[0], Send | Recv),
            channel=_channel(task.ops[0]),
            last_ops=tuple(shape.last.items()),
            joint_ops=tuple(j for j, (_, kind, _, _) in enumerate(recipe) if kind is NodeKind.MEMBER),
            per_microbatch={b: program.buffers[b].scope is Scope.MICROBATCH for b in shape.leaves},
        )  # fmt: skip
    _connect(program, tables)
    if in_team:
        for table in tables.values():
            table.steady = False
    return tables


def _channel(op: Op) -> tuple[str, int, str, bool]:
    return (
        (op.axis, op.offset, op.direction, isinstance(op, Send)) if isinstance(op, Send | Recv) else ("", 0, "", False)
    )


def _recipe(
    op: Op, activity: Activity, contention: Contention, joint: Callable[[Collective], bool]
) -> tuple[Op, NodeKind, float, Activity]:
    kind = _kind(op, activity, contention, joint)
    return op, kind, lasting_s(op, kind, activity), activity


def _kind(op: Op, activity: Activity, contention: Contention, joint: Callable[[Collective], bool]) -> NodeKind:
    if isinstance(op, Recv):
        return NodeKind.JOIN
    if isinstance(op, Collective) and joint(op):
        return NodeKind.MEMBER
    shared = any(r in contention.contended and d > 0 for r, d in activity.demands)
    return NodeKind.SHARED if shared else NodeKind.FIXED


def lasting_s(op: Op, kind: NodeKind, activity: Activity) -> float:
    """Return what the node of an op lasts: all of it, or the latency before it uses shared resources.

    A send's latency passes after it.
    """
    if kind is NodeKind.FIXED:
        return activity.occupancy_s if isinstance(op, Send) else activity.duration_s
    return activity.latency_s if kind is NodeKind.SHARED and not isinstance(op, Send) else 0.0


def _connect(program: Program, tables: Mapping[str, TaskTable]) -> None:
    """Find, for every buffer that a task reads from outside, where it comes from."""
    once = _written_once(program, tables)
    several = _on_several_streams(program)
    for table in tables.values():
        table.tracked = tuple(b for b in table.shape.leaves if b in several and b not in once)
        table.message &= not table.tracked
        _add_sources(table, once)
        first = (table.shape.first.get(MAIN_STREAM, -1),)
        table.tracked_each = tuple(b for b in table.tracked if table.per_microbatch[b])
        table.first_sources = [source for source in table.single_sources if source[2] == first]
        table.late_sources = [source for source in table.single_sources if source[2] != first]
        table.steady = table.candidate and not table.tracked_each


def _written_once(program: Program, tables: Mapping[str, TaskTable]) -> dict[str, list[TaskTable]]:
    """Return the buffers of which one call at most writes the instance of each micro-batch, with the tasks that may.

    A schedule may have several such tasks: a backward in one piece for some micro-batches, in two for others.
    """
    writers: dict[str, list[str]] = {}
    for name, table in tables.items():
        for buffer, (writer, _) in table.shape.leaves.items():
            if writer >= 0 and program.buffers[buffer].scope is Scope.MICROBATCH:
                writers.setdefault(buffer, []).append(name)
    kinds = _kinds_of_microbatch(program)
    groups = {tuple(names) for names in writers.values()}
    alone = {names for names in groups if all(sum(map(kind.count, names)) <= 1 for kind in kinds)}
    return {buffer: [tables[name] for name in names] for buffer, names in writers.items() if tuple(names) in alone}


def _kinds_of_microbatch(program: Program) -> set[tuple[str, ...]]:
    """Return the tasks that are called for a micro-batch, each as often as it is, in every way that occurs."""
    called: dict[int | None, list[str]] = {}
    for task, microbatch, _ in program.calls:
        called.setdefault(microbatch, []).append(task)
    return {tuple(sorted(tasks)) for tasks in called.values()}


def _on_several_streams(program: Program) -> set[str]:
    """Return the buffers that ops of more than one stream touch."""
    streams: dict[str, set[str]] = {}
    for task in program.tasks.values():
        for op in task.ops:
            for buffer in (*op.reads, *op.writes):
                streams.setdefault(buffer, set()).add(op.stream)
    return {buffer for buffer, found in streams.items() if len(found) > 1}


def _add_sources(table: TaskTable, once: Mapping[str, Sequence[TaskTable]]) -> None:
    """List what a task reads that one earlier call wrote on another stream, each with its earliest readers."""
    shape = table.shape
    found: dict[tuple[str, int], tuple[TaskTable, list[int]]] = {}
    read = [(buffer, readers, writer) for buffer, readers in shape.reads.items() for writer in once.get(buffer, ())]
    for buffer, readers, writer in read:
        if writer is table:
            continue
        op = writer.shape.leaves[buffer][0]
        waiting = found.setdefault((writer.task.name, op), (writer, []))[1]
        for j in readers:
            if writer.shape.streams[op] != shape.streams[j] and not any(shape.descends(j, i) for i in waiting):
                waiting[:] = [i for i in waiting if not shape.descends(i, j)] + [j]
    for (_, op), (writer, waiting) in found.items():
        if waiting:
            table.sources.append((writer, op, tuple(waiting)))
            if not writer.candidate:
                table.single_sources.append(table.sources[-1])
