"""Real runs of training whose state lies in tiers of memory."""

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from sim.memory.spec import ChunkSpec, MemorySpec
from sim.training.spec.job import DenseTraining, ShardingSpec
from tests.backends.expert_runs import MIXTURE
from tests.backends.jobs import GPT, LLAMA, training

SHORT_GPT: Mapping[str, Any] = {**GPT, "num_layers": 3}
SHORT_LLAMA: Mapping[str, Any] = {**LLAMA, "num_layers": 3}
ON_DEMAND = MemorySpec(manager="on_demand")
DEEPSPEED = MemorySpec(manager="deepspeed")
ANGEL = MemorySpec(manager="angel_ptm")
DRIVES = MemorySpec(manager="deepspeed", optimizer_on_drives=True)
ANGEL_DRIVES = MemorySpec(manager="angel_ptm", optimizer_on_drives=True, cached_bytes=60_000)
ALL_ON_DRIVES = MemorySpec(manager="angel_ptm", optimizer_on_drives=True, parameters_on_drives=True)
CACHED = MemorySpec(manager="angel_ptm", cached_bytes=60_000)
"""Part of the units stay on the device."""


WARM_BYTES = 120_000
"""Device memory with which some chunks stay on the device, and not all."""


def gemini(**keys: Any) -> MemorySpec:
    """Return chunks of 10,000 bytes, some of which have empty ends; ``keys`` as of ``ChunkSpec``."""
    return MemorySpec(manager="gemini", chunks=ChunkSpec(**{"chunk_bytes": 10_000, **keys}))


TIERED_JOBS: Mapping[str, DenseTraining] = {
    "on demand, dp2": training(model=SHORT_LLAMA, data_degree=2, zero_stage=3, memory=ON_DEMAND),
    "deepspeed, dp2 x tp2 sp, two ahead, recompute": training(
        model=SHORT_LLAMA, data_degree=2, zero_stage=3, tensor_degree=2, sequence_parallel=True, memory=DEEPSPEED,
        recompute="full", sharding=ShardingSpec(prefetch=2),
    ),
    "deepspeed, one rank, tied": training(model=SHORT_GPT, zero_stage=3, memory=DEEPSPEED),
    "lifetimes, dp2, tied": training(model=SHORT_GPT, data_degree=2, zero_stage=3, memory=ANGEL),
    "lifetimes, dp2, one micro-batch": training(
        model=SHORT_LLAMA, data_degree=2, zero_stage=3, memory=ANGEL, batch=(2, 1)
    ),
    "lifetimes, some layers stay, dp2": training(model=SHORT_LLAMA, data_degree=2, zero_stage=3, memory=CACHED),
    "lifetimes, some layers stay, one rank": training(model=SHORT_LLAMA, zero_stage=3, memory=CACHED),
    "lifetimes, pp2 x dp2": training(
        model={**LLAMA, "num_layers": 2}, data_degree=2, zero_stage=3, memory=CACHED, pipeline={"degree": 2}
    ),
    "lifetimes, two stages of one rank, tied, one micro-batch": training(
        model=SHORT_GPT, data_degree=2, zero_stage=3, memory=ANGEL, batch=(2, 1),
        pipeline={"degree": 1, "schedule": "breadth_first", "virtual_stages": 3},
    ),
    "state on drives, deepspeed, dp2": training(
        model=SHORT_LLAMA, data_degree=2, zero_stage=3, memory=DRIVES, batch=(2, 1)
    ),
    "state on drives, lifetimes, some layers stay, one rank": training(
        model=SHORT_LLAMA, zero_stage=3, memory=ANGEL_DRIVES
    ),
    "parameters on drives too, pp2": training(
        model={**LLAMA, "num_layers": 2}, zero_stage=3, memory=ALL_ON_DRIVES, batch=(4, 1), pipeline={"degree": 2}
    ),
    "lifetimes, cp2": training(model=SHORT_LLAMA, context_degree=2, zero_stage=3, memory=ANGEL),
    "lifetimes, experts on two ranks": training(
        model={**MIXTURE, "num_layers": 1}, data_degree=2, expert_degree=2, zero_stage=3, memory=ANGEL
    ),
    "chunks on the devices, dp2": training(model=SHORT_LLAMA, data_degree=2, zero_stage=3, memory=gemini()),
    "chunks, half the parameters on the host, dp2 x tp2 sp, recompute, one ahead": training(
        model=SHORT_LLAMA, data_degree=2, zero_stage=3, tensor_degree=2, sequence_parallel=True, recompute="full",
        memory=gemini(parameters=0.5, optimizer=1.0), sharding=ShardingSpec(prefetch=1),
    ),
    "chunks, half the optimizer on the host, dp2, tied": training(
        model=SHORT_GPT, data_degree=2, zero_stage=3, memory=gemini(optimizer=0.5)
    ),
    "chunks that stay, one rank, tied": training(
        model=SHORT_GPT, zero_stage=3, memory=replace(gemini(placement="auto"), gathered_bytes=80_000)
    ),
    "chunks, pp2 x dp2": training(
        model={**LLAMA, "num_layers": 2}, data_degree=2, zero_stage=3, pipeline={"degree": 2},
        memory=gemini(placement="auto", capacity_bytes=WARM_BYTES),
    ),
    "chunks placed by a warm-up step, dp2": training(
        model=SHORT_LLAMA, data_degree=2, zero_stage=3, memory=gemini(placement="auto", capacity_bytes=WARM_BYTES)
    ),
    "gradients in chunks, dp2 x tp2 sp, recompute": training(
        model=SHORT_LLAMA, data_degree=2, zero_stage=3, tensor_degree=2, sequence_parallel=True, recompute="full",
        memory=gemini(parameters=0.5, optimizer=1.0, holds_gradients=True), batch=(2, 1),
    ),
    "gradients in chunks that stay, one rank, tied": training(
        model=SHORT_GPT, zero_stage=3, batch=(1, 1),
        memory=gemini(placement="auto", capacity_bytes=WARM_BYTES, holds_gradients=True),
    ),
    "gradients in chunks of two stages of one rank, tied": training(
        model=SHORT_GPT, data_degree=2, zero_stage=3, memory=gemini(holds_gradients=True), batch=(2, 1),
        pipeline={"degree": 1, "schedule": "breadth_first", "virtual_stages": 3},
    ),
    "one chunk, experts on two ranks": training(
        model={**MIXTURE, "num_layers": 1}, data_degree=2, expert_degree=2, zero_stage=3,
        memory=gemini(chunk_bytes=None, parameters=1.0, optimizer=1.0),
    ),
}  # fmt: skip
"""On as many ranks as they need, all in one process."""
