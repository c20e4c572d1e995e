"""State in tiers of memory: what moves, what stays where, when units come, and what is refused."""

from collections import Counter
from typing import Any

import pytest
from msgspec.structs import replace

from costmodels.hardware import StorageSpec, load_node
from costmodels.profile import load_profile
from sim.cluster.cluster import Cluster
from sim.engine.folding.folding import no_fold
from sim.engine.prices.pricing import ClusterPricing
from sim.engine.running.memory import memory_use
from sim.engine.running.simulate import simulate
from sim.memory.spec import ChunkSpec, MemorySpec
from sim.plan.checking.check import check
from sim.plan.errors import CheckError
from sim.plan.facts.description import payload_bytes
from sim.plan.facts.liveness import lifetimes
from sim.plan.words.buffer import Buffer, Kind, Scope, Tier
from sim.plan.words.mesh import Mesh
from sim.plan.words.op import Compute, Copy, Op
from sim.plan.words.program import Call, Phase, Plan, Program, Task
from sim.training.errors import SpecError
from sim.training.spec.parallelism.sharding import ShardingSpec
from tests.sim.jobs import LLAMA, dense_job, dense_plan

MODEL = LLAMA | {"num_layers": 6, "hidden_size": 256, "ffn_hidden_size": 704}
MANAGERS = ("on_demand", "deepspeed", "angel_ptm")
IN_CHUNKS = MemorySpec(manager="gemini", chunks=ChunkSpec(holds_gradients=True))
DRIVE = StorageSpec(capacity_bytes=10**12, bandwidth_bytes_per_s=3.5e9, latency_s=0.0)


def tiered(manager: Any, *, drives: bool = False, cached_bytes: int = 0, parameters: bool = False, **keys: Any) -> Plan:
    """Return the plan of a job whose state lies in tiers of memory, in mixed precision."""
    memory = MemorySpec(
        manager=manager, optimizer_on_drives=drives, cached_bytes=cached_bytes, parameters_on_drives=parameters
    )
    return dense_plan(**{"model": MODEL, "zero_stage": 3, "precision": "bf16", "memory": memory} | keys)


def prices(num_ranks: int, storage: StorageSpec | None = None) -> ClusterPricing:
    """Return prices on a node of A100, with drives if they are given."""
    node = load_node("dgx-a100-40g")
    node = replace(node, host=replace(node.host, storage=storage))
    return ClusterPricing(Cluster(node, 1, num_ranks), load_profile(node.device.generation))


def copied_bytes(plan: Plan) -> Counter[tuple[Tier, Tier]]:
    """Return the bytes of a rank's copies in a step, by the tiers that they join."""
    (program,), found = plan.programs, Counter[tuple[Tier, Tier]]()
    for *_, op in program.instances():
        if isinstance(op, Copy):
            ends = program.buffers[op.reads[0]].tier, program.buffers[op.writes[0]].tier
            found[ends] += payload_bytes(program, op.reads)
    return found


@pytest.mark.parametrize("manager", MANAGERS)
def test_a_step_moves_shards_up_for_each_pass_and_gradients_down(manager: str) -> None:
    """Per micro-batch 2 x 2 bytes per parameter of the shard go up, but the last unit's once, and 4 come down."""
    for dp, m in ((1, 1), (4, 2)):
        plan = tiered(manager, dp=dp, m=m)
        check(plan)
        job, moved = dense_job(model=MODEL, dp=dp, m=m), copied_bytes(plan)
        shard = job.model.num_parameters / dp
        last = (MODEL["vocab_size"] + 1) * MODEL["hidden_size"] / dp
        embedding = MODEL["vocab_size"] * MODEL["hidden_size"] / dp
        assert moved[Tier.HOST, Tier.DEVICE] == pytest.approx(m * 2 * (2 * shard - last - embedding), rel=1e-3)
        assert moved[Tier.DEVICE, Tier.HOST] == pytest.approx(m * 4 * shard, rel=1e-3)


def test_a_step_on_drives_reads_and_writes_twelve_bytes_per_parameter() -> None:
    """Master weights and two moments of 32 bits, once each way; the host has the state of a few units."""
    plan = tiered("angel_ptm", drives=True, dp=2)
    check(plan)
    shard, moved = dense_job(model=MODEL).model.num_parameters / 2, copied_bytes(plan)
    assert moved[Tier.NVME, Tier.HOST] == moved[Tier.HOST, Tier.NVME] == pytest.approx(12 * shard, rel=1e-3)
    (program,) = plan.programs
    assert memory_use(program, Tier.NVME).peak_bytes == pytest.approx(12 * shard, rel=1e-2)
    on_host = (memory_use(each.programs[0], Tier.HOST).peak_bytes for each in (plan, tiered("angel_ptm", dp=2)))
    assert next(on_host) + 4 * shard < next(on_host)


@pytest.mark.parametrize("manager", ["deepspeed", "angel_ptm"])
def test_parameters_on_drives_are_read_for_each_use(manager: str) -> None:
    """What comes to the device has come from drives; the update reads and writes two bytes per parameter more."""
    keys = {"drives": True, "dp": 2, "m": 2}
    plan, plain = tiered(manager, parameters=True, **keys), tiered(manager, **keys)
    check(plan)
    moved, before = copied_bytes(plan), copied_bytes(plain)
    shard = dense_job(model=MODEL).model.num_parameters / 2
    assert moved[Tier.HOST, Tier.DEVICE] == before[Tier.HOST, Tier.DEVICE]
    assert moved[Tier.HOST, Tier.NVME] == pytest.approx(14 * shard, rel=1e-3)
    assert moved[Tier.NVME, Tier.HOST] == pytest.approx(14 * shard + moved[Tier.HOST, Tier.DEVICE], rel=1e-3)
    kept = [
        sum(
            b.num_bytes for b in one.programs[0].buffers.values() if b.scope is Scope.PERSISTENT and b.tier is Tier.HOST
        )
        for one in (plain, plan)
    ]
    assert kept[0] - kept[1] == pytest.approx(2 * shard, rel=1e-3)
    times = [simulate(one, prices(2, DRIVE)).iteration_time_s for one in (plain, plan)]
    assert times[0] < times[1]


def test_a_synchronous_step_waits_for_the_sweep_over_the_drives() -> None:
    """A step takes at least 24 bytes per parameter of the node over the drives' bandwidth, and what it computes before.

    The reference's figure is the sum of both; here the host updates the first units before backward has ended.
    """
    num_ranks, sweep_s = 8, 24 * dense_job(model=MODEL).model.num_parameters / DRIVE.bandwidth_bytes_per_s
    without_s = simulate(tiered("deepspeed", dp=num_ranks), prices(num_ranks)).iteration_time_s
    for manager in ("deepspeed", "angel_ptm"):
        step_s = simulate(tiered(manager, drives=True, dp=num_ranks), prices(num_ranks, DRIVE)).iteration_time_s
        assert sweep_s < step_s < sweep_s + without_s


def test_stages_of_a_node_share_its_drives_as_they_need_them() -> None:
    """The middle stage has least state, and leaves its part of the drives to the others: no stage has a fixed share."""
    plan = tiered("angel_ptm", drives=True, pp=3, m=3, model=MODEL | {"vocab_size": 8192})
    drive = replace(DRIVE, bandwidth_bytes_per_s=3.5e8)
    step_s, moved = simulate(plan, prices(3, drive)).iteration_time_s, list[float]()
    for program in plan.programs:
        found = copied_bytes(replace(plan, programs=(program,)))
        moved.append((found[Tier.NVME, Tier.HOST] + found[Tier.HOST, Tier.NVME]) / drive.bandwidth_bytes_per_s)
    assert moved[1] < 0.5 * max(moved)
    assert sum(moved) < step_s < 3 * max(moved)


def test_earlier_movement_is_no_slower() -> None:
    """On demand is slowest; lifetimes, with the window's memory, are no slower than the window."""
    times = [simulate(tiered(manager, dp=8, b=4), prices(8)).iteration_time_s for manager in MANAGERS]
    assert times[0] > times[1] >= times[2]


def test_units_that_stay_are_updated_on_the_device_and_not_copied() -> None:
    """With room for all state nothing is copied, and the device holds 18 bytes per parameter of the shard."""
    plan = tiered("angel_ptm", dp=2, cached_bytes=10**9)
    check(plan)
    assert not copied_bytes(plan)
    (program,) = plan.programs
    kept = sum(b.num_bytes for b in program.buffers.values() if b.scope is Scope.PERSISTENT and b.tier is Tier.DEVICE)
    assert kept == pytest.approx(18 * dense_job(model=MODEL).model.num_parameters / 2, rel=1e-3)
    half = tiered("angel_ptm", dp=2, cached_bytes=kept // 2)
    assert 0 < sum(copied_bytes(half).values()) < sum(copied_bytes(tiered("angel_ptm", dp=2)).values())


def test_chunks_are_copied_as_their_placement_says() -> None:
    """Without optimizer state on the host nothing is; with it gradients go down and new parameters up, once a step.

    With all on the host, room for more gathered chunks means fewer copies.
    """

    def copied(chunks: ChunkSpec, gathered_bytes: int | None = None) -> Counter[tuple[Tier, Tier]]:
        memory = MemorySpec(manager="gemini", chunks=chunks, gathered_bytes=gathered_bytes)
        plan = dense_plan(model=MODEL, zero_stage=3, precision="bf16", memory=memory, dp=4)
        check(plan)
        return copied_bytes(plan)

    size, all_bytes = 2_000_000, 2 * dense_job(model=MODEL).model.num_parameters
    assert not copied(ChunkSpec(chunk_bytes=size))
    found = copied(ChunkSpec(chunk_bytes=size, optimizer=1.0))
    assert found[Tier.HOST, Tier.DEVICE] >= all_bytes / 4
    assert found[Tier.HOST, Tier.DEVICE] % (size // 4) == 0  # whole pieces, empty ends too
    assert found[Tier.DEVICE, Tier.HOST] == 2 * found[Tier.HOST, Tier.DEVICE]
    auto = ChunkSpec(chunk_bytes=size, placement="auto")
    loads = [copied(auto, room * size)[Tier.HOST, Tier.DEVICE] for room in (2, 4, 100)]
    assert loads[0] > loads[1] > loads[2] == found[Tier.HOST, Tier.DEVICE]


def placed(capacity_bytes: int, *, chunk_bytes: int = 2_000_000, holds_gradients: bool = False, **keys: Any) -> Plan:
    """Return the plan of chunks that a warm-up step places on a device of some memory."""
    chunks = ChunkSpec(
        chunk_bytes=chunk_bytes, placement="auto", capacity_bytes=capacity_bytes, holds_gradients=holds_gradients
    )
    memory = MemorySpec(manager="gemini", chunks=chunks)
    plan = dense_plan(**{"model": MODEL, "zero_stage": 3, "precision": "fp32", "memory": memory, "dp": 4} | keys)
    check(plan)
    return plan


def gathered_again(plan: Plan) -> int:
    """Return how many chunks backward gathers."""
    (program,) = plan.programs
    names = [op.name for task in program.tasks.values() for op in task.ops if isinstance(op, Copy)]
    return sum(name.startswith("load.regather.") for name in names)


@pytest.mark.parametrize("holds_gradients", [False, True])
def test_chunks_leave_nine_tenths_of_the_device_to_no_step(holds_gradients: bool) -> None:
    """Memory stays within nine tenths of the device at all sizes, and a larger device lets no fewer chunks stay."""
    again = []
    for capacity_bytes in (20_000_000, 24_000_000, 28_000_000, 60_000_000):
        plan = placed(capacity_bytes, holds_gradients=holds_gradients, b=4)
        assert memory_use(plan.programs[0]).peak_bytes <= 0.9 * capacity_bytes
        again.append(gathered_again(plan))
    assert again == sorted(again, reverse=True)
    assert again[0] > again[1] > again[-1] == 0


def test_activations_take_the_room_of_chunks() -> None:
    """On one device fewer chunks stay with larger micro-batches, and recomputation lets them stay again."""
    small, large = (gathered_again(placed(27_000_000, b=b)) for b in (1, 4))
    assert small < large
    assert gathered_again(placed(27_000_000, b=4, recompute="full")) < large


def test_chunks_that_do_not_fit_beside_activations_are_refused() -> None:
    """The error names the placement, and what the warm-up step leaves."""
    with pytest.raises(SpecError, match="which a warm-up step leaves them") as refused:
        placed(5_000_000, b=2)
    assert refused.value.key == "memory.placement"


def test_gradients_in_chunks_take_no_room_beside_them() -> None:
    """Gradients of two parameters at most lie beside chunks, where those of whole chunks did; copies stay the same."""
    held, apart = (placed(60_000_000, chunk_bytes=6_000_000, holds_gradients=holds) for holds in (True, False))
    buffers = held.programs[0].buffers.values()
    sizes = sorted(buffer.num_bytes for buffer in buffers if buffer.name.endswith(".gradient"))
    assert most_gradient_bytes(held.programs[0]) <= sum(sizes[-2:]) < 5_000_000 < most_gradient_bytes(apart.programs[0])
    assert copied_bytes(held) == copied_bytes(apart)


def most_gradient_bytes(program: Program) -> int:
    """Return the most bytes of gradients of parameters on the device at once, not counting shards."""
    sizes = {
        name: buffer.num_bytes
        for name, buffer in program.buffers.items()
        if buffer.kind is Kind.GRADIENT and buffer.tier is Tier.DEVICE and name.endswith(".gradient")
    }
    live = most = 0
    for life in lifetimes(program):
        changes = sorted([(op, 0, sizes.get(n, 0)) for op, n in life.births])
        for _, _, size in sorted([*changes, *((op, 1, -sizes.get(n, 0)) for op, n in life.deaths)]):
            live += size
            most = max(most, live)
    return most


def test_folded_ranks_share_hosts_and_drives_as_all_of_them_do() -> None:
    """One simulated rank that stands for all takes as long as all of them simulated."""
    plan = tiered("angel_ptm", drives=True, dp=4, m=2)
    folded, whole = simulate(plan, prices(4, DRIVE)), simulate(plan, prices(4, DRIVE), fold=no_fold)
    assert len(folded.programs) < len(whole.programs) == 4
    assert folded.iteration_time_s == pytest.approx(whole.iteration_time_s, rel=1e-9)


@pytest.mark.parametrize(
    ("memory", "keys", "key"),
    [
        (MemorySpec(manager="angel_ptm"), {"zero_stage": 2}, "memory.manager"),
        (MemorySpec(manager="deepspeed", cached_bytes=1), {}, "memory.cached"),
        (MemorySpec(manager="on_demand", gathered_bytes=1), {}, "memory.gathered"),
        (MemorySpec(manager="angel_ptm"), {"sharding": ShardingSpec(prefetch=2)}, "parallel.data.prefetch"),
        (MemorySpec(manager="deepspeed", chunks=ChunkSpec(chunk_bytes=1)), {}, "memory.chunk"),
        (MemorySpec(manager="on_demand", chunks=ChunkSpec(placement="auto")), {}, "memory.placement"),
        (MemorySpec(manager="angel_ptm", chunks=ChunkSpec(optimizer=1.0)), {}, "memory.offload"),
        (MemorySpec(manager="gemini", chunks=ChunkSpec(placement="auto", optimizer=1.0)), {}, "memory.offload"),
        (MemorySpec(manager="gemini", chunks=ChunkSpec(), gathered_bytes=1), {}, "memory.gathered"),
        (MemorySpec(manager="gemini", chunks=ChunkSpec(placement="auto")), {}, "memory.placement"),
        (IN_CHUNKS, {"m": 2}, "memory.gradients_in_chunks"),
        (IN_CHUNKS, {"precision": "bf16"}, "memory.gradients_in_chunks"),
        (replace(IN_CHUNKS, manager="deepspeed"), {}, "memory.gradients_in_chunks"),
        (MemorySpec(manager="gemini", chunks=ChunkSpec(parameters=0.5)), {}, "memory.offload.parameters"),
        (MemorySpec(manager="gemini", chunks=ChunkSpec(), optimizer_on_drives=True), {}, "memory.tiers.nvme"),
        (
            MemorySpec(manager="angel_ptm", optimizer_on_drives=True, parameters_on_drives=True, update="lock_free"),
            {},
            "memory.tiers.nvme.parameters",
        ),
        (
            MemorySpec(manager="angel_ptm"),
            {"pp": 2, "model": MODEL | {"tied_embeddings": True}},
            "model.tied_embeddings",
        ),
    ],
)
def test_what_is_not_built_is_refused(memory: MemorySpec, keys: dict[str, Any], key: str) -> None:
    """Other stages, options of another manager, and tied tables of two ranks, each with its key."""
    with pytest.raises(SpecError) as refused:
        dense_job(**{"model": MODEL, "zero_stage": 3, "dp": 2, "memory": memory} | keys)
    assert refused.value.key == key


def test_too_little_memory_for_a_layer_is_refused_with_what_it_takes() -> None:
    """The remedy names enough memory: with it the plan is built."""
    memory = MemorySpec(manager="angel_ptm", gathered_bytes=1000)
    with pytest.raises(SpecError, match="write 2 MB or more") as refused:
        dense_plan(model=MODEL, zero_stage=3, precision="bf16", memory=memory)
    assert refused.value.key == "memory.gathered"
    dense_plan(model=MODEL, zero_stage=3, precision="bf16", memory=replace(memory, gathered_bytes=2_000_000))


@pytest.mark.parametrize(
    ("op", "rule"),
    [
        (Copy("c", ("device",), ("nvme",), "nvme"), "by way of the host's memory"),
        (Compute("k", "copy", ("nvme",), ("nvme",)), "nothing computes on drives"),
    ],
)
def test_drives_are_reached_from_the_host_alone(op: Op, rule: str) -> None:
    """No copy leads from a device to drives, and no kernel works there."""
    buffers = {str(t): Buffer(str(t), (4,), "float32", Kind.WORKSPACE, Scope.PERSISTENT, t) for t in Tier}
    task = Task("task", Phase.PREPARE, (op,))
    with pytest.raises(CheckError, match=rule):
        check(Plan("wrong", Mesh((("dp", 1),)), (Program({}, buffers, {"task": task}, (Call("task"),)),)))
