"""What the compiler knows of tasks before the first call: which buffers it has to follow from call to call."""

from sim.engine.compiling.graph import PricedTask
from sim.engine.compiling.shape import shapes_of
from sim.engine.compiling.structure import Structure, compiled
from sim.engine.compiling.tables import KnownTasks
from sim.engine.folding.folding import no_fold
from sim.engine.prices.activity import Activity
from sim.engine.prices.textbook import TextbookPricing
from sim.engine.running.simulate import simulate
from sim.plan.checking.check import check
from sim.plan.words.buffer import Buffer, Kind, Scope
from sim.plan.words.mesh import Mesh
from sim.plan.words.op import Compute
from sim.plan.words.program import Call, Phase, Plan, Program, Task
from tests.sim.engine.reference import ReferenceEngine
from tests.sim.jobs import as_array, op_times

PRICING = TextbookPricing()


def op(name: str, reads: tuple[str, ...], writes: tuple[str, ...], stream: str = "compute") -> Compute:
    """Return an op of one second."""
    return Compute(name, "delay", reads, writes, {"duration_s": 1.0}, stream)


def plan_of(*calls: Call) -> Plan:
    """Return a plan whose backward is one task or two, and whose gradient another stream takes away."""
    tasks = (
        Task("forward", Phase.FORWARD, (op("f", ("weight",), ("out",)),)),
        Task("whole", Phase.BACKWARD, (op("b", ("out",), ("dx",)), op("w", ("out",), ("gradient",)))),
        Task("part", Phase.BACKWARD_INPUT, (op("b", ("out",), ("dx",)),)),
        Task("rest", Phase.BACKWARD, (op("w", ("out",), ("gradient",)),)),
        Task("take", Phase.GRADIENT_SYNC, (op("t", ("dx", "gradient"), (), "dp"),)),
    )
    scopes = {"weight": Scope.PERSISTENT, "out": Scope.MICROBATCH, "dx": Scope.MICROBATCH, "gradient": Scope.MICROBATCH}
    buffers = {name: Buffer(name, (1,), "float32", Kind.ACTIVATION, scope) for name, scope in scopes.items()}
    program = Program({}, buffers, {task.name: task for task in tasks}, calls)
    plan = Plan("backwards in one piece or in two", Mesh((("pp", 1),)), (program,))
    check(plan)
    return plan


def structure_of(plan: Plan, activity: Activity | None = None) -> Structure:
    """Return the compiled plan of one rank. ``activity``: of all ops; None: each is launched and has its own."""
    (program,) = plan.programs
    prices = {
        name: PricedTask((activity,) * len(task.ops)) if activity else PricedTask(
            tuple(PRICING.price(plan, program, op, 0) for op in task.ops), (0.0,) * len(task.ops)
        )
        for name, task in program.tasks.items()
    }  # fmt: skip
    shapes = {id(program): shapes_of(program)}
    return compiled(plan, no_fold(plan, PRICING), {0: program}, {0: prices}, shapes, KnownTasks(), coalesce=True)


def microbatch(number: int, *names: str) -> list[Call]:
    """Return the calls of one micro-batch."""
    return [Call(name, number) for name in ("forward", *names, "take")]


IN_TURN = plan_of(*microbatch(0, "whole"), *microbatch(1, "part", "rest"), *microbatch(2, "whole"))
TWICE = plan_of(*microbatch(0, "whole"), *microbatch(1, "part", "rest", "whole"))


def test_buffers_that_one_of_several_tasks_writes_are_not_followed() -> None:
    """A micro-batch has its backward in one piece or in two: its buffers have one writer, found without a search."""
    assert {name: table.tracked for name, table in structure_of(IN_TURN).tables[0].items()} == dict.fromkeys(
        ("forward", "whole", "part", "rest", "take"), ()
    )


def test_buffers_that_a_microbatch_writes_twice_are_followed() -> None:
    """Where both write the buffers of one micro-batch, who waits for whom depends on their order."""
    assert set(structure_of(TWICE).tables[0]["take"].tracked) == {"dx", "gradient"}


def test_an_op_waits_for_the_last_op_alone_of_each_stream() -> None:
    """The last call reads what two ops of one stream wrote: it waits for the later one, and for the call before it."""
    graph = structure_of(TWICE).graph
    assert graph.waits[graph.units.nodes[-1]] == 2


def test_buffers_of_one_stream_are_not_followed() -> None:
    """Stream order keeps every hazard of a buffer that no other stream touches, also if several tasks write it."""
    tables = structure_of(plan_of(*microbatch(0, "whole"), Call("forward", 0))).tables[0]
    assert all("out" not in table.tracked for table in tables.values())


def test_ops_that_are_alike_and_have_one_activity_share_a_recipe() -> None:
    """Others have their own: an op on another stream, and one that is alike but that its launch may make late."""
    shared, own = (structure_of(IN_TURN, activity).tables[0] for activity in (Activity(1.0), None))
    assert shared["whole"].recipe[0] is shared["whole"].recipe[1] is shared["rest"].recipe[0]
    assert shared["whole"].recipe[0] is not shared["take"].recipe[0]
    assert own["whole"].recipe[0] is not own["whole"].recipe[1]


def test_times_are_the_reference_engines() -> None:
    """Who waits for the one task that wrote a buffer begins when the reference engine says."""
    for plan in (IN_TURN, TWICE):
        reference = ReferenceEngine(plan, PRICING, no_fold(plan, PRICING)).run().times
        found, keys = op_times(simulate(plan, PRICING)), sorted(reference)
        assert sorted(found) == keys
        assert (abs(as_array(found, keys) - as_array(reference, keys)) <= 1e-9).all()
