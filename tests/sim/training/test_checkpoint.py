"""Checkpoints beside steps: what every rank saves, and how writing and steps share hosts and drives."""

import pytest
from msgspec.structs import replace

from costmodels.hardware import StorageSpec, load_node
from costmodels.profile import load_profile
from sim.cluster.cluster import Cluster
from sim.engine.prices.pricing import ClusterPricing
from sim.engine.running.simulate import simulate
from sim.memory.spec import MemorySpec
from sim.plan.checking.check import check
from sim.plan.words.buffer import Tier
from sim.plan.words.program import Plan
from sim.training.checkpoint import Saved, beside_writing, saved_state, snapshot, writing
from sim.training.spec.job import DenseTraining
from sim.training.steps.builder import build_dense_training
from tests.sim.jobs import LLAMA, dense_job

MODEL = LLAMA | {"num_layers": 3, "hidden_size": 256, "ffn_hidden_size": 704}
DRIVE = StorageSpec(capacity_bytes=10**12, bandwidth_bytes_per_s=3.5e9, latency_s=0.0)
ON_HOST, ON_DRIVES = (MemorySpec(manager="angel_ptm", optimizer_on_drives=drives) for drives in (False, True))


def job_of(memory: MemorySpec | None = None, num_ranks: int = 2) -> DenseTraining:
    """Return replicas in mixed precision, or with their state in tiers of memory."""
    sharding = {} if memory is None else {"zero_stage": 3, "memory": memory}
    return dense_job(model=MODEL, dp=num_ranks, precision="bf16", **sharding)


def prices(num_ranks: int = 2, drive: StorageSpec = DRIVE) -> ClusterPricing:
    """Return prices on a node of A100 with drives."""
    node = load_node("dgx-a100-40g")
    node = replace(node, host=replace(node.host, storage=drive))
    return ClusterPricing(Cluster(node, 1, num_ranks), load_profile(node.device.generation))


def plans(memory: MemorySpec | None, num_ranks: int = 2) -> tuple[Plan, Saved, int]:
    """Return a step, what its ranks save, and the model's parameters."""
    job = job_of(memory, num_ranks)
    plan = build_dense_training(job, "step")
    return plan, saved_state(job, plan), job.model.num_parameters


@pytest.mark.parametrize(
    ("memory", "device", "host", "nvme"), [(None, 14, 0, 0), (ON_HOST, 0, 14, 0), (ON_DRIVES, 0, 2, 12)]
)
def test_all_ranks_save_each_parameter_master_weight_and_moment_once(
    memory: MemorySpec | None, device: int, host: int, nvme: int
) -> None:
    """14 bytes per parameter in mixed precision under Adam, replicas or shards, from where they lie during steps."""
    for num_ranks in (1, 4):
        _, saved, num_parameters = plans(memory, num_ranks)
        each = num_parameters / num_ranks
        for tier, num_bytes in ((Tier.DEVICE, device), (Tier.HOST, host), (Tier.NVME, nvme)):
            assert saved.by_tier[tier] == pytest.approx(num_bytes * each, rel=1e-2, abs=1)
        assert saved.rank_bytes == pytest.approx(14 * each, rel=1e-6)


@pytest.mark.parametrize("memory", [None, ON_HOST, ON_DRIVES])
def test_writing_takes_the_bytes_of_a_node_over_its_drives(memory: MemorySpec | None) -> None:
    """State on drives is read once more. The snapshot is of what does not lie there, over the links of all devices."""
    plan, saved, _ = plans(memory)
    moved = 2 * (saved.rank_bytes + saved.by_tier[Tier.NVME])
    assert simulate(writing(plan, saved), prices()).iteration_time_s == pytest.approx(moved / 3.5e9, rel=1e-3)
    for each in (writing(plan, saved), snapshot(plan, saved), beside_writing(plan, saved, 3)):
        check(each)
    taken_s, host = simulate(snapshot(plan, saved), prices()).iteration_time_s, prices().cluster.node.host
    if memory is None:
        alone_s = saved.rank_bytes / (host.device_bandwidth_bytes_per_s * host.device_attained)
        assert taken_s == pytest.approx(host.device_latency_s + alone_s)
    else:
        assert taken_s < moved / 3.5e9


@pytest.mark.parametrize("memory", [None, ON_HOST, ON_DRIVES])
def test_steps_slow_down_by_what_they_share_with_writing(memory: MemorySpec | None) -> None:
    """A step beside a piece takes no less than either alone, and no more than one after the other."""
    plan, saved, num_parameters = plans(memory)
    alone_s = simulate(plan, prices()).iteration_time_s
    piece_s = simulate(writing(plan, saved), prices()).iteration_time_s / 4
    beside_s = simulate(beside_writing(plan, saved, 4), prices()).iteration_time_s
    assert max(alone_s, piece_s) <= beside_s * (1 + 1e-9)
    assert beside_s <= (alone_s + piece_s) * (1 + 1e-9)
    if memory is ON_DRIVES:
        assert beside_s >= (24 * num_parameters / 3.5e9 + piece_s) * (1 - 1e-9)
    if memory is None:
        assert beside_s == pytest.approx(max(alone_s, piece_s), rel=1e-3)
