"""Ops in a row as one event, and one op as one event, until another op begins on their resources."""

from collections.abc import Callable

import pytest

from sim.engine.compiling.graph import Graph
from sim.engine.folding.folding import no_fold
from sim.engine.running.rows import Ints, Rows
from sim.engine.running.simulate import simulate
from sim.engine.running.stretches import Stretch, Stretches
from sim.plan.words.buffer import Buffer, Kind
from sim.plan.words.mesh import Mesh
from sim.plan.words.op import Compute
from sim.plan.words.program import Call, Phase, Plan, Program, Task
from tests.sim.engine.reference import ReferenceEngine
from tests.sim.engine.stated_pricing import StatedPricing
from tests.sim.jobs import OpTimes, op_times

LAST = 4.0 + 3.0 + 0.0 + 4.0 + 2.0
"""When the row of ops is over that nobody interrupts."""


def op(name: str, stream: str, reads: tuple[str, ...], latency_s: float, memory_s: float) -> Compute:
    """Return an op that writes a buffer of its name."""
    demands = (("memory", memory_s),) if memory_s else ()
    return Compute(name, "delay", reads, (name,), {"latency_s": latency_s, "demands": demands}, stream)


def plan_of(wait_s: float | None, *, beside_first: bool = False) -> Plan:
    """Return five ops in a row, and beside them two that use their resource for 2 s after ``wait_s``; None: none.

    ``beside_first``: at equal times those two come before.
    """
    row = (
        op("a", "compute", (), 1.0, 3.0),
        op("b", "compute", (), 2.0, 1.0),
        op("c", "compute", (), 0.0, 0.0),
        op("d", "compute", (), 4.0, 0.0),
        op("e", "compute", (), 0.0, 2.0),
    )
    beside = (op("wait", "dp", (), wait_s, 0.0), op("use", "dp", ("wait",), 0.0, 2.0)) if wait_s is not None else ()
    never = op("never", "tp", ("e", "use"), 0.0, 1.0) if beside else op("never", "tp", ("e",), 0.0, 1.0)
    first, second = (beside, row) if beside_first else (row, beside)
    return planned(*first, *second, never)


def planned(*ops: Compute) -> Plan:
    """Return a plan of one call of some ops on one rank."""
    task = Task("forward", Phase.FORWARD, ops)
    buffers = {name: Buffer(name, (1,), "float32", Kind.ACTIVATION) for each in task.ops for name in each.writes}
    return Plan("row", Mesh((("pp", 1),)), (Program({}, buffers, {"forward": task}, (Call("forward", 0),)),))


def by_reference(plan: Plan) -> OpTimes:
    """Return the times of the slow engine, which knows no stretches."""
    return ReferenceEngine(plan, StatedPricing(), no_fold(plan, StatedPricing())).run().times


@pytest.mark.parametrize("wait_s", [0.0, 0.5, 1.0, 2.0, 4.0, 5.0, 6.5, 7.0, 9.0, 11.0, 12.0, 13.0, 20.0])
def test_a_row_of_ops_is_interrupted_at_any_moment(wait_s: float) -> None:
    """Before, at and between begins and ends, in latencies and in use: all ops have the reference's times."""
    for plan in (plan_of(wait_s), plan_of(wait_s, beside_first=True)):
        assert op_times(simulate(plan, StatedPricing(), coalesce=False)) == by_reference(plan)


def test_a_row_of_ops_that_nobody_interrupts_is_one_event() -> None:
    """Its five ops last as long as one by one."""
    plan = plan_of(None)
    run = simulate(plan, StatedPricing(), coalesce=False)
    assert op_times(run) == by_reference(plan)
    assert op_times(run)[0, 0, 4][1] == LAST
    assert run.num_events < 5


def test_a_stretch_that_is_over_lets_its_hold_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stretch and hold know each other: they would live, with all their moments, until the cycle collector comes."""
    begun: list[Stretch | None] = []
    begin = Stretches.begin

    def noted(self: Stretches, node: int, now_s: float, interrupted: Callable[[Stretch], None]) -> Stretch | None:
        begun.append(begin(self, node, now_s, interrupted))
        return begun[-1]

    monkeypatch.setattr(Stretches, "begin", noted)
    for wait_s in (None, 0.5):
        simulate(plan_of(wait_s), StatedPricing(), coalesce=False)
    found = [stretch for stretch in begun if stretch is not None]
    assert {stretch.is_interrupted for stretch in found} == {False, True}
    assert [stretch.hold for stretch in found] == [None] * len(found)


def exchanges(wait_s: float, latency_s: float) -> Plan:
    """Return an op on a link, 2 s late and 3 s long, and after ``wait_s`` one of 2 s on another stream."""
    first, second = (
        Compute(name, "delay", reads, (name,), {"latency_s": late_s, "demands": ((("link", 0), long_s),)}, stream)
        for name, reads, late_s, long_s, stream in (
            ("a", (), 2.0, 3.0, "dp"), ("b", ("wait",), latency_s, 2.0, "tp"),
        )
    )  # fmt: skip
    return planned(first, op("wait", "tp", (), wait_s, 0.0), second)


@pytest.mark.parametrize("latency_s", [0.0, 1.0])
@pytest.mark.parametrize("wait_s", [0.0, 1.0, 1.5, 2.0, 3.5, 4.0, 5.0, 6.0])
def test_an_op_that_waits_out_its_latency_is_interrupted_at_any_moment(wait_s: float, latency_s: float) -> None:
    """Another op begins on its link in its latency, as it begins, while it lasts, as it ends, and afterwards."""
    plan = exchanges(wait_s, latency_s)
    assert op_times(simulate(plan, StatedPricing(), coalesce=False)) == by_reference(plan)


def test_an_op_that_nobody_interrupts_is_one_event() -> None:
    """Two ops on a link, one after the other, and the wait of the second: an event each."""
    assert simulate(exchanges(6.0, 1.0), StatedPricing(), coalesce=False).num_events == 3


def test_rows_are_looked_for_only_where_a_stretch_may_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ops on links are of no row, so a plan whose ops share links alone is run without looking at all of its nodes."""
    found: list[Graph] = []
    of = Rows.of

    def noted(graph: Graph, counts: Ints, after: Ints) -> Rows:
        found.append(graph)
        return of(graph, counts, after)

    monkeypatch.setattr(Rows, "of", noted)
    simulate(exchanges(1.0, 0.0), StatedPricing(), coalesce=False)
    assert not found
    run = simulate(plan_of(1.0), StatedPricing(), coalesce=False)
    assert found == [run.graph]
