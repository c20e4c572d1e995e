"""Hand-written plans, for what the builders do not write."""

from collections.abc import Iterable

from sim.plan.words.buffer import Buffer, Initial, Kind, Scope
from sim.plan.words.layout import sharded
from sim.plan.words.mesh import Mesh
from sim.plan.words.op import Collective, CollectiveKind, Compute, Direction, Op, Recv, Reduction, Send
from sim.plan.words.program import Call, Phase, Plan, Program, Task
from sim.training.spec.job import DelaySpec, PipelineSpec, TextbookTraining
from sim.training.steps.textbook import build_textbook

AXES = ("row", "column")
MESH = Mesh((("row", 2), ("column", 2)))
SHAPE = (2, 6)
"""What each rank starts with: two rows of the global [8, 6] tensor ``x``."""


def plan_of(ops: Iterable[Op], buffers: Iterable[Buffer], mesh: Mesh = MESH, name: str = "by hand") -> Plan:
    """Return a plan in which all ranks run one task once."""
    task = Task("work", Phase.FORWARD, tuple(ops))
    program = Program({}, {b.name: b for b in buffers}, {"work": task}, (Call("work"),))
    return Plan(name, mesh, (program,), seed=11)


def source(mesh: Mesh = MESH, axes: tuple[str, ...] = AXES) -> Buffer:
    """Return the persistent buffer ``x``: a slice of a global normal tensor, another on every rank."""
    return Buffer(
        "x", SHAPE, "float64", Kind.PARAMETER, Scope.PERSISTENT,
        initial=Initial("normal", "x", 1.0), global_shape=(SHAPE[0] * mesh.degree(*axes), SHAPE[1]),
        layout=sharded(0, axes),
    )  # fmt: skip


def step_buffer(name: str, *shape: int) -> Buffer:
    """Return a float64 buffer of the step."""
    return Buffer(name, shape, "float64", Kind.WORKSPACE, Scope.STEP)


def copy(name: str) -> Compute:
    """Return an op that makes a buffer of all of x (a slice into one part is the whole)."""
    return Compute(f"copy.{name}", "slice", ("x",), (name,), {"dim": 0, "axes": (), "parts": 1})


def collective_plan() -> Plan:
    """Return a plan with every collective: in place, flat with padding, along both dimensions, over two axes."""
    kinds = CollectiveKind
    buffers = [
        source(),
        Buffer("w", (6, 5), "float64", Kind.PARAMETER, Scope.PERSISTENT, initial=Initial("normal", "w", 1.0)),
        *(step_buffer(name, *SHAPE) for name in ("sum", "max", "first", "second", "root", "some")),
        step_buffer("gathered.0", 4, 6),
        step_buffer("gathered.1", 2, 12),
        step_buffer("gathered.all", 8, 6),
        step_buffer("scattered.0", 1, 6),
        step_buffer("scattered.1", 2, 3),
        step_buffer("narrow", 2, 5),
        step_buffer("odd", 1, 5),
        step_buffer("own.x", *SHAPE),
        step_buffer("own.odd", 1, 5),
        step_buffer("piece", 9),
        step_buffer("back.x", *SHAPE),
        step_buffer("back.odd", 5),
    ]
    ops: list[Op] = [copy(name) for name in ("sum", "max", "first", "second", "root", "some")]
    ops += [
        Collective("sum", kinds.ALL_REDUCE, AXES, ("sum",), ("sum",), "one"),
        Collective("max", kinds.ALL_REDUCE, ("row",), ("max",), ("max",), "two", Reduction.MAX),
        Collective("both", kinds.ALL_REDUCE, ("column",), ("first", "second"), ("first", "second"), "one"),
        Collective("root", kinds.BROADCAST, AXES, ("root",), ("root",), "two"),
        Collective("gather.0", kinds.ALL_GATHER, ("column",), ("x",), ("gathered.0",), "one", dim=0),
        Collective("gather.1", kinds.ALL_GATHER, ("row",), ("x",), ("gathered.1",), "two", dim=1),
        # the axes in the other order: group order is not rank order
        Collective("gather.all", kinds.ALL_GATHER, ("column", "row"), ("x",), ("gathered.all",), "one", dim=0),
        Collective("scatter.0", kinds.REDUCE_SCATTER, ("row",), ("x",), ("scattered.0",), "two", dim=0),
        Collective("scatter.1", kinds.REDUCE_SCATTER, ("column",), ("x",), ("scattered.1",), "one", dim=1),
        # x and five elements more over two ranks: pieces of nine, the last element padding
        Compute("narrow", "matmul", ("x", "w"), ("narrow",)),
        Compute("odd", "rows", ("narrow",), ("odd",), {"start": 0, "count": 1}),
        copy("own.x"),
        Compute("own.odd", "rows", ("narrow",), ("own.odd",), {"start": 0, "count": 1}),
        Collective("own scatter", kinds.REDUCE_SCATTER, ("row",), ("own.x", "own.odd"), ("own.x", "own.odd"), "two"),
        Collective("own gather", kinds.ALL_GATHER, ("row",), ("own.x", "own.odd"), ("own.x", "own.odd"), "one"),
        Collective("flat scatter", kinds.REDUCE_SCATTER, ("row",), ("x", "odd"), ("piece",), "one"),
        Collective("flat gather", kinds.ALL_GATHER, ("row",), ("piece",), ("back.x", "back.odd"), "two"),
        Collective("some", kinds.ALL_REDUCE, ("absent",), ("some",), ("some",), "one"),
    ]
    return plan_of(ops, buffers, name="collectives")


PAIR = Mesh((("pp", 2),))


def ring_plan() -> Plan:
    """Return a ring of two in which both ranks send first, twice each way, all on one stream."""
    forward, backward = Direction.FORWARD, Direction.BACKWARD
    names = ("ahead.0", "ahead.1", "back.0", "back.1")
    buffers = [source(PAIR, ("pp",)), *(step_buffer(name, *SHAPE) for name in ("twice", *names))]
    ops: list[Op] = [
        Compute("twice", "add", ("x", "x"), ("twice",)),
        Send("send.ahead.0", "pp", 1, forward, ("x",), "wire"),
        Send("send.back.0", "pp", -1, backward, ("twice",), "wire"),
        Send("send.ahead.1", "pp", 1, forward, ("twice",), "wire"),
        Send("send.back.1", "pp", -1, backward, ("x",), "wire"),
        Recv("recv.back.0", "pp", 1, backward, ("back.0",), "wire"),
        Recv("recv.ahead.0", "pp", -1, forward, ("ahead.0",), "wire"),
        Recv("recv.back.1", "pp", 1, backward, ("back.1",), "wire"),
        Recv("recv.ahead.1", "pp", -1, forward, ("ahead.1",), "wire"),
        # a message must be gone before its buffer is written again
        Compute("cleared", "zero", ("twice",), ("twice",)),
        Compute("seen", "delay", ("twice",), (), {"duration_s": 0.0}),
    ]
    return plan_of(ops, buffers, PAIR, "ring")


def textbook_plan(duration_s: float, ranks: int = 4) -> Plan:
    """Return 1F1B with stated times."""
    delays = DelaySpec(forward_s=duration_s, backward_input_s=duration_s, backward_weight_s=duration_s)
    return build_textbook(
        TextbookTraining(model=delays, num_microbatches=4, pipeline=PipelineSpec(degree=ranks)), "textbook"
    )
