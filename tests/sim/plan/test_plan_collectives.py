"""Reduce, all_to_all and barrier in plans: rules, layouts, gradients, prices, and what a timeline says of them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from backends.simulated import SimulatedBackend
from costmodels.collectives.cost import collective_cost, exclusive_seconds
from costmodels.collectives.network import NetworkParameters
from costmodels.collectives.stepwise import uneven_all_to_all_cost
from costmodels.hardware import load_node
from costmodels.profile import load_profile
from sim.cluster.cluster import Cluster
from sim.engine.prices.pricing import ClusterPricing
from sim.plan.checking.check import check
from sim.plan.errors import CheckError, LayoutError, PlanError
from sim.plan.functions.basic import all_to_all, broadcast, reduce
from sim.plan.functions.gradients import backpropagate
from sim.plan.functions.linear import linear
from sim.plan.functions.tracing import ProgramTracer, TaskTracer, Tensor
from sim.plan.words.buffer import Buffer, Kind, Scope
from sim.plan.words.layout import PARTIAL, REPLICATED, Layout, Shard, sharded
from sim.plan.words.mesh import Mesh
from sim.plan.words.op import Collective, CollectiveKind, Compute, Op, Reduction
from sim.plan.words.program import Call, Phase, Plan, Program, Task
from tests.examples import examples

K = CollectiveKind
TABLE = ((1, 0, 5), (2, 2, 0), (0, 3, 1))
"""Rows from each of three ranks to each."""
SENT, RECEIVED = (6, 4, 4), (3, 5, 6)


def buffer(name: str, *shape: int, dtype: str = "float32") -> Buffer:
    """Return a buffer that is there from the start."""
    return Buffer(name, shape, dtype, Kind.WORKSPACE, Scope.PERSISTENT)


def program(op: Op | Sequence[Op], *buffers: Buffer, role: dict[str, int] | None = None) -> Program:
    """Return a program of one task that is called once."""
    ops = (op,) if isinstance(op, Collective) else tuple(op)
    return Program(role or {}, {b.name: b for b in buffers}, {"t": Task("t", Phase.FORWARD, ops)}, (Call("t"),))


def plan(*programs: Program, degree: int = 3) -> Plan:
    """Return a plan over one axis."""
    return Plan("by hand", Mesh((("ep", degree),)), programs)


def collective(kind: K, reads: Sequence[str] = ("x",), writes: Sequence[str] = ("y",), **keys: Any) -> Collective:
    """Return a collective over the axis."""
    return Collective("op", kind, ("ep",), tuple(reads), tuple(writes), "ep", **keys)


def uneven(table: tuple[tuple[int, ...], ...] = TABLE, **changes: Any) -> Plan:
    """Return a plan in which every rank has a role of its own, and buffers of its own lengths."""
    op = collective(K.ALL_TO_ALL, dim=0, sizes=table)
    return plan(
        *(
            program(
                replace(op, **changes) if r == 1 else op, buffer("x", SENT[r], 8), buffer("y", RECEIVED[r], 8),
                role={"ep": r},
            )
            for r in range(3)
        )
    )  # fmt: skip


X, Y = buffer("x", 6, 4), buffer("y", 6, 4)
EVEN = collective(K.ALL_TO_ALL, dim=0, join_dim=1)
GOOD = {
    "reduce": (collective(K.REDUCE, root=2), X, Y),
    "reduce in place": (collective(K.REDUCE, writes=("x",), reduction=Reduction.MAX), X),
    "broadcast": (collective(K.BROADCAST, root=1), X, Y),
    "all_to_all": (EVEN, X, buffer("y", 2, 12)),
    "all_to_all along one dimension": (replace(EVEN, join_dim=None), X, Y),
    "all_to_all in one role": (collective(K.ALL_TO_ALL, dim=0, sizes=TABLE), X, Y),
    "barrier": (collective(K.BARRIER, (), ()),),
    "flat gather": (collective(K.ALL_GATHER), X, buffer("y", 70)),
}


@pytest.mark.parametrize("name", GOOD)
def test_good_collectives_pass(name: str) -> None:
    """Each kind in its proper use."""
    op, *buffers = GOOD[name]
    check(plan(program(op, *buffers)))


BAD: dict[str, tuple[Collective, tuple[Buffer, ...], str]] = {
    "reduce to nowhere": (collective(K.REDUCE, root=3), (X, Y), "root 3 is no position of a group of 3"),
    "reduce of nothing": (collective(K.REDUCE, reads=()), (X, Y), "every rank of a reduce gives a term"),
    "reduce to nothing": (collective(K.REDUCE, writes=()), (X,), "root of a reduce, position 0, writes nothing"),
    "reduce of another size": (collective(K.REDUCE), (X, buffer("y", 5)), "as many elements as it reads, got 24 and 5"),
    "broadcast of nothing": (collective(K.BROADCAST, reads=()), (X, Y), "root of a broadcast, position 0, reads noth"),
    "broadcast to nothing": (collective(K.BROADCAST, writes=()), (X,), "gets a broadcast writes nothing"),
    "rooted all_reduce": (collective(K.ALL_REDUCE, writes=("x",), root=1), (X,), "an all_reduce has no root, got 1"),
    "reduced broadcast": (collective(K.BROADCAST, reduction=Reduction.MAX), (X, Y), "a broadcast reduces nothing"),
    "broadcast along 0": (collective(K.BROADCAST, dim=0), (X, Y), "a broadcast has no dimension, got 0"),
    "joined gather": (
        collective(K.ALL_GATHER, dim=0, join_dim=1), (X, buffer("y", 18, 4)), "an all_gather joins along no other"
    ),
    "tabled gather": (collective(K.ALL_GATHER, sizes=TABLE), (X, buffer("y", 72)), "an all_gather has no table"),
    "short gather": (collective(K.ALL_GATHER), (X, buffer("y", 73)), "3 pieces of 24 elements cannot hold 73"),
    "misshapen gather": (collective(K.ALL_GATHER, dim=1), (X, buffer("y", 6, 8)), "along dimension 1 do not make"),
    "misshapen scatter": (collective(K.REDUCE_SCATTER, dim=0), (X, buffer("y", 3, 4)), "do not make"),
    "dimensionless": (replace(EVEN, dim=None), (X, Y), "an all_to_all cuts along a dimension, got none"),
    "in place": (replace(EVEN, writes=("x",), join_dim=0), (X,), "an all_to_all does not work in place"),
    "indivisible": (collective(K.ALL_TO_ALL, dim=1), (X, Y), "dimension 1 of .6, 4. does not divide by 3"),
    "beyond": (replace(EVEN, join_dim=2), (X, Y), "has no dimension 2"),
    "misjoined": (EVEN, (X, Y), r"3 slices of \(6, 4\) do not make \(6, 4\)"),
    "two types": (EVEN, (X, buffer("y", 2, 12, dtype="float64")), "moves one element type, got float32 and float64"),
    "two buffers": (replace(EVEN, reads=("x", "y")), (X, Y), "along a dimension one buffer moves"),
    "small table": (collective(K.ALL_TO_ALL, dim=0, sizes=TABLE[:2]), (X, Y), "a group of 3 needs 3 x 3 sizes"),
    "negative": (collective(K.ALL_TO_ALL, dim=0, sizes=(TABLE[0], TABLE[1], (0, 4, -1))), (X, Y), "a size is negative"),
    "joined table": (collective(K.ALL_TO_ALL, dim=0, join_dim=1, sizes=TABLE), (X, Y), "joined along dimension 0"),
    "long buffer": (
        collective(K.ALL_TO_ALL, dim=0, sizes=TABLE), (buffer("x", 7, 4), Y), "sends 6 rows of dimension 0, .* has 7"
    ),
    "short target": (
        collective(K.ALL_TO_ALL, dim=0, sizes=TABLE), (X, buffer("y", 5, 4)), r"shape \(6, 4\), and its buffer \(5, 4\)"
    ),
    "barrier with a payload": (collective(K.BARRIER), (X, Y), "a barrier moves nothing"),
    "barrier with a root": (collective(K.BARRIER, (), (), root=1), (), "a barrier has no root"),
    "nothing": (collective(K.ALL_REDUCE, (), ()), (), "an all_reduce needs buffers"),
    "strange member": (
        collective(K.ALL_REDUCE, writes=("x",), members=(0, 3)), (X,), "members .0, 3. are not distinct positions"
    ),
    "no member": (collective(K.ALL_REDUCE, writes=("x",), members=(0, 1)), (X,), "not among the members"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_wrong_uses_are_refused_by_name(name: str) -> None:
    """The message names role, stream and op, and the rule with both sides worked out."""
    op, buffers, rule = BAD[name]
    with pytest.raises(CheckError, match=f"role all, stream 'ep', op 'op': .*{rule}"):
        check(plan(program(op, *buffers)))


def test_every_rank_may_have_buffers_of_its_own_lengths() -> None:
    """Roles of one rank each: exactly the rows that the table says, checked rank by rank."""
    check(uneven())
    with pytest.raises(CheckError, match=r"role ep=1, .* it sends 5 rows of dimension 0, and its buffer has 4"):
        check(uneven(sizes=(TABLE[0], (2, 2, 1), TABLE[2])))


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"sizes": ((1, 0, 5), (2, 2, 0), (0, 3, 2))}, "sizes"),
        ({"kind": K.REDUCE_SCATTER, "sizes": ()}, "kind: all_to_all and reduce_scatter"),
    ],
)
def test_members_agree_on_the_table(change: dict[str, Any], what: str) -> None:
    """A table that one member has otherwise is refused, though its own rows fit."""
    changed = uneven(**change)
    if "kind" in change:
        own = dict(changed.programs[1].buffers) | {"y": buffer("y", 1, 11)}
        own["x"] = buffer("x", 3, 11)
        programs = (changed.programs[0], replace(changed.programs[1], buffers=own), changed.programs[2])
        changed = replace(changed, programs=programs)
    with pytest.raises(CheckError, match=rf"role ep=0, .* meets role ep=1, .* collectives in order \(.*{what}"):
        check(changed)


def test_ranks_that_share_tasks_are_each_checked_in_their_place() -> None:
    """Two ranks are members of a sum, the third one is not, and runs the same tasks: it is refused by its role."""
    first = program(collective(K.ALL_REDUCE, writes=("x",), members=(0, 1)), X, role={"ep": 0})
    with pytest.raises(CheckError, match=r"role ep=2, .* position .2. issues it and is not among the members"):
        check(plan(first, *[replace(first, role={"ep": place}) for place in (1, 2)]))


def test_members_agree_on_the_root() -> None:
    """Two ranks that each take the other for the root are refused, with both roots."""
    ranks = [program(collective(K.REDUCE, root=r), X, Y, role={"ep": r}) for r in range(2)]
    with pytest.raises(CheckError, match=r"must issue the same collectives in order \(root: 0 and 1\)"):
        check(plan(*ranks, degree=2))


def test_other_ranks_need_no_buffer_for_what_they_do_not_have() -> None:
    """A broadcast's receivers read nothing, a reduce's givers write nothing."""
    back = collective(K.REDUCE, reads=("y",), writes=("x",))
    rooted = program([collective(K.BROADCAST), back], X, Y, role={"ep": 0})
    other = program([collective(K.BROADCAST, reads=()), replace(back, writes=())], Y, role={"ep": 1})
    check(plan(rooted, other, degree=2))


WAIT = Compute("wait", "delay", ("x",), (), {"duration_s": 0.0})


def test_leaving_out_one_members_op_is_refused() -> None:
    """A barrier or exchange that one member skips is noticed, and the member named."""
    for op in (collective(K.BARRIER, (), ()), collective(K.REDUCE), EVEN):
        buffers = (X, buffer("y", 3, 8) if op is EVEN else Y)
        ranks = [program([op if r == 0 else WAIT], *buffers, role={"ep": r}) for r in range(2)]
        with pytest.raises(CheckError, match="op 'op' meets nothing of role ep=1"):
            check(plan(*ranks, degree=2))


# --- layouts and their gradients -----------------------------------------------------------------------------------


@pytest.fixture
def tracer() -> TaskTracer:
    """Return a tracer over cp=2, tp=4."""
    return TaskTracer(ProgramTracer(Mesh((("cp", 2), ("tp", 4))), "float32", "float32"))


def tensor(t: TaskTracer, name: str, shape: tuple[int, ...], layout: Layout) -> Tensor:
    """Return a new tensor."""
    return t.program.tensor(Buffer(name, shape, "float32", Kind.ACTIVATION), layout)


def emitted(t: TaskTracer) -> list[tuple[str, ...]]:
    """Return kind, read and written buffer of each collective."""
    return [(str(op.kind), *op.reads, *op.writes) for op in t.ops if isinstance(op, Collective)]


def test_shard_to_shard_is_an_all_to_all_and_so_is_its_gradient(tracer: TaskTracer) -> None:
    """[s/t, b, h] becomes [s, b, h/t] and back (sequence to heads), in one collective each way."""
    x = tensor(tracer, "x", (3, 2, 8), sharded(0, ["tp"]))
    y = all_to_all(tracer, x, "tp", 2)
    assert (y.shape, y.layout) == ((12, 2, 2), sharded(2, ["tp"]))
    reverse = TaskTracer(tracer.program, recording=False)
    dy = tensor(tracer, "dy", y.shape, y.layout)
    dx = backpropagate(reverse, tracer.tape, {y: dy})[x]
    assert (dx.shape, dx.layout) == (x.shape, x.layout)
    assert emitted(tracer) == [("all_to_all", "x", "x.all_to_all")]
    assert emitted(reverse) == [("all_to_all", "dy", "dy.all_to_all")]
    forward, backward = tracer.ops[0], reverse.ops[0]
    assert isinstance(forward, Collective)
    assert isinstance(backward, Collective)
    assert (forward.dim, forward.join_dim, backward.dim, backward.join_dim) == (2, 0, 0, 2)


def test_exchange_refuses_what_it_cannot_lay_anew(tracer: TaskTracer) -> None:
    """Replicated tensors, dimensions that do not divide, and an axis whose slices another axis cuts further."""
    with pytest.raises(LayoutError, match="x lies None over 'tp', which no all_to_all brings to dimension 1"):
        all_to_all(tracer, tensor(tracer, "x", (4, 4), REPLICATED), "tp", 1)
    with pytest.raises(PlanError, match=r"dimension 1 of \(4, 6\) does not divide by 4"):
        all_to_all(tracer, tensor(tracer, "y", (4, 6), sharded(0, ["tp"])), "tp", 1)
    with pytest.raises(LayoutError, match="z is cut further along dimension 0 inside the slices of 'cp'"):
        all_to_all(tracer, tensor(tracer, "z", (4, 8), sharded(0, ["cp", "tp"])), "cp", 1)
    inner = all_to_all(tracer, tensor(tracer, "w", (4, 8), sharded(0, ["cp", "tp"])), "tp", 1)
    assert inner.layout == Layout((("cp", Shard(0)), ("tp", Shard(1))))


def test_gradients_that_meet_in_other_shards_are_exchanged(tracer: TaskTracer) -> None:
    """A gradient sharded along another dimension than its tensor is brought to it before the two terms are added."""
    x = tensor(tracer, "x", (2, 8), sharded(0, ["tp"]))
    y = all_to_all(tracer, x, "tp", 1)
    reverse = TaskTracer(tracer.program, recording=False)
    found = backpropagate(reverse, tracer.tape, {y: tensor(tracer, "dy", (2, 8), sharded(0, ["tp"]))})
    assert found[x].layout == x.layout
    assert [kind for kind, *_ in emitted(reverse)] == ["all_to_all", "all_to_all"]


def test_broadcast_and_reduce_are_each_others_gradient(tracer: TaskTracer) -> None:
    """The root's slice goes to all and its gradient is summed at the root; a sum at the root is broadcast back."""
    x = tensor(tracer, "x", (2, 8), sharded(0, ["tp"]))
    y = broadcast(tracer, x, "tp", 3)
    weight = tracer.program.parameter("w", (8, 12), sharded(1, ["tp"]), "normal")
    z = linear(tracer, "z", y, weight)
    reverse = TaskTracer(tracer.program, recording=False)
    dx = backpropagate(reverse, tracer.tape, {z: tensor(tracer, "dz", z.shape, z.layout)})[x]
    assert dx.layout == x.layout
    assert emitted(reverse) == [("reduce", "z.input_gradient", "z.input_gradient.reduce")]
    assert all(op.root == 3 for t in (tracer, reverse) for op in t.ops if isinstance(op, Collective))

    partial = tensor(tracer, "p", (2, 8), Layout((("tp", PARTIAL),)))
    again = TaskTracer(tracer.program)
    total = reduce(again, partial, "tp", 1, 0)
    assert total.layout == x.layout
    back = TaskTracer(tracer.program, recording=False)
    dp = backpropagate(back, again.tape, {total: tensor(tracer, "dt", (2, 8), total.layout)})[partial]
    assert dp.layout == REPLICATED
    assert emitted(back) == [("broadcast", "dt", "dt.broadcast")]


def test_rooted_functions_refuse_other_layouts(tracer: TaskTracer) -> None:
    """There must be a slice to broadcast, terms to reduce, and a gradient in terms to reduce back."""
    x = tensor(tracer, "x", (2, 8), sharded(0, ["tp"]))
    with pytest.raises(LayoutError, match="r is not sharded over 'tp'"):
        broadcast(tracer, tensor(tracer, "r", (2, 8), REPLICATED), "tp", 0)
    with pytest.raises(LayoutError, match="x is not partial over 'tp'"):
        reduce(tracer, x, "tp", 0, 0)
    y = broadcast(tracer, x, "tp", 0)
    with pytest.raises(LayoutError, match="has no terms over 'tp' to reduce"):
        backpropagate(TaskTracer(tracer.program), tracer.tape, {y: tensor(tracer, "dy", (2, 8), REPLICATED)})


# --- prices --------------------------------------------------------------------------------------------------------

NODE = load_node("dgx-a100-80g")
PROFILE = load_profile(NODE.device.generation)


def pricing(devices_per_node: int) -> ClusterPricing:
    """Return the prices of a cluster of nodes with so many devices in use."""
    return ClusterPricing(Cluster(NODE, 4, devices_per_node), PROFILE)


@pytest.mark.parametrize("devices_per_node", [1, 2, 8])
@pytest.mark.parametrize("kind", [K.REDUCE, K.ALL_TO_ALL, K.BARRIER, K.BROADCAST])
def test_collective_lasts_as_long_as_its_cost_model_says(kind: K, devices_per_node: int) -> None:
    """Alone on its links, in one node and over several."""
    buffers = (buffer("x", 1024, 2048), buffer("y", 1024, 2048))
    op = collective(kind, dim=0) if kind is K.ALL_TO_ALL else collective(kind)
    if kind is K.BARRIER:
        op, buffers = collective(kind, (), ()), ()
    prices = pricing(devices_per_node)
    per_node = (devices_per_node,) * (4 // devices_per_node) if devices_per_node < 4 else (4,)
    network = prices.network.parameters
    cost = collective_cost(kind, 0 if kind is K.BARRIER else 2**23, per_node, network)
    timeline = SimulatedBackend(prices, fold=False).run(plan(program(op, *buffers), degree=4))
    durations_s = timeline.end_s - timeline.start_s
    assert durations_s.tolist() == pytest.approx([exclusive_seconds(cost, per_node, network)] * 4)
    assert set(timeline.bytes) == {0 if kind is K.BARRIER else 2**23}


lines = st.lists(st.integers(0, 4000), min_size=4, max_size=4).map(tuple)


@settings(max_examples=examples(12), deadline=None)
@given(table=st.lists(lines, min_size=4, max_size=4).map(tuple), devices_per_node=st.sampled_from([1, 2, 8]))
def test_uneven_exchange_lasts_as_long_as_its_table_says(
    table: tuple[tuple[int, ...], ...], devices_per_node: int
) -> None:
    """Rows of 8 float32 from each to each; also where the group's order is not that of the nodes."""
    op = collective(K.ALL_TO_ALL, dim=0, sizes=table)
    longest = [max(sum(line) for line in lines) for lines in (table, zip(*table, strict=True))]
    ranks = program(op, buffer("x", longest[0], 8), buffer("y", longest[1], 8))
    prices = pricing(devices_per_node)
    per_node = (devices_per_node,) * (4 // devices_per_node) if devices_per_node < 4 else (4,)
    straight = plan(ranks, degree=4)
    check(straight)
    expected = [[32 * n for n in line] for line in table]
    network = prices.network.parameters
    assert _lasts(straight, prices) == pytest.approx(_uneven_seconds(expected, per_node, network))

    # group order (column, row): position p is rank (0, 2, 1, 3)[p]
    turned = Plan("turned", Mesh((("row", 2), ("column", 2))), (replace(ranks, tasks={
        "t": Task("t", Phase.FORWARD, (replace(op, axes=("column", "row")),))}),))  # fmt: skip
    by_rank = [[expected[(0, 2, 1, 3)[s]][(0, 2, 1, 3)[t]] for t in range(4)] for s in range(4)]
    assert _lasts(turned, prices) == pytest.approx(_uneven_seconds(by_rank, per_node, network))


def _uneven_seconds(sizes: list[list[int]], per_node: tuple[int, ...], network: NetworkParameters) -> float:
    """Return the closed form's time, but with every rank's own adapter as busy as it is, not its node's mean."""
    cost = uneven_all_to_all_cost(sizes, per_node, network)
    if not cost.nic_bytes:
        return exclusive_seconds(cost, per_node, network)
    node = np.repeat(np.arange(len(per_node)), per_node)
    between = np.where(node[:, None] != node[None, :], np.array(sizes, float), 0.0)
    of_nodes = [np.add.reduceat(between.sum(axis), np.append(0, np.cumsum(per_node)[:-1])) for axis in (0, 1)]
    busiest = max(between.sum(0).max(), between.sum(1).max()) / max(found.max() for found in of_nodes)
    nic_s = cost.nic_bytes * busiest / network.inter_bandwidth_bytes_per_s
    return cost.latency_s + max(nic_s, cost.port_bytes / network.intra_bandwidth_bytes_per_s)


def _lasts(one: Plan, prices: ClusterPricing) -> float:
    times = SimulatedBackend(prices, fold=False).run(one)
    return float(max(times.end_s - times.start_s))


def test_timeline_carries_each_ranks_own_bytes() -> None:
    """What rank s of an uneven exchange sends: its row of the table, 32 bytes per row here."""
    timeline = SimulatedBackend(pricing(8), fold=False).run(uneven())
    assert dict(zip(timeline.rank.tolist(), timeline.bytes.tolist(), strict=True)) == {
        rank: 32 * rows for rank, rows in enumerate(SENT)
    }


def test_barrier_holds_its_stream_until_all_have_come() -> None:
    """What follows it on the stream starts together, after the slowest rank's op before it."""
    wait = replace(collective(K.BARRIER, (), ()), axes=("half", "ep"))
    ops = (collective(K.BROADCAST), wait, collective(K.REDUCE))
    big = (buffer("x", 2**22), buffer("y", 2**22))
    late, early = program(ops, *big, role={"half": 0}), program(ops[1:], *big, role={"half": 1})
    both = Plan("halves", Mesh((("half", 2), ("ep", 2))), (late, early))
    check(both)
    timeline = SimulatedBackend(pricing(8), fold=False).run(both)
    slowest_s = max(timeline.end_s[timeline.select(kind="broadcast")])
    after = timeline.select(kind="reduce")
    assert len(after) == 4
    assert min(timeline.start_s[after]) > slowest_s > 0
    assert timeline.end_s[timeline.select(kind="barrier")].tolist() == pytest.approx(timeline.start_s[after].tolist())
