import re
from pathlib import Path

import pytest

from scenarios.errors import ScenarioError
from scenarios.planning.request import Request
from scenarios.planning.resources import Resources
from scenarios.planning.search import search
from scenarios.sweep.workers import ThisProcess
from scenarios.workloads.loading import load_step
from scenarios.workloads.steps.running import plan_of

HERE = Resources(ThisProcess())
"""This process simulates."""

SMALL = """
name: small
seed: 0
cluster: {node: hgx-h100, num_nodes: 1, devices_per_node: 2}
model: {family: gpt, num_layers: 4, hidden_size: 1024, num_heads: 8, vocab_size: 8000, sequence_length: 512}
training: {global_batch_size: 2}
"""


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    """A small model on two GPUs that leaves the whole strategy open."""
    path = tmp_path / "small.yaml"
    path.write_text(SMALL, encoding="utf-8")
    return path


def reserve(room_gib: float) -> str:
    """Return the override under which a device has so much room."""
    return f"software.memory_reserve={79.65 - room_gib} GiB"


def test_megatron_takes_the_fewest_ranks_per_replica_that_fit(scenario: Path) -> None:
    """With room for a replica on one GPU it takes one; with less, tensor parallelism grows until one fits."""
    wide, narrow = (
        search(scenario, [reserve(room), "training.microbatch_size=1"], Request(planner="megatron"), HERE).summary
        for room in (20.0, 0.6)
    )
    assert wide.plans[0].set["parallel.tensor.degree"] == 1
    assert narrow.plans[0].set["parallel.tensor.degree"] > 1
    assert narrow.plans[0].set["parallel.pipeline.degree"] == 1
    for summary in (wide, narrow):
        assert len(summary.plans) == 1
        assert summary.plans[0].peak_memory_bytes <= summary.memory_room_bytes
        assert len(summary.plans) + sum(lost.number for lost in summary.lost) == summary.num_strategies


def test_osdp_shards_what_memory_asks_for(scenario: Path) -> None:
    """As a planner OSDP has replicas alone, and its best plan is that of its keys: some operators are sharded."""
    fixed = [reserve(0.8), "training.microbatch_size=1", "training.recompute=none"]
    summary = search(scenario, fixed, Request(planner="osdp"), HERE).summary
    (plan,) = summary.plans
    assert plan.set["parallel.data.osdp"] == {}
    assert plan.set["parallel.data.degree"] == 2
    assert plan.peak_memory_bytes <= summary.memory_room_bytes
    keys = [f"{key}={value}" for key, value in plan.set.items() if key != "parallel.data.osdp"]
    decided = load_step(scenario, [*fixed, *keys, "parallel.data.osdp={}"]).decided().dense_job
    assert decided is not None
    assert 0 < len(decided.operator_choices) < 19
    assert plan_of(load_step(scenario, [*fixed, *keys, "parallel.data.osdp={}"])).programs


def test_the_named_change_makes_a_strategy_fit(scenario: Path) -> None:
    """Where nothing fits, leaving out the keys that the error names makes the search find a plan that fits."""
    short = [reserve(0.6), "training.recompute=none", "training.microbatch_size=1"]
    keys = ["parallel.tensor.degree=1", "parallel.pipeline.degree=1", "parallel.data.zero_stage=0"]
    with pytest.raises(ScenarioError, match="leave out") as found:
        search(scenario, [*short, *keys], Request(), HERE)
    named = re.findall(r"[a-z_]+(?:\.[a-z_]+)+", found.value.remedy)
    left = [text for text in (*short, *keys) if text.partition("=")[0] not in named]
    assert len(left) < len(short) + len(keys)
    summary = search(scenario, left, Request(num_proofs=1, goal="memory"), HERE).summary
    assert summary.plans[0].peak_memory_bytes <= summary.memory_room_bytes
