"""A stuck run explains itself."""

import pytest
from msgspec.structs import replace

from sim.engine.errors import DeadlockError
from sim.engine.folding.folding import no_fold
from sim.engine.prices.textbook import TextbookPricing
from sim.engine.running.simulate import simulate
from sim.plan.checking.check import check
from sim.plan.errors import CheckError
from sim.plan.words.buffer import Buffer, Kind, Scope
from sim.plan.words.mesh import Mesh
from sim.plan.words.op import Collective, CollectiveKind, Direction, Op, Recv, Send
from sim.plan.words.program import Call, Phase, Plan, Program, Task
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
    for rank, peer in ((0, 1), (1, 0)):
        waits = f"waits for rank {peer} along 'pp' to run swap/give (micro-batch 0), where it comes after swap/take"
        assert f"  rank {rank}, stream wire: swap/take (micro-batch 0), {waits} (micro-batch 0)" in message
    assert message.endswith(
        "they wait in a circle: rank 0 swap/take (micro-batch 0) -> rank 1 swap/give (micro-batch 0) -> "
        "rank 1 swap/take (micro-batch 0) -> rank 0 swap/give (micro-batch 0) -> rank 0 swap/take (micro-batch 0)"
    )


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
    task, theirs = "recv_backward.0/recv_backward.0 (micro-batch 0)", "send_backward.1/send_backward.1 (micro-batch 0)"
    waits = f"waits for rank 1 along 'pp' to run {theirs}, where it comes after backward.1/backward.1 (micro-batch 0)"
    assert f"  rank 0, stream pp_recv_backward: {task}, {waits}" in lines
    received = "recv_forward.1/recv_forward.1 (micro-batch 1) on stream pp_recv_forward"
    assert f"  rank 1, stream compute: forward.1/forward.1 (micro-batch 1), waits for {received}" in lines
    assert lines[-1].startswith("they wait in a circle: rank 0 backward.0/backward.0 (micro-batch 0) -> ")


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
    expected = (
        r"rank 0, stream a: sum/sum_a \(micro-batch 0\), waits in its group over pp for rank 1, "
        r"where it comes after sum/sum_b \(micro-batch 0\)"
    )
    with pytest.raises(DeadlockError, match=expected):
        simulate(replace(plan, programs=tuple(chained)), pricing_on("local-cpu", 2))


def test_long_reports_are_cut_after_twenty_lines() -> None:
    """More than twenty stuck streams are counted, not listed."""
    plan = replace(exchange(receive_first=True), mesh=Mesh((("pp", 2), ("dp", 16))))
    with pytest.raises(DeadlockError, match=r"and 12 more") as caught:
        simulate(plan, TextbookPricing(), fold=no_fold)
    assert len(str(caught.value).splitlines()) == 23


def test_missing_message_is_refused_before_the_run() -> None:
    """The engine itself refuses a receive that nobody sends, naming the ranks and the axis."""
    plan = textbook_plan("gpipe", 2, 2)
    calls = tuple(call for call in plan.programs[0].calls if call.task != "send_forward.0")
    broken = replace(plan, programs=(replace(plan.programs[0], calls=calls), plan.programs[1]))
    with pytest.raises(CheckError, match="rank 1 posts 2 forward receives along 'pp' from rank 0, which posts 0 sends"):
        simulate(broken, TextbookPricing())


def ring(num_ranks: int, *, first_sends: bool) -> Plan:
    """Return ranks that each pass a buffer to the next: all receive before they send, maybe but the first."""
    programs = []
    for rank in range(num_ranks):
        send: Op = Send("give", "dp", 1, Direction.FORWARD, ("mine",), "wire")
        receive: Op = Recv("take", "dp", -1, Direction.FORWARD, ("yours",), "wire")
        ops = (send, receive) if first_sends and rank == 0 else (receive, send)
        buffers = {name: Buffer(name, (4,), "float32", Kind.ACTIVATION) for name in ("mine", "yours")}
        programs.append(Program({"dp": rank}, buffers, {"pass": Task("pass", Phase.SEND, ops)}, (Call("pass"),)))
    return Plan("ring", Mesh((("dp", num_ranks),)), tuple(programs))


@pytest.mark.parametrize("num_ranks", [2, 3, 5])
def test_a_ring_of_receives_names_the_whole_circle(num_ranks: int) -> None:
    """Every rank waits for the one before; the circle has all of them. One that sends first gets it going."""
    assert simulate(ring(num_ranks, first_sends=True), TextbookPricing(1.0)).makespan_s == num_ranks
    with pytest.raises(DeadlockError) as caught:
        simulate(ring(num_ranks, first_sends=False), TextbookPricing(1.0))
    *lines, circle = str(caught.value).splitlines()
    assert len(lines) == 1 + num_ranks
    for rank in range(num_ranks):
        waits = f"waits for rank {(rank - 1) % num_ranks} along 'dp' to run pass/give, where it comes after pass/take"
        assert f"  rank {rank}, stream wire: pass/take, {waits}" in lines
        assert f"rank {rank} pass/give -> rank {rank} pass/take" in f"{circle} -> rank 0 pass/take" or rank == 0
    assert circle.startswith("they wait in a circle: rank 0 pass/take -> ")
    assert circle.endswith("-> rank 0 pass/take")


def reducing(*orders: str, axis: str, sizes: dict[str, int], members: dict[str, tuple[int, ...]], stream: str) -> Plan:
    """Return ranks that sum persistent buffers over an axis, each in its order, on streams of this name or one each."""
    programs = []
    for rank, order in enumerate(orders):
        buffers = {n: Buffer(n, (size,), "float32", Kind.GRADIENT, Scope.PERSISTENT) for n, size in sizes.items()}
        ops = []
        for name in order:
            data = (name if name in sizes else "x",)
            group = members.get(name, ())
            ops.append(
                Collective(f"sum_{name}", CollectiveKind.ALL_REDUCE, (axis,), data, data, stream or name, members=group)
            )
        task = Task("sum", Phase.GRADIENT_SYNC, tuple(ops))
        programs.append(Program({axis: rank}, buffers, {"sum": task}, (Call("sum"),)))
    return Plan("sums", Mesh(((axis, len(orders)),)), tuple(programs))


def test_three_groups_that_wait_for_each_other_name_who_is_missing() -> None:
    """Ranks 0 and 1, 1 and 2, 2 and 0 sum the same data, each first with another group: data holds the rest back."""
    pairs = {"a": (0, 1), "b": (1, 2), "c": (0, 2)}
    plan = reducing("ac", "ba", "cb", axis="dp", sizes={"x": 4}, members=pairs, stream="")
    check(plan)
    with pytest.raises(DeadlockError) as caught:
        simulate(plan, pricing_on("local-cpu", 3))
    lines = str(caught.value).splitlines()
    waits = "waits in its group over dp for rank"
    assert f"  rank 0, stream a: sum/sum_a, {waits} 1, where it comes after sum/sum_b" in lines
    assert f"  rank 2, stream c: sum/sum_c, {waits} 0, where it comes after sum/sum_a" in lines
    assert "  rank 1, stream a: sum/sum_a, waits for sum/sum_b on stream b" in lines
    assert lines[-1].count(" -> ") == 6


def test_different_orders_on_one_stream_are_refused_with_both_ranks_ops() -> None:
    """Members that issue a group's collectives in another order: the check names both roles, the stream and the ops."""
    plan = reducing("ab", "ba", axis="pp", sizes={"a": 4, "b": 8}, members={}, stream="wire")
    expected = r"on stream 'wire' role pp=0, stream 'wire', op 'sum_a' meets role pp=1, stream 'wire', op 'sum_b'"
    with pytest.raises(CheckError, match=expected):
        check(plan)


def test_folded_ranks_are_called_by_whom_they_stand_for() -> None:
    """Of four equal pairs one is simulated and reported, with the rank that its first rank really waits for."""
    plan = replace(exchange(receive_first=True), mesh=Mesh((("pp", 2), ("dp", 4))))
    with pytest.raises(DeadlockError) as caught:
        simulate(plan, TextbookPricing(1.0))
    lines = str(caught.value).splitlines()
    assert len(lines) == 4
    assert lines[1].startswith("  rank 0, stream wire: swap/take (micro-batch 0), waits for rank 4 along 'pp'")
    assert "-> rank 4 swap/give (micro-batch 0) ->" in lines[-1]
