"""Laws of the engine on random dense jobs, against a slow engine of its own."""

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from costmodels.hardware import NodeSpec, load_node
from sim.engine.findings.critical_path import critical_path
from sim.engine.findings.timeline import timeline
from sim.engine.folding.folding import Folding, fold, no_fold
from sim.engine.prices.activity import Activity
from sim.engine.running.run import SimulatedRun
from sim.engine.running.simulate import simulate
from sim.plan.checking.check import check
from sim.plan.words.buffer import Kind
from sim.plan.words.op import Collective, CollectiveKind, Compute, Op, Recv
from sim.plan.words.program import Plan, Program, Task
from sim.training.spec.parallelism.sharding import Choice, OsdpSpec
from tests.examples import examples
from tests.sim.engine.reference import ReferenceEngine, hazards
from tests.sim.jobs import GPT, as_array, dense_plan, op_times, pricing_on
from tests.sim.strategies import NODES, aiao_keys, dense_keys, dense_plans
from traces.timeline import Timeline

LAW = settings(max_examples=examples(16), deadline=None, suppress_health_check=[HealthCheck.too_slow])
PER_NODE = st.sampled_from([1, 2, 4, 8])
FOLD = st.sampled_from([fold, no_fold])
SHARDED = {"layer0.fc2", "layer1.fc1", "layer1.fc2"}
OPERATORS = [f"layer{layer}.{name}" for layer in (0, 1) for name in ("qkv", "projection", "fc1", "fc2")]
UNLIKE_TASKS = dense_plan(
    pp=2, dp=2, schedule="gpipe", m=1, b=1, model=GPT | {"num_layers": 2, "tied_embeddings": True},
    osdp=OsdpSpec(choices=tuple((name, Choice(1, int(name in SHARDED))) for name in (*OPERATORS, "embedding.word"))),
)  # fmt: skip
"""Two stages with a task of one name, which has a stream on one of them alone, and a collective of both stages."""
TWO_OF_A_KIND = dense_plan(tp=2, dp=3, m=1, axis_order=("pp", "tp", "dp"))
"""On nodes of two, a link that two groups of one class share; another class's group meets one of them alone."""


def assert_same_times(run: SimulatedRun, other: dict[Any, Any], *, receives: bool = True) -> None:
    """Fail unless all ops have the same times to 1e-9 of the makespan (of receives the ends only, where asked)."""
    found = op_times(run)
    assert found.keys() == other.keys()
    keys = sorted(found)
    difference = np.abs(as_array(found, keys) - as_array(other, keys))
    if not receives:
        is_receive = [isinstance(_op(run, key), Recv) for key in keys]
        difference[is_receive, 0] = 0.0
    assert difference.max() <= 1e-9 * run.makespan_s, keys[int(difference.max(axis=1).argmax())]


def _op(run: SimulatedRun, key: tuple[int, int, int]) -> Any:
    rank, call, j = key
    program = run.programs[rank]
    return program.tasks[program.calls[call].task].ops[j]


@LAW
@given(plan=dense_plans(), node=st.sampled_from(NODES), per_node=PER_NODE, fold=FOLD, coalesce=st.booleans())
@example(plan=TWO_OF_A_KIND, node="cloud-a100-100g", per_node=2, fold=fold, coalesce=False)
@example(plan=UNLIKE_TASKS, node="dgx-a100-80g", per_node=4, fold=fold, coalesce=True)
def test_every_op_runs_when_the_reference_engine_says(
    plan: Plan, node: str, per_node: int, fold: Any, coalesce: bool
) -> None:
    """Streams, hazards, messages, groups and fair sharing equal, op by op, a slow engine written from the rules."""
    pricing = pricing_on(node, plan.mesh.size, devices_per_node=per_node)
    run = simulate(plan, pricing, fold=fold, coalesce=coalesce)
    reference = ReferenceEngine(plan, pricing, fold(plan, pricing)).run()
    assert run.makespan_s == pytest.approx(reference.makespan_s, rel=1e-9)
    assert_same_times(run, reference.times, receives=False)


@LAW
@given(plan=dense_plans(12), node=st.sampled_from(NODES), per_node=PER_NODE, fold=FOLD)
def test_coalesced_equals_step_by_step(plan: Plan, node: str, per_node: int, fold: Any) -> None:
    """Coalescing changes no time of any op."""
    pricing = pricing_on(node, plan.mesh.size, devices_per_node=per_node)
    run = simulate(plan, pricing, fold=fold)
    assert_same_times(run, op_times(simulate(plan, pricing, fold=fold, coalesce=False)))


@settings(LAW, max_examples=examples(6))
@given(keys=aiao_keys(), node=st.sampled_from(NODES), per_node=PER_NODE, fold=FOLD)
def test_steps_without_a_barrier_coalesced_equal_step_by_step(
    keys: dict[str, Any], node: str, per_node: int, fold: Any
) -> None:
    """All-in-all-out's steps run into each other; coalescing changes neither their period nor any op's time."""
    plan = dense_plan(**keys)
    pricing = pricing_on(node, plan.mesh.size, devices_per_node=per_node)
    run, single = simulate(plan, pricing, fold=fold), simulate(plan, pricing, fold=fold, coalesce=False)
    assert run.iteration_time_s == pytest.approx(single.iteration_time_s, rel=1e-9)
    assert_same_times(run, op_times(single))


def with_pieces_apart(program: Program) -> Program:
    """Return a program whose optimizer updates its own state alone, from which parameters are then gathered."""

    def changed(op: Op) -> Op:
        if isinstance(op, Compute) and op.kernel == "adam_piece":
            return replace(op, writes=tuple(n for n in op.writes if program.buffers[n].kind is Kind.OPTIMIZER))
        return op

    def gathering(task: Task) -> Task:
        ops = [changed(op) for op in task.ops]
        state = next((op.writes[0] for op in ops if op.name.startswith("adam.")), None)
        gathers = isinstance(ops[-1], Collective) and ops[-1].kind is CollectiveKind.ALL_GATHER and state is not None
        return replace(task, ops=(*ops[:-1], replace(ops[-1], reads=(state,)) if gathers else ops[-1]))

    return replace(program, tasks={name: gathering(task) for name, task in program.tasks.items()})


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_an_op_done_before_its_block_may_begin_lets_others_go(recompute: str) -> None:
    """Gathered parameters let a forward's ops go at different times; who waits for one waits no longer than for it.

    Here it is the gather of the step before's parameters. Such calls stay blocks: they are the few that an optimizer of
    that step leads into.
    """
    keys = {"schedule": "aiao", "virtual_stages": 2, "zero_stage": 1, "overlap_gradient_sync": True, "pp": 3, "m": 8}
    plan = dense_plan(**keys, tp=2, dp=2, sequence_parallel=True, recompute=recompute, model=GPT | {"num_layers": 6})
    plan = replace(plan, programs=tuple(map(with_pieces_apart, plan.programs)))
    pricing = pricing_on("dgx-a100-80g", plan.mesh.size, devices_per_node=2)
    run, single = simulate(plan, pricing), simulate(plan, pricing, coalesce=False)
    assert run.graph.early_exits
    assert run.num_events < 0.25 * single.num_events
    assert_same_times(run, op_times(single))
    path = critical_path(run)
    assert sum(step.duration_s for step in path.steps) == pytest.approx(run.iteration_time_s, rel=1e-9)


@LAW
@given(plan=dense_plans(), node=st.sampled_from(NODES), per_node=PER_NODE, fold=FOLD)
def test_a_run_keeps_what_any_run_must(plan: Plan, node: str, per_node: int, fold: Any) -> None:
    """Streams and hazards are kept, no lower bound is undercut, and every message arrives whole."""
    check(plan)
    run = simulate(plan, pricing_on(node, plan.mesh.size, devices_per_node=per_node), fold=fold)
    table = timeline(run, "op")
    table.check_streams()
    assert_hazards_are_kept(run)
    assert_no_bound_is_undercut(run)
    assert_bytes_sent_are_bytes_received(table)


def assert_hazards_are_kept(run: SimulatedRun) -> None:
    """Fail where an op starts before one of its RAW, WAR and WAW pairs is done."""
    times, slack_s = op_times(run), 1e-9 * run.makespan_s
    for rank, program in run.programs.items():
        for (call, j), needed in hazards(program).items():
            start_s, end_s = times[rank, call, j]
            assert start_s <= end_s + slack_s
            is_receive = isinstance(_op(run, (rank, call, j)), Recv)
            for before in needed:
                begins_after = end_s if is_receive else start_s
                assert times[(rank, *before)][1] <= begins_after + slack_s


def assert_no_bound_is_undercut(run: SimulatedRun) -> None:
    """Fail where the makespan is less than a stream's work, a resource's demand, or a chain of hazards, ops alone."""
    allowed_s = run.makespan_s * (1 + 1e-9)
    use_s: dict[Any, float] = {}
    joint_use_s: dict[Any, float] = {}
    for rank, program in run.programs.items():
        chain: dict[tuple[int, int], float] = {}
        for (call, j), needed in hazards(program).items():
            activity = run.priced[rank][program.calls[call].task].activities[j]
            alone_s = 0.0 if isinstance(_op(run, (rank, call, j)), Recv) else _least_s(run, rank, call, j, activity)
            chain[call, j] = alone_s + max((chain[other] for other in needed), default=0.0)
            stream = (rank, _op(run, (rank, call, j)).stream)
            use_s[stream] = use_s.get(stream, 0.0) + alone_s
            if not isinstance(_op(run, (rank, call, j)), Collective):
                for resource, seconds in activity.demands:
                    joint_use_s[resource] = joint_use_s.get(resource, 0.0) + seconds
        assert max(chain.values()) <= allowed_s
    assert max(use_s.values()) <= allowed_s
    assert max(joint_use_s.values()) <= allowed_s


def assert_bytes_sent_are_bytes_received(table: Timeline) -> None:
    """Fail unless every message arrives with the size it left with, and every send row has its receive row."""
    sent, received = table.select(kind="send"), table.select(kind="recv")
    assert sorted(table.messages.send.tolist()) == sorted(sent.tolist())
    assert sorted(table.messages.recv.tolist()) == sorted(received.tolist())
    assert (table.bytes[table.messages.send] == table.bytes[table.messages.recv]).all()
    assert (table.microbatch[table.messages.send] == table.microbatch[table.messages.recv]).all()
    assert (table.end_s[table.messages.send] <= table.end_s[table.messages.recv] + 1e-9 * table.duration_s).all()


def _least_s(run: SimulatedRun, rank: int, call: int, j: int, activity: Activity) -> float:
    """Return the least time an op occupies its stream (a message's latency passes after its sender is free)."""
    return activity.occupancy_s if type(_op(run, (rank, call, j))).__name__ == "Send" else activity.duration_s


@LAW
@given(plan=dense_plans(), node=st.sampled_from(NODES))
def test_two_runs_are_identical(plan: Plan, node: str) -> None:
    """Running twice gives the very same times and the same number of events."""
    pricing = pricing_on(node, plan.mesh.size)
    one, other = simulate(plan, pricing), simulate(plan, pricing_on(node, plan.mesh.size))
    assert op_times(one) == op_times(other)
    assert (one.makespan_s, one.num_events) == (other.makespan_s, other.num_events)


# --- faster hardware ---------------------------------------------------------------------------------------


def scaled(node: NodeSpec, *, bandwidth: float, latency: float, memory: float, flop: float) -> NodeSpec:
    """Return a node with links, memory and arithmetic faster by the given factors."""
    device = replace(
        node.device,
        memory_bandwidth_bytes_per_s=node.device.memory_bandwidth_bytes_per_s * memory,
        peak_flop_per_s={dtype: rate * flop for dtype, rate in node.device.peak_flop_per_s.items()},
    )
    links = {
        name: replace(
            getattr(node, name),
            bandwidth_bytes_per_s=getattr(node, name).bandwidth_bytes_per_s * bandwidth,
            latency_s=getattr(node, name).latency_s / latency,
        )
        for name in ("intra", "nic")
    }
    return replace(node, device=device, **links)


FACTOR = st.floats(1, 10)


@LAW
@given(
    keys=dense_keys(most_stage=1), degrees=st.sampled_from([(1, 1, 1), (4, 1, 1), (1, 3, 1), (1, 1, 2)]),
    per_node=PER_NODE, bandwidth=FACTOR, latency=FACTOR, memory=FACTOR, flop=FACTOR, node=st.sampled_from(NODES),
)  # fmt: skip
def test_better_hardware_is_never_slower_where_nothing_is_contended(
    *, keys: dict[str, Any], degrees: tuple[int, int, int], per_node: int, bandwidth: float, latency: float,
    memory: float, flop: float, node: str,
) -> None:  # fmt: skip
    """More bandwidth, less latency or more arithmetic never lengthens a plan whose ops do not meet on a resource."""
    tp, dp, pp = degrees
    model = keys["model"] | {"tied_embeddings": False}
    plan = dense_plan(**keys | {
        "tp": tp, "dp": dp, "pp": pp, "model": model, "schedule": "1f1b", "virtual_stages": 1,
        "sequence_parallel": False, "collective_matmul": False,
    })  # fmt: skip
    slow = simulate(plan, pricing_on(node, plan.mesh.size, devices_per_node=per_node))
    fast_node = scaled(load_node(node), bandwidth=bandwidth, latency=latency, memory=memory, flop=flop)
    fast = simulate(plan, pricing_on(fast_node, plan.mesh.size, devices_per_node=per_node))
    assert not any(activity.demands for activity in slow.graph.shared)
    assert not any(joint.shared for joint in slow.graph.joints)
    assert fast.makespan_s <= slow.makespan_s * (1 + 1e-12)


@LAW
@given(keys=dense_keys(), layers=st.integers(1, 2))
def test_more_work_never_takes_less_time(keys: dict[str, Any], layers: int) -> None:
    """One more layer per virtual stage, all else equal, lengthens the step. From the second on all are alike."""
    stages = keys["pp"] * keys["virtual_stages"]
    makespans = []
    for count in (layers, layers + 1):
        plan = dense_plan(**keys | {"model": keys["model"] | {"num_layers": count * stages}})
        makespans.append(simulate(plan, pricing_on("dgx-a100-80g", plan.mesh.size)).makespan_s)
    assert makespans[0] < makespans[1]


# --- folding -----------------------------------------------------------------------------------------------


def largest_difference(plan: Plan, node: str, per_node: int = 0) -> tuple[float, float]:
    """Return the folded makespan relative to the unfolded, and the largest difference of an op relative to it."""
    pricing = pricing_on(node, plan.mesh.size, devices_per_node=per_node)
    folded, every = simulate(plan, pricing), simulate(plan, pricing, fold=no_fold)
    stands_for, times = folded.folding.stands_for, op_times(folded)
    gap_s = max(
        abs(value - mine)
        for (rank, *rest), found in op_times(every).items()
        for value, mine in zip(found, times[stands_for[rank], rest[0], rest[1]], strict=True)
    )
    return folded.makespan_s / every.makespan_s, gap_s / every.makespan_s


@LAW
@given(plan=dense_plans(18), node=st.sampled_from(NODES), per_node=st.sampled_from([1, 2, 3, 4, 6, 8]))
def test_folded_equals_unfolded(plan: Plan, node: str, per_node: int) -> None:
    """One rank per class gives every rank's every op the same times as all of them, however the ranks lie on nodes."""
    ratio, gap = largest_difference(plan, node, per_node)
    assert ratio == pytest.approx(1, rel=1e-9)
    assert gap < 1e-9


def test_folding_stands_for_every_rank_once() -> None:
    """Multiplicities add up to the world, and each rank is stood for by one of its own role."""
    plan = dense_plan(tp=2, pp=2, dp=2, m=2)
    pricing = pricing_on("dgx-a100-80g", plan.mesh.size)
    folding: Folding = fold(plan, pricing)
    assert sum(folding.multiplicity.values()) == plan.mesh.size == len(folding.stands_for)
    assert all(plan.program_of(rank) is plan.program_of(other) for rank, other in enumerate(folding.stands_for))
    assert set(no_fold(plan, pricing).multiplicity) == set(range(plan.mesh.size))


@pytest.mark.parametrize("node", NODES)
@pytest.mark.parametrize(
    ("degrees", "axis_order"),
    [
        ((3, 3, 1), ("pp", "dp", "tp")), ((6, 2, 1), ("pp", "dp", "tp")), ((2, 6, 1), ("tp", "dp", "pp")),
        ((2, 5, 1), ("pp", "dp", "tp")), ((4, 3, 2), ("pp", "dp", "tp")), ((6, 4, 2), ("pp", "dp", "tp")),
    ],
)  # fmt: skip
def test_ranks_of_a_role_whose_groups_lie_differently_are_simulated_apart(
    degrees: tuple[int, int, int], axis_order: tuple[str, ...], node: str
) -> None:
    """Where only some groups of a role cross nodes, or roles share adapters, folding splits them and is exact."""
    tp, dp, pp = degrees
    model = GPT | {
        "num_heads": 12, "num_kv_heads": 12, "hidden_size": 768, "ffn_hidden_size": 3072, "vocab_size": 3840,
        "sequence_length": 240,
    }  # fmt: skip
    plan = dense_plan(tp=tp, dp=dp, pp=pp, m=2, b=2, model=model, axis_order=axis_order, bucket_bytes=10**6)
    ratio, gap = largest_difference(plan, node)
    assert ratio == pytest.approx(1, rel=1e-9)
    assert gap < 1e-9
