"""Plans with every kind of collective among 2, 3 and 4 ranks, and the ways in which they are run."""

from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any

from msgspec.structs import replace

from backends.execution.request import ExecutionRequest, ExplicitCollectives
from costmodels.collectives.catalogue import STEP_LISTS
from sim.plan.functions.basic import all_to_all, broadcast, reduce
from sim.plan.functions.gradients import backpropagate
from sim.plan.functions.linear import linear
from sim.plan.functions.tracing import ProgramTracer, TaskTracer, Tensor
from sim.plan.words.buffer import Buffer, Initial, Kind, Scope
from sim.plan.words.layout import Layout, sharded
from sim.plan.words.mesh import Mesh
from sim.plan.words.op import Collective, CollectiveKind, Compute, Op, Reduction
from sim.plan.words.program import Call, Phase, Plan, Program, Task
from sim.training.spec.job import DenseTraining
from sim.training.steps.builder import build_dense_training
from tests.backends.plans import collective_plan

K = CollectiveKind
SIZES = (2, 3, 4)
ROWS, COLUMNS = 12, 7
"""What each rank starts with: another [12, 7] slice ``x`` of one random tensor."""
KEPT = frozenset({
    "x", "first", "x.sum", "first.max", "one.sum", "both.x", "both.first", "gathered.rows", "gathered.columns",
    "gathered.flat", "scattered", "scattered.max", "piece", "sent", "sent.odd", "total", "greatest", "cut", "swapped",
    "mine", "got",
})  # fmt: skip


def table(size: int) -> tuple[tuple[int, ...], ...]:
    """Return how many rows each rank sends to each: uneven, some none; nobody sends or gets nothing at all."""
    return tuple(tuple((2 * s + 3 * t + 1) % 5 for t in range(size)) for s in range(size))


def _buffers(size: int, rank: int) -> list[Buffer]:
    def step(name: str, *shape: int) -> Buffer:
        return Buffer(name, shape, "float64", Kind.WORKSPACE, Scope.STEP)

    def start(name: str, layout: Layout, source: str, *shape: int) -> Buffer:
        whole = layout.placements and (shape[0] * size, *shape[1:])
        return Buffer(name, shape, "float64", Kind.PARAMETER, Scope.PERSISTENT, initial=Initial("normal", source, 1.0),
                      global_shape=whole or (), layout=layout)  # fmt: skip

    rows = table(size)
    whole, row = (ROWS, COLUMNS), (1, COLUMNS)
    return [
        start("x", sharded(0, ("g",)), "x", *whole),
        start("mine", Layout(), f"mine.{rank}", sum(rows[rank]), 3),
        *(step(name, *whole) for name in ("x.sum", "both.x", "sent", "total", "swapped")),
        *(step(name, *row) for name in ("first", "first.max", "both.first", "sent.odd", "greatest")),
        *(step(name, 1, 1) for name in ("one", "one.sum")),
        step("gathered.rows", size, COLUMNS),
        step("gathered.columns", ROWS, COLUMNS * size),
        step("gathered.flat", size * COLUMNS - 1),
        step("scattered", ROWS // size, COLUMNS),
        step("scattered.max", ROWS // size, COLUMNS),
        step("piece", -(-(ROWS * COLUMNS + COLUMNS) // size)),
        step("cut", ROWS // size, COLUMNS * size),
        step("got", sum(row[rank] for row in rows), 3),
    ]


def _ops(size: int, rank: int) -> Iterator[Op]:
    numbers = count()

    def slice_of(source: str, name: str, dim: int, parts: int) -> Compute:
        return Compute(f"slice.{name}", "slice", (source,), (name,), {"dim": dim, "axes": (), "parts": parts})

    def over(kind: K, reads: tuple[str, ...], writes: tuple[str, ...], **keys: Any) -> Collective:
        return Collective(f"{kind}.{next(numbers)}", kind, ("g",), reads, writes, "wire", **keys)

    root = size - 1
    yield slice_of("x", "first", 0, ROWS)
    yield slice_of("first", "one", 1, COLUMNS)
    for source, name in (
        ("x", "x.sum"),
        ("x", "both.x"),
        ("first", "first.max"),
        ("first", "both.first"),
        ("one", "one.sum"),
    ):
        yield slice_of(source, name, 0, 1)
    yield over(K.ALL_REDUCE, ("x.sum",), ("x.sum",))
    yield over(K.ALL_REDUCE, ("first.max",), ("first.max",), reduction=Reduction.MAX)
    yield over(K.ALL_REDUCE, ("one.sum",), ("one.sum",))
    yield over(K.ALL_REDUCE, ("both.x", "both.first"), ("both.x", "both.first"))
    yield over(K.BARRIER, (), ())
    yield over(K.ALL_GATHER, ("first",), ("gathered.rows",), dim=0)
    yield over(K.ALL_GATHER, ("x",), ("gathered.columns",), dim=1)
    yield over(K.ALL_GATHER, ("first",), ("gathered.flat",))
    yield over(K.REDUCE_SCATTER, ("x",), ("scattered",), dim=0)
    yield over(K.REDUCE_SCATTER, ("x",), ("scattered.max",), dim=0, reduction=Reduction.MAX)
    yield over(K.REDUCE_SCATTER, ("x", "first"), ("piece",))
    yield over(K.BROADCAST, ("x",) if rank == root else (), ("sent",), root=root)
    yield over(K.BROADCAST, ("first",), ("sent.odd",), root=size // 2)
    yield over(K.REDUCE, ("x",), ("total",) if rank == root else (), root=root)
    yield over(K.REDUCE, ("first",), ("greatest",), root=1, reduction=Reduction.MAX)
    yield over(K.ALL_TO_ALL, ("x",), ("cut",), dim=0, join_dim=1)
    yield over(K.ALL_TO_ALL, ("x",), ("swapped",), dim=0)
    yield over(K.ALL_TO_ALL, ("mine",), ("got",), dim=0, sizes=table(size))


def every_collective(size: int) -> Plan:
    """Return a plan in which every rank has a program of its own, with buffers of its own sizes."""
    programs = []
    for rank in range(size):
        ops = tuple(_ops(size, rank))
        touched = {name for op in ops for name in (*op.reads, *op.writes)}
        buffers = {b.name: b for b in _buffers(size, rank) if b.name in touched}
        programs.append(Program({"g": rank}, buffers, {"work": Task("work", Phase.FORWARD, ops)}, (Call("work"),)))
    return Plan(f"every collective of {size}", Mesh((("g", size),)), tuple(programs), seed=11)


def altered(plan: Plan) -> Plan:
    """Return the plan with three collectives altered on all ranks alike, so that no check can object."""

    def alter(op: Op) -> Op:
        if isinstance(op, Collective) and op.writes in {("sent.odd",), ("greatest",)}:
            return replace(op, root=0)
        if isinstance(op, Collective) and op.writes == ("scattered.max",):
            return replace(op, reduction=Reduction.SUM)
        return op

    programs = [
        replace(
            p, tasks={name: replace(task, ops=tuple(alter(op) for op in task.ops)) for name, task in p.tasks.items()}
        )
        for p in plan.programs
    ]
    return replace(plan, programs=tuple(programs))


# --- layouts, forward and backward ---------------------------------------------------------------------------------

ROOT = 2


def laid_out() -> Plan:
    """Return forward and derived backward of z = all_to_all(x) w, t = reduce(z) and u = broadcast(x) v on four ranks.

    x [8, 4] in rows, w [4, 5] in rows, v [4, 4] in columns; the gradients of t [32, 5] (the root's rows count) and of
    u [2, 4] are given; that of x ends in ``dx``.
    """
    program = ProgramTracer(Mesh((("g", 4),)), "float64", "float64")

    def given(name: str, global_shape: tuple[int, ...], layout: Layout, method: str = "normal") -> Tensor:
        buffer = Buffer(
            name, layout.local_shape(global_shape, program.mesh), "float64", Kind.ACTIVATION, Scope.PERSISTENT,
            initial=Initial(method, name, 1.0), global_shape=global_shape, layout=layout,
        )  # fmt: skip
        return program.tensor(buffer, layout)

    rows, columns = sharded(0, ["g"]), sharded(1, ["g"])
    x, dx = given("x", (8, 4), rows), given("dx", (8, 4), rows, "zeros")
    dt, du = given("dt", (32, 5), rows), given("du", (2, 4), columns)
    w = program.parameter("w", (4, 5), rows, "normal", 1.0)
    v = program.parameter("v", (4, 4), columns, "normal", 1.0)
    forward, backward = TaskTracer(program, Scope.STEP), TaskTracer(program, Scope.STEP)
    t = reduce(forward, linear(forward, "z", all_to_all(forward, x, "g", 1), w), "g", ROOT, 0)
    u = linear(forward, "u", broadcast(forward, x, "g", ROOT), v)
    found = backpropagate(backward, forward.tape, {t: dt, u: du})[x]
    backward.update("dx.kept", "add", (found,), (dx,))
    program.add_task("forward", Phase.FORWARD, forward.ops)
    program.add_task("backward", Phase.BACKWARD, backward.ops)
    whole = Program({}, program.buffers, program.tasks, (Call("forward"), Call("backward")))
    return Plan("laid out", program.mesh, (whole,), seed=11)


# --- requests ------------------------------------------------------------------------------------------------------

CHECKED = {
    "tp4, recompute none": ExplicitCollectives({"all_reduce": "halving_doubling"}),
    "llama, tp2 sp x dp2 zero1": ExplicitCollectives({"all_gather": "bruck", "reduce_scatter": "recursive_halving"}),
    "uneven layers, tied, pp2 x dp2": ExplicitCollectives({"all_reduce": "tree"}),
    "dp2 zero1 x pp2, recompute none": ExplicitCollectives(),
}
"""Trainings that are checked with explicit collectives too."""
NODES = (None, 1, None, 2, 3, 2)
"""Ranks per node of each way below: all on one node, one each, and nodes of which some are not full."""


def ways() -> Iterator[tuple[str, ExplicitCollectives]]:
    """Yield ways to run collectives that have each algorithm at least once, hierarchical ones on nodes of 2 or 3."""
    for i, nodes in enumerate(NODES):
        chosen = {kind: list(algorithms)[i % len(algorithms)] for kind, algorithms in STEP_LISTS.items()}
        yield f"explicit {i}", ExplicitCollectives(chosen, nodes)


def collective_requests() -> dict[str, ExecutionRequest]:
    """Return runs of every collective natively and by every algorithm, among 2, 3 and 4 ranks."""
    requests = {}
    for size in SIZES:
        plan = every_collective(size)
        requests[f"{size} ranks, native"] = ExecutionRequest(plan=plan, keep=KEPT)
        for name, way in ways():
            requests[f"{size} ranks, {name}"] = ExecutionRequest(plan=plan, keep=KEPT, explicit=way)
        requests[f"{size} ranks, no longer the same"] = ExecutionRequest(plan=altered(plan), keep=KEPT)
        for kind in ("broadcast", "reduce", "all_to_all"):
            mute = frozenset(op.name for op in _ops(size, 0) if isinstance(op, Collective) and op.kind == kind)
            requests[f"{size} ranks, no {kind}"] = ExecutionRequest(plan=plan, keep=KEPT, mute=mute)
    by_axes = collective_plan()
    requests["over several axes, explicit"] = ExecutionRequest(
        plan=by_axes, keep=frozenset(by_axes.programs[0].buffers), explicit=ExplicitCollectives(devices_per_node=3)
    )
    for name, explicit in (("native", None), ("explicit", ExplicitCollectives({"all_to_all": "bruck"}))):
        requests[f"laid out, {name}"] = ExecutionRequest(
            plan=laid_out(), explicit=explicit, keep=frozenset(laid_out().programs[0].buffers)
        )
    return requests


def explicit_requests(jobs: Mapping[str, DenseTraining]) -> dict[str, ExecutionRequest]:
    """Return the runs of ``CHECKED`` trainings with explicit collectives. ``jobs``: by name, all of them and others."""
    return {
        f"explicit: {name}": ExecutionRequest(
            plan=build_dense_training(jobs[name], name), check_against=jobs[name], explicit=way
        )
        for name, way in CHECKED.items()
    }
