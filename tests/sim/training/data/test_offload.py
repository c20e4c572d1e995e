"""ZeRO-Offload: what moves between device and host, what stays where, and when."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from costmodels.hardware import load_node
from costmodels.profile import load_profile
from sim.cluster.cluster import Cluster
from sim.cluster.topology.parse import parse_topology
from sim.engine.folding.folding import no_fold
from sim.engine.prices.pricing import ClusterPricing
from sim.engine.running.memory import memory_use
from sim.engine.running.run import SimulatedRun
from sim.engine.running.simulate import simulate
from sim.plan.checking.check import check
from sim.plan.errors import CheckError
from sim.plan.facts.description import payload_bytes
from sim.plan.words.buffer import Buffer, Kind, Scope, Tier
from sim.plan.words.mesh import Mesh
from sim.plan.words.op import Collective, CollectiveKind, Compute, Copy, Op
from sim.plan.words.program import Call, Phase, Plan, Program, Task
from sim.training.errors import SpecError
from sim.training.spec.parallelism.sharding import OsdpSpec, ShardingSpec
from tests.examples import examples
from tests.sim.jobs import GPT, dense_job, dense_plan, pricing_on

BYTES = {"fp32": (4, 4), "bf16": (2, 4), "fp64": (8, 8)}
"""Of a parameter and of a gradient, by precision."""
OFFLOAD = ShardingSpec(offload="optimizer")


def offloaded(**keys: Any) -> Plan:
    """Return the plan of a job whose optimizer is on the host."""
    sharding = ShardingSpec(offload="optimizer", gradient_sync=keys.pop("sync", None))
    return dense_plan(zero_stage=2, sharding=sharding, **keys)


def copies(plan: Plan, to: Tier) -> list[tuple[int, Copy]]:
    """Return every copy to a tier, as often as it runs, with its bytes."""
    (program,) = plan.programs
    ops = [op for *_, op in program.instances() if isinstance(op, Copy)]
    return [(payload_bytes(program, op.reads), op) for op in ops if program.buffers[op.writes[0]].tier is to]


def spans(run: SimulatedRun, stream: str, rank: int = 0) -> list[tuple[float, float, str]]:
    """Return when the ops of a stream ran, and what they are called, in order."""
    found = [
        (float(times.starts_s[row, j]), float(times.ends_s[row, j]), f"{times.task.name}/{op.name}")
        for times in run.task_times(rank)
        for row in range(len(times.starts_s))
        for j, op in enumerate(times.task.ops)
        if op.stream == stream
    ]
    return sorted(found)


# --- what moves, and what stays --------------------------------------------------------------------------------------


@settings(max_examples=examples(12), deadline=None)
@given(
    dp=st.sampled_from([1, 2, 3, 4]),
    m=st.integers(1, 3),
    precision=st.sampled_from(list(BYTES)),
    bucket=st.sampled_from([0, 20_000, 10**9]),
    sync=st.sampled_from(["each_microbatch", "last_microbatch"]),
)
def test_a_step_moves_each_shard_down_and_up(dp: int, m: int, precision: str, bucket: int, sync: str) -> None:
    """A rank sends its 1/N of the gradients to its host, per micro-batch or once, and gets 1/N of the parameters."""
    job = dense_job(dp=dp, m=m, precision=precision)
    plan = offloaded(dp=dp, m=m, precision=precision, bucket_bytes=bucket, sync=sync)
    check(plan)
    shard, (parameter, gradient) = job.model.num_parameters / dp, BYTES[precision]
    down, up = (sum(num_bytes for num_bytes, _ in copies(plan, tier)) for tier in (Tier.HOST, Tier.DEVICE))
    times, padding = m if sync == "each_microbatch" else 1, 8 * len(copies(plan, Tier.DEVICE))
    assert times * shard * gradient <= down <= times * (shard * gradient + padding)
    assert shard * parameter <= up <= shard * parameter + padding


@settings(max_examples=examples(8), deadline=None)
@given(dp=st.sampled_from([1, 2, 4]), precision=st.sampled_from(list(BYTES)), m=st.integers(1, 2))
def test_the_device_keeps_parameters_alone(dp: int, precision: str, m: int) -> None:
    """Gradients, master weights and moments persist on the host, as shards; the device keeps whole parameters.

    The host keeps a gradient, the master weight, two moments and, in mixed precision, the copy for the device.
    """
    plan, total = offloaded(dp=dp, m=m, precision=precision), dense_job().model.num_parameters
    (program,) = plan.programs
    kept = [buffer for buffer in program.buffers.values() if buffer.scope is Scope.PERSISTENT and buffer.name != "loss"]
    on_device = [buffer for buffer in kept if buffer.tier is Tier.DEVICE]
    assert {buffer.kind for buffer in on_device} == {Kind.PARAMETER}
    parameter, gradient = BYTES[precision]
    assert sum(buffer.num_bytes for buffer in on_device) == parameter * total
    master = 8 if precision == "fp64" else 4
    per_parameter = gradient + 3 * master + (parameter if precision == "bf16" else 0)
    on_host = sum(buffer.num_bytes for buffer in kept if buffer.tier is Tier.HOST)
    assert total * per_parameter / dp <= on_host <= total * per_parameter / dp + 8 * 6 * len(program.buffers)


def test_memory_of_one_tier_does_not_count_the_other() -> None:
    """Both tiers' peaks of a plan are less than that of the same plan whose buffers all lie on the device."""
    (program,) = offloaded(dp=2, m=2, precision="bf16").programs
    device, host = memory_use(program), memory_use(program, Tier.HOST)
    assert device.peak_by_kind_bytes["optimizer"] == 0
    assert host.peak_by_kind_bytes["activation"] == 0
    assert host.peak_by_kind_bytes["optimizer"] > 0
    whole = memory_use(dense_plan(dp=2, m=2, precision="bf16", zero_stage=2).programs[0])
    assert device.peak_bytes < whole.peak_bytes


# --- when ------------------------------------------------------------------------------------------------------------


def test_gradients_leave_while_backward_goes_on_and_the_host_waits_for_all() -> None:
    """The first copy ends before backward does; no optimizer step begins before the last gradient has come."""
    plan = offloaded(bucket_bytes=60_000, model=GPT | {"num_layers": 8})
    run = simulate(plan, pricing_on("dgx-2", 1, devices_per_node=1))
    down, on_host = spans(run, "d2h"), spans(run, "host")
    backward_ends_s = max(end for _, end, name in spans(run, "compute") if name.startswith("backward"))
    assert down[0][1] < backward_ends_s
    updates = [start for start, _, name in on_host if "adam" in name]
    assert len(updates) > 2
    assert min(updates) >= max(end for _, end, _ in down)


def test_new_parameters_return_while_the_host_updates_others() -> None:
    """The first bucket is on its way back before the host has updated the last one."""
    plan = offloaded(bucket_bytes=60_000, model=GPT | {"num_layers": 8})
    run = simulate(plan, pricing_on("dgx-2", 1, devices_per_node=1))
    assert spans(run, "h2d")[0][0] < max(end for _, end, name in spans(run, "host") if "adam" in name)


def test_without_overlap_the_end_of_a_step_is_the_closed_form() -> None:
    """One bucket, one rank: gradients down, Adam over 16 + 12 bytes per parameter and the copy, parameters up."""
    node, model = load_node("dgx-2"), GPT | {"num_layers": 8, "hidden_size": 256, "ffn_hidden_size": 1024}
    run = simulate(offloaded(precision="bf16", model=model), pricing_on(node, 1, devices_per_node=1))
    total = dense_job(model=model).model.num_parameters
    link = node.host.device_bandwidth_bytes_per_s * node.host.device_attained
    memory = node.host.memory_bandwidth_bytes_per_s * node.host.memory_attained
    (down,), (*_, update), (up,) = spans(run, "d2h"), spans(run, "host"), spans(run, "h2d")
    latency_s = node.host.device_latency_s
    assert down[1] - down[0] == pytest.approx(latency_s + 4 * total / link)
    assert update[1] - update[0] == pytest.approx(total * (4 * 4 + 3 * 4 + 2) / memory)
    assert up[1] - up[0] == pytest.approx(latency_s + 2 * total / link)
    assert (update[0], up[0]) == pytest.approx((down[1], update[1]))


def test_a_delayed_update_hides_behind_the_next_step() -> None:
    """A step takes as long as the longer of its passes and the host's update, and the copies that neither hides."""
    node, model = load_node("dgx-2"), GPT | {"num_layers": 8, "hidden_size": 256, "ffn_hidden_size": 1024}
    keys: dict[str, Any] = {"zero_stage": 2, "model": model, "precision": "bf16"}
    late, soon = (
        simulate(
            dense_plan(sharding=replace(OFFLOAD, delayed_update=delayed), **keys),
            pricing_on(node, 1, devices_per_node=1),
        )
        for delayed in (True, False)
    )
    total, memory = dense_job(model=model).model.num_parameters, node.host.memory_bandwidth_bytes_per_s
    update_s = total * (4 * 4 + 3 * 4 + 2) / (memory * node.host.memory_attained)
    aside_s = total * 2 * 4 / (memory * node.host.memory_attained)
    (up,) = (end - start for start, end, _ in spans(soon, "h2d"))
    passes_s = soon.iteration_time_s - update_s - up
    longer_s = max(passes_s, update_s + aside_s)
    assert longer_s * (1 - 1e-9) <= late.iteration_time_s < longer_s + up + aside_s < soon.iteration_time_s
    assert late.memory_of(0, Tier.HOST).peak_bytes == pytest.approx(
        soon.memory_of(0, Tier.HOST).peak_bytes + 4 * total, rel=1e-3
    )


# --- contention ------------------------------------------------------------------------------------------------------


def on_a_tree(num_ranks: int) -> ClusterPricing:
    """Return prices on a DGX-2 with its PCIe drawn: a switch per two devices."""
    node, wiring = load_node("dgx-2"), parse_topology({"nodes": "dgx-2"}, 1)
    return ClusterPricing(Cluster(node, 1, num_ranks, wiring), load_profile(node.device.generation))


def alone_s(run: SimulatedRun) -> float:
    """Return how long the one copy to the host took."""
    (down,) = spans(run, "d2h")
    return down[1] - down[0]


def test_neighbours_below_one_switch_share_its_way_up() -> None:
    """Two ranks whose gradients leave together take twice as long each as one alone, but for the latency."""
    plan_of = {n: offloaded(dp=n, model=GPT | {"hidden_size": 256, "ffn_hidden_size": 1024}) for n in (1, 2)}
    one, two = (simulate(plan_of[n], on_a_tree(n)) for n in (1, 2))
    latency_s = on_a_tree(1).price(plan_of[1], plan_of[1].programs[0], copies(plan_of[1], Tier.HOST)[0][1], 0).latency_s
    halves_s = (alone_s(one) - latency_s) / 2
    assert alone_s(two) - latency_s == pytest.approx(2 * halves_s, rel=1e-3)


@pytest.mark.parametrize("num_ranks", [2, 4, 16])
def test_folded_ranks_share_hosts_and_switches_as_all_of_them_do(num_ranks: int) -> None:
    """One simulated rank that stands for all takes as long as all of them simulated."""
    plan = offloaded(dp=num_ranks, m=2, bucket_bytes=40_000)
    folded, whole = simulate(plan, on_a_tree(num_ranks)), simulate(plan, on_a_tree(num_ranks), fold=no_fold)
    assert len(folded.programs) < len(whole.programs) == num_ranks
    assert folded.iteration_time_s == pytest.approx(whole.iteration_time_s, rel=1e-9)


# --- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "rule"),
    [
        ({"zero_stage": 1}, "zero_stage is 1"),
        ({"zero_stage": 3}, "zero_stage is 3"),
        ({"zero_stage": 2, "sharding": ShardingSpec(offload="optimizer", shard_degree=2)}, "groups of replicas"),
        ({"zero_stage": 0, "osdp": OsdpSpec()}, "not built with osdp"),
    ],
)
def test_what_is_not_built_is_refused(keys: dict[str, Any], rule: str) -> None:
    """Other stages, groups and OSDP, each with the key and the rule."""
    with pytest.raises(SpecError, match=rule) as refused:
        dense_job(dp=4, **{"sharding": OFFLOAD} | keys)
    assert refused.value.key == "parallel.data.offload"


def _plan_of(op: Op, *, length: int = 4) -> Plan:
    buffers = {
        name: Buffer(name, (n,), "float32", Kind.WORKSPACE, Scope.PERSISTENT, tier)
        for name, n, tier in (("here", 4, Tier.DEVICE), ("there", length, Tier.HOST))
    }
    task = Task("task", Phase.PREPARE, (op,))
    return Plan("wrong", Mesh((("dp", 1),)), (Program({}, buffers, {"task": task}, (Call("task"),)),))


@pytest.mark.parametrize(
    ("op", "length", "rule"),
    [
        (Copy("c", ("here",), ("here",), "d2h"), 4, "from one tier of memory to another"),
        (Copy("c", ("here",), ("there",), "d2h"), 5, "4 elements to 5"),
        (Compute("k", "copy", ("here", "there"), ("there",)), 4, "in several tiers"),
        (Collective("a", CollectiveKind.ALL_REDUCE, ("dp",), ("there",), ("there",), "dp"), 4, "their devices"),
    ],
)
def test_tiers_of_memory_are_kept_apart(op: Op, length: int, rule: str) -> None:
    """A copy leads from one tier to another and loses nothing; kernels and collectives stay in one."""
    with pytest.raises(CheckError, match=rule):
        check(_plan_of(op, length=length))
