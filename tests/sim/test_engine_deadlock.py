"""A stuck run explains itself."""

from dataclasses import replace

import pytest

from sim.engine.errors import DeadlockError
from sim.engine.folding import no_fold
from sim.engine.simulate import simulate
from sim.engine.textbook import TextbookPricing
from sim.plan.buffer import Buffer, Kind
from sim.plan.check import check
from sim.plan.errors import CheckError
from sim.plan.mesh import Mesh
from sim.plan.op import Collective, CollectiveKind, Direction, Op, Recv, Send
from sim.plan.program import Call, Phase, Plan, Program, Task
from tests.sim.jobs import pricing_on, textbook_plan


def exchange(*, receive_first: bool) -> Plan:
    """Return two ranks that send each other a buffer, both messages on one stream."""
    programs = []
    for rank, offset in ((0, 1), (1, -1)):
        ways = (Direction.FORWARD, Direction.BACKWARD) if rank == 0 else (Direction.BACKWARD, Direction.FORWARD)
        send: Op = Send("give", "pp", offset, ways[0], ("mine",), "wire")
        receive: Op = Recv("take", "pp", offset, ways[1], ("yours",), "wire")
        ops = (receive, send) if receive_first else (send, receive)
        buffers = {name: Buffer(name, (4,), "float32", Kind.ACTIVATION) for name in ("mine", "yours")}
        tasks = {"swap": Task("swap", Phase.SEND, ops)}
        programs.append(Program({"pp": rank}, buffers, tasks, (Call("swap", 0),)))
    return Plan("exchange", Mesh((("pp", 2),)), tuple(programs))


def test_send_before_receive_runs() -> None:
    """Sending first and then receiving gets both messages across."""
    assert simulate(exchange(receive_first=False), TextbookPricing(1.0)).makespan_s == 1.0


def test_receive_before_send_on_one_stream_names_both_ranks() -> None:
    """Two ranks that both wait for the other are reported with rank, stream, op, micro-batch and peer."""
    with pytest.raises(DeadlockError) as caught:
        simulate(exchange(receive_first=True), TextbookPricing(1.0))
    message = str(caught.value)
    assert "rank 0, stream wire: swap/take (micro-batch 0), waits for the rank +1 along 'pp'" in message
    assert "rank 1, stream wire: swap/take (micro-batch 0), waits for the rank -1 along 'pp'" in message


def test_backward_before_its_gradient_arrives_names_what_is_stuck() -> None:
    """A rank that wants a gradient which its peer sends only after the next forward is stuck; the report says so."""
    plan = textbook_plan("1f1b", 2, 2)
    first = plan.programs[0]
    order = ["forward.0", "send_forward.0", "recv_backward.0", "backward.0"]
    calls = tuple(Call(task, i) for i in range(2) for task in order)
    second = plan.programs[1]
    late = [c for c in second.calls if "forward" in c.task] + [c for c in second.calls if "backward" in c.task]
    stuck = replace(plan, programs=(replace(first, calls=calls), replace(second, calls=tuple(late))))
    check(stuck)
    with pytest.raises(DeadlockError) as caught:
        simulate(stuck, TextbookPricing())
    lines = str(caught.value).splitlines()
    task = "recv_backward.0/recv_backward.0"
    assert f"  rank 0, stream pp_recv_backward: {task} (micro-batch 0), waits for the rank +1 along 'pp'" in lines
    assert "  rank 1, stream compute: forward.1/forward.1 (micro-batch 1)" in lines


def collectives(orders: tuple[tuple[str, ...], tuple[str, ...]]) -> Plan:
    """Return two roles that issue all_reduces over pp, each named stream in the order given."""
    programs = []
    for rank, order in enumerate(orders):
        buffers = {name: Buffer(name, (4,), "float32", Kind.ACTIVATION) for name in set(order)}
        ops = tuple(
            Collective(f"sum_{name}", CollectiveKind.ALL_REDUCE, ("pp",), (name,), (name,), name) for name in order
        )
        tasks = {"sum": Task("sum", Phase.GRADIENT_SYNC, ops), "one": Task("one", Phase.GRADIENT_SYNC, ops[:1])}
        programs.append(Program({"pp": rank}, buffers, tasks, (Call("sum", 0),)))
    return Plan("collectives", Mesh((("pp", 2),)), tuple(programs))


def test_collectives_on_different_streams_may_be_issued_in_any_order() -> None:
    """Order counts per stream and group; two streams do not hold each other up."""
    plan = collectives((("a", "b"), ("b", "a")))
    assert simulate(plan, pricing_on("local-cpu", 2)).makespan_s > 0


def test_a_group_that_never_meets_is_reported_with_its_axes() -> None:
    """Two ranks that each hold back the collective that the other waits for are stuck in both groups."""
    plan = collectives((("a", "b"), ("b", "a")))
    chained = []
    for program in plan.programs:
        first, second = program.tasks["sum"].ops
        assert isinstance(second, Collective)
        both = replace(second, reads=(*second.reads, *first.reads), writes=(*second.writes, *first.writes))
        task = Task("sum", Phase.GRADIENT_SYNC, (first, both))
        chained.append(replace(program, tasks={"sum": task}))
    expected = r"rank 0, stream a: sum/sum_a \(micro-batch 0\), waits for its group over pp"
    with pytest.raises(DeadlockError, match=expected):
        simulate(replace(plan, programs=tuple(chained)), pricing_on("local-cpu", 2))


def test_long_reports_are_cut_after_twenty_lines() -> None:
    """More than twenty stuck streams are counted, not listed."""
    plan = replace(exchange(receive_first=True), mesh=Mesh((("pp", 2), ("dp", 16))))
    with pytest.raises(DeadlockError, match=r"and 12 more") as caught:
        simulate(plan, TextbookPricing(), fold=no_fold)
    assert len(str(caught.value).splitlines()) == 22


def test_missing_message_is_refused_before_the_run() -> None:
    """The engine itself refuses a receive that nobody sends, naming the ranks and the axis."""
    plan = textbook_plan("gpipe", 2, 2)
    calls = tuple(call for call in plan.programs[0].calls if call.task != "send_forward.0")
    broken = replace(plan, programs=(replace(plan.programs[0], calls=calls), plan.programs[1]))
    with pytest.raises(CheckError, match="rank 1 posts 2 forward receives along 'pp' from rank 0, which posts 0 sends"):
        simulate(broken, TextbookPricing())
