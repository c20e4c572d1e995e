"""Sharded gradients and parameters: memory and traffic of the closed forms, gathers ahead of time, and their bound."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from costmodels.memory import allocated_bytes
from sim.engine.running.memory import memory_use
from sim.engine.running.run import SimulatedRun
from sim.engine.running.simulate import simulate
from sim.plan.checking.check import check
from sim.plan.facts.description import collective_bytes
from sim.plan.facts.liveness import lifetimes
from sim.plan.words.buffer import Kind, Scope
from sim.plan.words.op import Collective, CollectiveKind, Compute
from sim.plan.words.program import Plan, Program
from sim.training.errors import SpecError
from sim.training.spec.parallelism.sharding import GRADIENT_SCHEDULES, ShardingSpec
from sim.training.steps.builder import build_dense_training
from tests.examples import examples
from tests.sim.jobs import GPT, LLAMA, dense_job, dense_plan, pricing_on

WIDE = LLAMA | {
    "num_layers": 6, "hidden_size": 1024, "num_heads": 16, "num_kv_heads": 16, "ffn_hidden_size": 2816,
    "sequence_length": 1024, "vocab_size": 1024,
}  # fmt: skip
"""A model whose layers are larger than its ends."""


def end_parameters(model: Mapping[str, Any]) -> int:
    """Return the number of parameters that belong to no layer, of a model of these tests."""
    return dense_job(model=dict(model) | {"num_layers": 1}).model.num_parameters - layer_parameters(model)


def layer_parameters(model: Mapping[str, Any]) -> int:
    """Return the number of parameters of one layer."""
    return dense_job(model=dict(model)).model.layer_parameters


# --- memory ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stage", "bytes_per_parameter", "published_bytes"),
    [(0, 16, 120e9), (1, 4 + 12 / 64, 31.4e9), (2, 2 + 14 / 64, 16.6e9), (3, 16 / 64, 1.88e9)],
)
def test_model_states_are_those_of_zeros_table_1(
    stage: int, bytes_per_parameter: float, published_bytes: float
) -> None:
    """Parameters, gradients and optimizer state of mixed precision on 64 ranks, for 7.5 billion parameters."""
    job = dense_job(dp=64, model=WIDE, zero_stage=stage)
    job = replace(job, training=replace(job.training, low_precision_gradients=True))
    (program,) = build_dense_training(job, "states").programs
    held = sum(b.num_bytes for b in program.buffers.values() if b.scope is Scope.PERSISTENT and b.name != "loss")
    per_parameter = held / job.model.num_parameters
    assert per_parameter == pytest.approx(bytes_per_parameter, rel=1e-5)
    assert 7.5e9 * per_parameter == pytest.approx(published_bytes, rel=3e-3)


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_stage_1_synchronises_and_updates_in_place(precision: Any) -> None:
    """After the last backward nothing lives but what always does: shards are parts of gradients and of parameters."""
    (program,) = dense_plan(dp=4, m=2, model=WIDE, zero_stage=1, precision=precision).programs
    use, persistent = memory_use(program), [b for b in program.buffers.values() if b.scope is Scope.PERSISTENT]
    end = max(i for i, call in enumerate(program.calls) if call.task == "backward.0") + 1
    held = sum(allocated_bytes(b.num_bytes) for b in persistent)
    assert use.peak_bytes > held
    assert set(use.peak_bytes_of[end:].tolist()) == {held}


def most_live_bytes(program: Program, kind: Kind) -> int:
    """Return the most bytes of a kind of buffer that live at once beside the persistent ones, in issue order."""
    live = most = 0
    for life in lifetimes(program):
        events = sorted([(op, 0, n) for op, n in life.births] + [(op, 1, n) for op, n in life.deaths])
        for _, dies, name in events:
            buffer = program.buffers[name]
            if buffer.kind is kind:
                live += buffer.num_bytes * (-1 if dies else 1)
                most = max(most, live)
    return most


@pytest.mark.parametrize("sync", ["each_microbatch", "last_microbatch"])
@pytest.mark.parametrize("ahead", [0, 1, 2, 3])
def test_no_more_layers_are_gathered_than_those_ahead_and_one(ahead: int, sync: Any) -> None:
    """Gathered parameters take 1 + prefetch layers at most, whatever the model's depth."""
    (program,) = dense_plan(
        dp=4, m=3, model=WIDE, zero_stage=3, sharding=ShardingSpec(prefetch=ahead, gradient_sync=sync)
    ).programs
    assert most_live_bytes(program, Kind.PARAMETER) == (1 + ahead) * 2 * layer_parameters(WIDE)


def test_kept_parameters_are_all_gathered_at_once() -> None:
    """Without resharding all parameters but the embedding, which backward does not read, are there after forward."""
    sharding = ShardingSpec(reshard_after_forward=False)
    (program,) = dense_plan(dp=4, model=WIDE, zero_stage=3, sharding=sharding).programs
    embedding = WIDE["vocab_size"] * WIDE["hidden_size"]
    total = dense_job(model=WIDE).model.num_parameters
    assert most_live_bytes(program, Kind.PARAMETER) == 2 * (total - embedding)


def test_gradients_of_one_layer_live_at_once() -> None:
    """With stage 3 and no accumulation, whole gradients of a layer and its shard are all that backward adds."""
    (program,) = dense_plan(dp=4, m=2, model=WIDE, zero_stage=3).programs
    layer_bytes = 4 * layer_parameters(WIDE)
    assert most_live_bytes(program, Kind.GRADIENT) == layer_bytes + layer_bytes // 4


@settings(max_examples=examples(16), deadline=None)
@given(
    dp=st.sampled_from([2, 4]),
    m=st.integers(1, 3),
    bucket=st.sampled_from([1, 30_000, 100_000, 10**9]),
    model=st.sampled_from([GPT | {"tied_embeddings": False}, LLAMA, GPT]),
    recompute=st.sampled_from(["none", "full"]),
)
def test_stage_2_keeps_its_shard_and_two_buckets(
    dp: int, m: int, bucket: int, model: dict[str, Any], recompute: str
) -> None:
    """At the peak gradients take the shard, and two buckets with their pieces: one is made, one is reduced.

    A table that input and output share has gradients all the while, so its bucket is there as well.
    """
    plan = dense_plan(dp=dp, m=m, model=model, zero_stage=2, bucket_bytes=bucket, recompute=recompute)
    (program,) = plan.programs
    scatters = [op for op in program.tasks["backward.0"].ops if isinstance(op, Collective) and "scatter" in op.name]
    buckets = sorted(sum(program.buffers[name].num_bytes for name in op.reads) for op in scatters)
    shard = kept_gradient_bytes(program)
    assert shard == pytest.approx(sum(buckets) / dp, abs=4 * len(buckets))
    whole = sum(buckets[-2:]) + (buckets[-1] if model["tied_embeddings"] else 0)
    pieces = whole / dp + 3 * 4
    assert most_live_bytes(program, Kind.GRADIENT) <= whole + pieces
    if len(buckets) > 6 and not model["tied_embeddings"]:
        assert most_live_bytes(program, Kind.GRADIENT) < sum(buckets) / 2


def kept_gradient_bytes(program: Program) -> int:
    """Return what a program's gradients take that outlive a step."""
    buffers = program.buffers.values()
    return sum(b.num_bytes for b in buffers if b.kind is Kind.GRADIENT and b.scope is Scope.PERSISTENT)


def gradient_spans(run: SimulatedRun, rank: int = 0) -> Iterator[tuple[float, float]]:
    """Yield from when to when each bucket had gradients: the op that makes zeros of them to the end of their sum."""
    program, begins = run.programs[rank], dict[tuple[str, int], float]()
    for times in run.task_times(rank):
        for row, call in enumerate(times.calls.tolist()):
            microbatch = program.calls[call].microbatch or 0
            for j, op in enumerate(times.task.ops):
                if isinstance(op, Compute) and op.kernel == "zeros":
                    begins[op.writes[0], microbatch] = float(times.starts_s[row, j])
    for times in run.task_times(rank):
        for row, call in enumerate(times.calls.tolist()):
            microbatch = program.calls[call].microbatch or 0
            for j, op in enumerate(times.task.ops):
                if isinstance(op, Collective) and op.kind is CollectiveKind.REDUCE_SCATTER:
                    yield begins[op.reads[0], microbatch], float(times.ends_s[row, j])


@pytest.mark.parametrize("sequence", [64, 1024])
@pytest.mark.parametrize(("model", "most"), [(WIDE, 2), (WIDE | {"tied_embeddings": True}, 3)])
def test_two_buckets_have_gradients_at_any_time(sequence: int, model: dict[str, Any], most: int) -> None:
    """Backward waits for reductions, over micro-batches as well, however slow they are; with a shared table, three."""
    plan = dense_plan(dp=8, m=3, model=model | {"sequence_length": sequence}, zero_stage=2, bucket_bytes=1)
    found = most_at_once(gradient_spans(simulated(plan)))
    assert found == most if sequence == 64 else found <= most


@pytest.mark.parametrize("bucket", [1, 100_000])
def test_a_pipeline_rank_keeps_two_buckets_of_each_stage(bucket: int) -> None:
    """The stages of an interleaved rank follow each other without waiting, so at most four buckets have gradients."""
    plan = dense_plan(
        dp=4, pp=2, m=4, model=WIDE | {"num_layers": 8}, zero_stage=2, bucket_bytes=bucket,
        schedule="interleaved_1f1b", virtual_stages=2,
    )  # fmt: skip
    for rank in (0, 4):
        assert most_at_once(gradient_spans(simulated(plan), rank)) <= 4


TABLE = GPT | {"vocab_size": 4096, "tied_embeddings": True}
"""A model most of whose parameters are the table that input and output share."""
ONE_RANK = [{"schedule": "breadth_first", "virtual_stages": 2}, {"schedule": "gpipe"}, {"schedule": "1f1b"}]


@pytest.mark.parametrize("schedule", ONE_RANK, ids=lambda keys: str(keys["schedule"]))
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("sharding", [{"zero_stage": 2, "bucket_bytes": 1}, {"zero_stage": 3}], ids=["zero2", "zero3"])
def test_whole_gradients_and_parameters_do_not_add_up_over_microbatches(
    schedule: dict[str, Any], sharding: dict[str, Any], *, tied: bool
) -> None:
    """On one pipeline rank: as many bytes of them live at once under four micro-batches as under two."""
    keys = {"dp": 4, "model": TABLE | {"tied_embeddings": tied}, **schedule, **sharding}
    for kind in (Kind.GRADIENT, Kind.PARAMETER):
        two, four = (most_live_bytes(dense_plan(m=m, **keys).programs[0], kind) for m in (2, 4))
        assert two == four


@pytest.mark.parametrize("schedule", ONE_RANK, ids=lambda keys: str(keys["schedule"]))
@pytest.mark.parametrize("reshards", [True, False])
def test_a_shared_table_takes_no_more_under_stages_2_and_3_than_under_1(
    schedule: dict[str, Any], *, reshards: bool
) -> None:
    """The peak falls from stage to stage, though first and last virtual stage of a rank both make its gradient.

    Stage 3 without resharding has its shards beside whole parameters, which stage 2 has alone.
    """
    keep = {"sharding": ShardingSpec(reshard_after_forward=False)} if not reshards else {}
    plans = [
        dense_plan(dp=4, m=6, model=TABLE, **schedule, zero_stage=stage, **(keep if stage == 3 else {}))
        for stage in range(4)
    ]
    for plan in plans:
        check(plan)
    peaks = [memory_use(plan.programs[0]).peak_bytes for plan in plans]
    assert peaks[0] > peaks[1] > peaks[2]
    assert peaks[3] < peaks[2 if reshards else 1]


# --- traffic ---------------------------------------------------------------------------------------------------------


def sent_elements(plan: Plan, program: Program | None = None) -> dict[str, float]:
    """Return what a rank sends in a step by kind of collective, in elements of 4 bytes, as rings move it.

    Of the only program, or of one of several.
    """
    if program is None:
        (program,) = plan.programs
    sent: dict[str, float] = {}
    for _, _, _, op in program.instances():
        if isinstance(op, Collective) and op.name != "loss":
            parts = op.group_size(plan.mesh)
            turns = 2 if op.kind is CollectiveKind.ALL_REDUCE else 1
            moved = turns * collective_bytes(program, op) / 4 * (parts - 1) / parts
            sent[op.kind] = sent.get(op.kind, 0.0) + moved
    return sent


@pytest.mark.parametrize("model", [GPT, LLAMA], ids=["tied", "untied"])
@pytest.mark.parametrize(("m", "dp"), [(1, 2), (3, 4)])
@pytest.mark.parametrize("sync", ["each_microbatch", "last_microbatch"])
def test_traffic_is_that_of_the_closed_forms(m: int, dp: int, model: dict[str, Any], sync: Any) -> None:
    """ZeRO 2 moves a reduce_scatter per synchronisation and an all_gather; ZeRO 3 two all_gather per micro-batch.

    All of (N - 1)/N times the parameters; what forward computes with last stays, so it is gathered once, and
    the embedding table of an untied model is not read in backward.
    """
    common = {"m": m, "dp": dp, "model": model, "precision": "fp32"}
    total, layers = dense_job(model=model).model.num_parameters, model["num_layers"] * layer_parameters(model)
    share, syncs = (dp - 1) / dp, m if sync == "each_microbatch" else 1
    second = sent_elements(dense_plan(**common, zero_stage=2, sharding=ShardingSpec(gradient_sync=sync)))
    assert second == {"reduce_scatter": syncs * total * share, "all_gather": total * share}
    third = sent_elements(dense_plan(**common, zero_stage=3, sharding=ShardingSpec(gradient_sync=sync)))
    assert third == {"reduce_scatter": syncs * total * share, "all_gather": m * (total + layers) * share}
    kept = ShardingSpec(gradient_sync=sync, reshard_after_forward=False)
    fourth = sent_elements(dense_plan(**common, zero_stage=3, sharding=kept))
    assert fourth == {"reduce_scatter": syncs * total * share, "all_gather": m * total * share}


@pytest.mark.parametrize("stage", [2, 3])
def test_groups_add_an_all_reduce_of_a_shard(stage: int) -> None:
    """Groups of g shard among themselves, then sum 1/g of the gradients with the R others once: 2 P/g (R - 1)/R."""
    m, dp, g = 3, 8, 4
    plan = dense_plan(m=m, dp=dp, precision="fp32", model=GPT, zero_stage=stage, sharding=ShardingSpec(shard_degree=g))
    total = dense_job().model.num_parameters
    gathered = total if stage == 2 else m * (total + GPT["num_layers"] * layer_parameters(GPT))
    assert sent_elements(plan) == {
        "reduce_scatter": m * total * (g - 1) / g,
        "all_gather": gathered * (g - 1) / g,
        "all_reduce": 2 * total / g * (dp // g - 1) / (dp // g),
    }


def test_groups_are_neighbours() -> None:
    """Ranks of one node gather among themselves; replicas of a shard lie on other nodes."""
    plan = dense_plan(dp=8, tp=2, zero_stage=3, sharding=ShardingSpec(shard_degree=4))
    (program,) = plan.programs
    groups = {
        op.kind: op.group(plan.mesh, 0)
        for _, _, _, op in program.instances()
        if isinstance(op, Collective) and op.stream.startswith("dp") and op.name != "loss"
    }
    assert groups[CollectiveKind.ALL_GATHER] == groups[CollectiveKind.REDUCE_SCATTER] == (0, 2, 4, 6)
    assert groups[CollectiveKind.ALL_REDUCE] == (0, 8)


@pytest.mark.parametrize(
    ("keys", "gathers", "sums"),
    [
        ({}, [("dp", "cp")], set()),
        ({"shard_degree": 2}, [("dp_shard", "cp")], {("dp",)}),
        ({"shard_degree": 1}, [("cp",)], {("dp",)}),
        ({"local_degree": 2}, [("dp",), ("dp_local", "cp")], set()),
    ],
)
def test_ranks_that_share_sequences_share_shards(
    keys: dict[str, Any], gathers: list[tuple[str, ...]], sums: set[tuple[str, ...]]
) -> None:
    """A unit is gathered over replicas and sharers at once; groups and neighbours of replicas have all their ranks."""
    job = {"dp": 4, "context_degree": 2, "model": LLAMA, "zero_stage": 3}
    plan = dense_plan(**job, sharding=ShardingSpec(**keys))
    check(plan)
    ops = [op for _, _, _, op in plan.programs[0].instances() if isinstance(op, Collective) and op.name != "loss"]
    of_layer = [op.axes for op in ops if op.name.startswith("all_gather.layer1")]
    assert of_layer == gathers
    scattered = {op.axes for op in ops if op.kind is CollectiveKind.REDUCE_SCATTER}
    assert scattered == {tuple(axis for axes in reversed(gathers) for axis in axes)}
    assert {op.axes for op in ops if op.kind is CollectiveKind.ALL_REDUCE} == sums


def test_a_group_of_one_replica_needs_ranks_that_share_its_sequences() -> None:
    """Alone, a replica has nobody to share shards with; the error says which groups there can be."""
    with pytest.raises(SpecError, match=r"groups of 1 ranks.*write 2 or 4"):
        dense_job(dp=4, zero_stage=3, sharding=ShardingSpec(shard_degree=1))


@pytest.mark.parametrize(
    ("dp", "shard_degree", "local_degree"), [(16, None, 8), (16, None, 4), (16, 8, 4), (8, None, 2)]
)
def test_hierarchical_gathers_cross_nodes_less(dp: int, shard_degree: int | None, local_degree: int) -> None:
    """Of p ranks, k to a node, a node takes in (p - k)/p of a unit from others, where one gather needs (p - 1)/p.

    Each rank gets (p/k - 1) M/p from the ranks at its place of other nodes, then (k - 1)/k M from its neighbours; the
    gradients' sums are those of one reduce_scatter per micro-batch, and in groups one all_reduce of a shard per step.
    """
    m, p, k = 2, shard_degree or dp, local_degree
    sharding = ShardingSpec(shard_degree=shard_degree, local_degree=local_degree)
    common = {"m": m, "dp": dp, "precision": "fp32", "model": WIDE, "zero_stage": 3}
    plan = dense_plan(**common, sharding=sharding)
    check(plan)
    (program,) = plan.programs
    flat = sent_elements(dense_plan(**common, sharding=ShardingSpec(shard_degree=shard_degree)))
    gathered = flat["all_gather"] * p / (p - 1)
    between = inside = 0.0
    for _, _, _, op in program.instances():
        if isinstance(op, Collective) and op.kind is CollectiveKind.ALL_GATHER:
            group, size = op.group(plan.mesh, 0), collective_bytes(program, op) / 4
            moved = size * (len(group) - 1) / len(group)
            if {rank // k for rank in group} == {group[0] // k}:
                inside += moved
            else:
                assert len(group) == len({rank // k for rank in group}) == p // k
                between += moved
    assert k * between == pytest.approx(gathered * (p - k) / p, rel=1e-12)
    assert inside == pytest.approx(gathered * (k - 1) / k, rel=1e-12)
    others = {kind: elements for kind, elements in sent_elements(plan).items() if kind != "all_gather"}
    assert others == {kind: elements for kind, elements in flat.items() if kind != "all_gather"}


def test_hierarchical_gathers_are_faster_over_one_adapter() -> None:
    """On two nodes with one adapter each, rings between nodes hold up a step; in stages less crosses."""
    times = []
    for local_degree in (None, 8):
        plan = dense_plan(dp=16, model=WIDE, zero_stage=3, sharding=ShardingSpec(local_degree=local_degree))
        pricing = replace(pricing_on("cloud-a100-100g", 16, devices_per_node=8), algorithms={"all_gather": "ring"})
        times.append(simulate(plan, pricing).makespan_s)
    assert times[1] < times[0]


PIPELINES = [("1f1b", 1), ("gpipe", 1), ("interleaved_1f1b", 2), ("breadth_first", 2)]


@pytest.mark.parametrize("sync", ["each_microbatch", "last_microbatch"])
@pytest.mark.parametrize("reshards", [True, False])
@pytest.mark.parametrize(("schedule", "stages"), PIPELINES)
def test_traffic_of_a_pipeline_is_that_of_its_stages(schedule: str, stages: int, *, reshards: bool, sync: Any) -> None:
    """Each rank gathers what it holds once per pass that reads it, or once a step.

    Each parameter of an untied model is sharded by exactly one rank of the pipeline.
    """
    m, dp = 4, 2
    sharding = ShardingSpec(reshard_after_forward=reshards, gradient_sync=sync)
    plan = dense_plan(
        m=m, dp=dp, pp=2, model=LLAMA, precision="fp32", zero_stage=3, sharding=sharding, schedule=schedule,
        virtual_stages=stages,
    )  # fmt: skip
    check(plan)
    total, embedding = dense_job(model=LLAMA).model.num_parameters, LLAMA["vocab_size"] * LLAMA["hidden_size"]
    sent: dict[str, float] = {}
    for program in plan.programs:
        for kind, elements in sent_elements(plan, program).items():
            sent[kind] = sent.get(kind, 0.0) + elements
    gathers = m * (2 * total - embedding) if reshards else total
    assert sent == {"all_gather": gathers / 2, "reduce_scatter": (m if sync == "each_microbatch" else 1) * total / 2}


@pytest.mark.parametrize(("schedule", "stages"), PIPELINES)
@pytest.mark.parametrize("ahead", [0, 1])
def test_a_pipeline_rank_gathers_no_more_layers_at_once(schedule: str, stages: int, ahead: int) -> None:
    """However many micro-batches are in flight: 1 + prefetch layers, in the account and in time."""
    plan = dense_plan(
        dp=4, m=4, pp=2, model=WIDE | {"num_layers": 8}, zero_stage=3, schedule=schedule, virtual_stages=stages,
        sharding=ShardingSpec(prefetch=ahead),
    )  # fmt: skip
    run = simulated(plan)
    for program in plan.programs:
        assert most_live_bytes(program, Kind.PARAMETER) == (1 + ahead) * 2 * layer_parameters(WIDE)
        spans = gathered_spans(run, plan.ranks_of(program)[0])
        assert most_at_once(spans) <= 1 + ahead


def test_a_stage_that_is_kept_is_gathered_once() -> None:
    """Without resharding a rank holds its stage from before the first forward until the last backward has read it."""
    sharding = ShardingSpec(reshard_after_forward=False)
    plan = dense_plan(dp=4, m=6, pp=2, model=WIDE, zero_stage=3, sharding=sharding)
    first, last = plan.programs
    embedding = WIDE["vocab_size"] * WIDE["hidden_size"]
    layers = WIDE["num_layers"] // 2 * layer_parameters(WIDE)
    assert most_live_bytes(first, Kind.PARAMETER) == 2 * (layers + embedding)
    assert most_live_bytes(last, Kind.PARAMETER) == 2 * (layers + embedding + WIDE["hidden_size"])


# --- time ------------------------------------------------------------------------------------------------------------

Spans = dict[str, list[tuple[float, float]]]
"""Start and end of an op, for every call of its task."""


def simulated(plan: Plan) -> SimulatedRun:
    """Return a run on one node of A100."""
    return simulate(plan, pricing_on("dgx-a100-80g", plan.mesh.size))


def spans_of(run: SimulatedRun) -> Spans:
    """Return the times of rank 0's ops by task and name."""
    return {
        f"{t.task.name}/{op.name}": list(zip(t.starts_s[:, j].tolist(), t.ends_s[:, j].tolist(), strict=True))
        for t in run.task_times(0)
        for j, op in enumerate(t.task.ops)
    }  # fmt: skip


def layer_spans(run: SimulatedRun, task: str) -> dict[int, tuple[float, float]]:
    """Return when each layer began and ended to compute in the first call of a task.

    The sum of a layer's output's gradients comes before its parameters are needed, and does not count.
    """
    (times,) = [times for times in run.task_times(0) if times.task.name == task]
    found: dict[int, tuple[float, float]] = {}
    for j, op in enumerate(times.task.ops):
        computes = op.stream == "compute" and op.name.startswith("layer") and op.reads
        if computes and not op.name.endswith("gradient_sum"):
            layer = int(op.name.removeprefix("layer").partition(".")[0])
            start, end = float(times.starts_s[0, j]), float(times.ends_s[0, j])
            known = found.get(layer, (start, end))
            found[layer] = min(known[0], start), max(known[1], end)
    return found


def test_the_next_layer_is_gathered_while_this_one_computes() -> None:
    """Forward and backward: with prefetch 1 a gather lies inside its neighbour's computation; with 0 outside all."""
    for ahead in (1, 0):
        run = simulated(dense_plan(dp=8, m=2, b=2, model=WIDE, zero_stage=3, sharding=ShardingSpec(prefetch=ahead)))
        spans = spans_of(run)
        for task, label, step in (("forward.0", "all_gather", 1), ("backward.0", "regather", -1)):
            layers = layer_spans(run, task)
            for layer in range(1, 5):
                gathered = spans[f"{task}/{label}.layer{layer + step}"][0]
                if ahead:
                    assert layers[layer][0] <= gathered[0] < gathered[1] <= layers[layer][1]
                else:
                    assert layers[layer][1] <= gathered[0] < gathered[1] <= layers[layer + step][0]


@pytest.mark.parametrize(("sequence", "hides"), [(1024, True), (32, False)])
def test_exposed_time_of_forward_is_what_a_gather_takes_longer_than_a_layer(*, sequence: int, hides: bool) -> None:
    """Between two layers of forward the device waits max(0, gather - layer)."""
    model = WIDE | {"sequence_length": sequence}
    run = simulated(dense_plan(dp=8, b=2, model=model, zero_stage=3, precision="bf16"))
    spans, layers = spans_of(run), layer_spans(run, "forward.0")
    computed_s = layers[3][1] - layers[3][0]
    begin_s, end_s = spans["forward.0/all_gather.layer4"][0]
    assert (end_s - begin_s < computed_s) is hides
    waited_s = layers[4][0] - layers[3][1]
    assert waited_s == pytest.approx(max(0.0, end_s - begin_s - computed_s), abs=1e-9)


@pytest.mark.parametrize(("sequence", "hides"), [(1024, True), (64, False)])
def test_exposed_time_of_backward_counts_the_reduce_scatter_too(*, sequence: int, hides: bool) -> None:
    """Between two layers of backward the device waits for what reduces and gathers longer than a layer computes.

    The sum of the gradients of a layer's output, from both its branches, runs meanwhile.
    """
    run = simulated(dense_plan(dp=8, b=2, model=WIDE | {"sequence_length": sequence}, zero_stage=3))
    spans, layers = spans_of(run), layer_spans(run, "backward.0")
    computed_s = layers[2][1] - layers[2][0]
    on_stream = ("reduce_scatter.layer3", "accumulate.layer3", "regather.layer1")
    moved_s = sum(end - begin for begin, end in (spans[f"backward.0/{name}"][0] for name in on_stream))
    begin_s, end_s = spans["backward.0/layer1.mlp_out.gradient_sum"][0]
    assert (moved_s < computed_s) is hides
    assert layers[1][0] - layers[2][1] == pytest.approx(max(end_s - begin_s, moved_s - computed_s), abs=1e-9)


def gathered_spans(run: SimulatedRun, rank: int = 0) -> Iterator[tuple[float, float]]:
    """Yield from when to when each unit was gathered: the gather's start to the end of its last reader."""
    by_buffer: dict[tuple[str, int], float] = {}
    gathers: list[tuple[float, int, tuple[str, ...]]] = []
    program = run.programs[rank]
    for times in run.task_times(rank):
        for row, call in enumerate(times.calls.tolist()):
            microbatch = program.calls[call].microbatch
            for j, op in enumerate(times.task.ops):
                if isinstance(op, Collective) and op.kind is CollectiveKind.ALL_GATHER:
                    gathers.append((float(times.starts_s[row, j]), microbatch or 0, op.writes))
                for name in op.reads:
                    key = name, microbatch or 0
                    by_buffer[key] = max(by_buffer.get(key, 0.0), float(times.ends_s[row, j]))
    for start_s, microbatch, names in gathers:
        yield start_s, max(by_buffer.get((name, microbatch), start_s) for name in names)


def most_at_once(spans: Iterable[tuple[float, float]]) -> int:
    """Return how many spans overlap at most; times of a block are sums in another order, so they are rounded."""
    gathered = most = 0
    for _, change in sorted(event for a, b in spans for event in ((round(a, 15), 1), (round(b, 15), -1))):
        gathered += change
        most = max(most, gathered)
    return most


@pytest.mark.parametrize("sync", ["each_microbatch", "last_microbatch"])
@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("sequence", [64, 1024])
@pytest.mark.parametrize("ahead", [0, 1, 2])
def test_the_bound_holds_in_time_too(ahead: int, sequence: int, recompute: str, sync: Any) -> None:
    """At no instant of the timeline are more than 1 + prefetch units gathered, over micro-batches as well.

    Where computing takes longer than gathering, as many are.
    """
    sharding = ShardingSpec(prefetch=ahead, gradient_sync=sync)
    model = WIDE | {"sequence_length": sequence}
    plan = dense_plan(dp=8, m=3, model=model, zero_stage=3, recompute=recompute, sharding=sharding)
    most = most_at_once(gathered_spans(simulated(plan)))
    assert most == 1 + ahead or (sequence == 64 and most < 1 + ahead)


# --- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "key"),
    [
        ({"zero_stage": 1, "sharding": ShardingSpec(shard_degree=2)}, "shard_degree"),
        ({"zero_stage": 0, "sharding": ShardingSpec(gradient_sync="each_microbatch")}, "gradient_sync"),
        ({"zero_stage": 2, "sharding": ShardingSpec(prefetch=1)}, "prefetch"),
        ({"zero_stage": 2, "sharding": ShardingSpec(reshard_after_forward=True)}, "reshard_after_forward"),
        ({"zero_stage": 3, "sharding": ShardingSpec(shard_degree=3)}, "shard_degree"),
        ({"zero_stage": 3, "pp": 2, "m": 4, "schedule": "zb_h1"}, "zero_stage"),
        ({"zero_stage": 2, "sharding": ShardingSpec(local_degree=2)}, "local_degree"),
        ({"zero_stage": 3, "sharding": ShardingSpec(local_degree=4)}, "local_degree"),
        ({"zero_stage": 3, "sharding": ShardingSpec(local_degree=3)}, "local_degree"),
        ({"zero_stage": 3, "sharding": ShardingSpec(shard_degree=2, local_degree=2)}, "local_degree"),
        ({"zero_stage": 3, "bucket_bytes": 1000}, "bucket"),
        ({"zero_stage": 2, "overlap_gradient_sync": False}, "overlap_gradient_sync"),
        ({"zero_stage": 2, "pp": 2, "m": 4, "schedule": "chimera"}, "zero_stage"),
        ({"zero_stage": 2, "pp": 2, "m": 4, "schedule": "zb_h1"}, "gradient_sync"),
    ],
)
def test_what_is_not_built_is_refused_by_name(keys: dict[str, Any], key: str) -> None:
    """The error names the key to change."""
    with pytest.raises(SpecError) as caught:
        dense_job(dp=4, **keys)
    assert caught.value.key == f"parallel.data.{key}"


@pytest.mark.parametrize(("key", "stage"), [("shard_degree", 2), ("local_degree", 3)])
def test_a_single_replica_is_told_to_leave_groups_out(key: str, stage: int) -> None:
    """Where no degree would do, the remedy names none."""
    with pytest.raises(SpecError) as caught:
        dense_job(zero_stage=stage, sharding=ShardingSpec(**{key: 2}))
    assert (caught.value.key, caught.value.remedy) == (f"parallel.data.{key}", "leave it out")


@pytest.mark.parametrize("schedule", GRADIENT_SCHEDULES)
def test_gradients_are_sharded_under_every_allowed_schedule(schedule: str) -> None:
    """The plan is sound: every group issues the same collectives, and nothing is read before it is written."""
    stages = 1 if schedule in {"gpipe", "1f1b"} else 2
    check(dense_plan(dp=2, pp=2, m=4, zero_stage=2, schedule=schedule, virtual_stages=stages, bucket_bytes=10_000))


def test_one_replica_shards_nothing() -> None:
    """With a data-parallel degree of 1 all stages are the same plan."""
    plans = [dense_plan(m=2, zero_stage=stage) for stage in (0, 2, 3)]
    assert plans[0] == plans[1] == plans[2]
