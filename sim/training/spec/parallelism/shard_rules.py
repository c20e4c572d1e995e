"""Checks of data-parallel options: each needs its ZeRO stage, and degrees must divide evenly."""

from collections.abc import Sequence

from sim.memory.spec import ChunkSpec, Manager, MemorySpec
from sim.training.errors import SpecError
from sim.training.spec.parallelism.parallel import ParallelSpec
from sim.training.spec.training import TrainingSpec


def check_options(parallel: ParallelSpec) -> None:
    """Raise SpecError for an option without the ZeRO stage that it belongs to."""
    stage, sharding = parallel.zero_stage, parallel.sharding
    if parallel.osdp is None and sharding.offload is not None and stage != 2:
        rule = f"it needs sharded gradients and whole parameters (zero_stage 2), and zero_stage is {stage}"
        raise SpecError("parallel.data.offload", rule, "leave it out, or write zero_stage: 2")
    if sharding.delayed_update and sharding.offload is None:
        rule = "the host updates a step late, and without offload it updates nothing"
        raise SpecError("parallel.data.delayed_update", rule, "leave it out, or write offload: optimizer")
    if parallel.memory is not None:
        _check_memory(parallel, parallel.memory)
    if parallel.osdp is None:
        _check_stage(parallel)
    if parallel.overlap_parameter_gather and stage != 1:
        rule = f"updated parameters are gathered with zero_stage 1, and zero_stage is {stage}"
        raise SpecError("parallel.data.overlap_parameter_gather", rule, "leave it out, or write zero_stage: 1")


def _check_memory(parallel: ParallelSpec, memory: MemorySpec) -> None:
    """Raise SpecError for tiers of memory without sharded parameters, and for an option of another manager."""
    if parallel.zero_stage != 3:
        rule = f"it moves sharded parameters (zero_stage 3), and zero_stage is {parallel.zero_stage}"
        raise SpecError("memory.manager", rule, "leave memory out, or write parallel.data.zero_stage: 3")
    chunks = memory.chunks or ChunkSpec()
    options: dict[str, tuple[object, tuple[Manager, ...]]] = {
        "memory.gathered": (memory.gathered_bytes, ("angel_ptm", "gemini")),
        "memory.cached": (memory.cached_bytes or None, ("angel_ptm",)),
        "memory.chunk": (chunks.chunk_bytes, ("gemini",)),
        "memory.placement": (None if chunks.placement == "static" else chunks.placement, ("gemini",)),
        "memory.gradients_in_chunks": (chunks.holds_gradients or None, ("gemini",)),
        "memory.offload": (chunks.parameters or chunks.optimizer or None, ("gemini",)),
        "parallel.data.prefetch": (parallel.sharding.prefetch, ("deepspeed", "gemini")),
    }
    for key, (value, managers) in options.items():
        if value is not None and memory.manager not in managers:
            rule = f"it is an option of memory.manager {' and '.join(managers)}, and manager is {memory.manager}"
            raise SpecError(key, rule, f"leave it out, or write manager: {' or '.join(managers)}")
    if memory.update == "lock_free" and not (memory.manager == "angel_ptm" and memory.optimizer_on_drives):
        rule = "an update of its own pace is for optimizer state on drives, under manager angel_ptm"
        raise SpecError("memory.update", rule, "leave it out, or write manager: angel_ptm and tiers.nvme")
    if memory.max_staleness is not None and memory.update != "lock_free":
        rule = "under update: synchronous no parameters lack a gradient"
        raise SpecError("memory.max_staleness", rule, "leave it out, or write update: lock_free")
    if memory.parameters_on_drives and (memory.manager == "gemini" or memory.update == "lock_free"):
        used = "manager: gemini" if memory.manager == "gemini" else "update: lock_free"
        rule = f"under {used} parameters lie in the host's memory"
        raise SpecError("memory.tiers.nvme.parameters", rule, f"leave it out, or {used}")
    if memory.manager == "gemini":
        _check_chunks(memory, chunks)


def _check_chunks(memory: MemorySpec, chunks: ChunkSpec) -> None:
    """Raise SpecError for options that do not go with the placement of chunks."""
    if chunks.placement == "auto" and (chunks.parameters or chunks.optimizer):
        rule = "with placement auto all chunks lie on the host, and fractions are options of placement static"
        raise SpecError("memory.offload", rule, "leave it out, or write placement: static")
    if chunks.placement == "static" and memory.gathered_bytes is not None:
        rule = "with placement static chunks leave the device when they are no longer used"
        raise SpecError("memory.gathered", rule, "leave it out, or write placement: auto")
    if chunks.parameters and chunks.optimizer < 1:
        rule = f"parameters go to the host after all optimizer state, and of that {chunks.optimizer:g} is there"
        raise SpecError("memory.offload.parameters", rule, "leave it out, or write optimizer: 1")
    if memory.optimizer_on_drives and chunks.placement == "static" and not chunks.optimizer:
        rule = "drives hold the optimizer state of chunks on the host, and no chunk lies there"
        raise SpecError("memory.tiers.nvme", rule, "leave it out, or write offload: {optimizer: 1}")


def check_payloads(training: TrainingSpec, parallel: ParallelSpec, num_microbatches: int) -> None:
    """Raise SpecError where gradients cannot take the place of a chunk's parameters."""
    chunks = None if parallel.memory is None else parallel.memory.chunks
    if chunks is None or not chunks.holds_gradients:
        return
    key, types = "memory.gradients_in_chunks", training.types
    if num_microbatches > 1:
        rule = f"parameters are needed again, as a step has {num_microbatches} micro-batches"
        raise SpecError(key, rule, "leave it out, or write one micro-batch per step")
    if types.gradient != types.parameter:
        rule = f"a chunk of {types.parameter} holds no gradients of {types.gradient}"
        raise SpecError(key, rule, "leave it out, or write training.low_precision_gradients: true")


def _check_stage(parallel: ParallelSpec) -> None:
    sharding, zero_stage = parallel.sharding, parallel.zero_stage
    needs = {
        "shard_degree": (sharding.shard_degree, 2),
        "gradient_sync": (sharding.gradient_sync, 2),
        "local_degree": (sharding.local_degree, 3),
        "prefetch": (sharding.prefetch, 3),
        "reshard_after_forward": (sharding.reshard_after_forward, 3),
    }
    for key, (value, stage) in needs.items():
        if value is not None and zero_stage < stage:
            raise SpecError(
                f"parallel.data.{key}",
                f"it is an option of zero_stage {'2 and 3' if stage == 2 else '3'}, and zero_stage is {zero_stage}",
                f"leave it out, or write zero_stage: {stage}",
            )


def check_shard_degrees(parallel: ParallelSpec) -> None:
    """Raise SpecError where groups of ranks do not share out the replicas, or neighbours a group."""
    data_degree, degree, local = parallel.data_degree, parallel.sharding.shard_degree, parallel.sharding.local_degree
    least = 1 if parallel.context_degree > 1 else 2  # the ranks of one replica share shards as well
    if degree is not None and (data_degree % degree or degree < least):
        raise SpecError(
            "parallel.data.shard_degree",
            f"groups of {degree} ranks do not share out {data_degree} replicas",
            _remedy([n for n in range(least, data_degree + 1) if data_degree % n == 0]),
        )
    experts = parallel.expert_degree
    if degree is not None and degree % experts:
        raise SpecError(
            "parallel.data.shard_degree",
            f"groups of {degree} ranks do not hold all experts, which {experts} ranks share out",
            _remedy([n for n in range(experts, data_degree + 1, experts) if data_degree % n == 0]),
        )
    group = degree or data_degree
    if local is not None and (local < 2 or local >= group or group % local):
        raise SpecError(
            "parallel.data.local_degree",
            f"{group} ranks that share one set of shards are not two or more times {local} neighbours",
            _remedy([n for n in range(2, group) if group % n == 0]),
        )


def _remedy(degrees: Sequence[int]) -> str:
    """Return which of the degrees that share out evenly to write, the largest few, if there are some."""
    if not degrees:
        return "leave it out"
    *others, last = map(str, degrees[-4:])
    return f"write {', '.join(others)}{' or ' if others else ''}{last}, or leave it out"
