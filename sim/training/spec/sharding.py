"""What data parallelism shards beside the optimizer state, and when: typed, checked input."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from sim.training.errors import SpecError
from sim.training.pipeline.rules import Schedule
from sim.training.pipeline.spec import PipelineSpec

GradientSync = Literal["each_microbatch", "last_microbatch"]
Offload = Literal["optimizer"]

GRADIENT_SCHEDULES: Final[tuple[Schedule, ...]] = ("gpipe", "1f1b", "interleaved_1f1b", "breadth_first")
"""Schedules under which gradients can be sharded every micro-batch: one copy of the model, whole backwards."""


class Choice(NamedTuple):
    """Into how many slices an operator is split, and how many of them are sharded."""

    num_slices: int = 1
    num_sharded: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class OsdpSpec:
    """Shard by operator, no more than a memory limit asks for (OSDP, Jiang et al., IJCAI 2023)."""

    memory_limit_bytes: int | None = None
    """What a rank may use; None: the memory of its device."""
    splits: tuple[int, ...] = (1,)
    """Numbers of slices that a linear layer may be split into, where its input divides."""
    gap: float = 0.0
    """By which part of the least time the chosen one may be longer."""
    choices: tuple[tuple[str, Choice], ...] | None = None
    """What was chosen, by operator; None: nothing yet. Operators left out are replicated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardingSpec:
    """Options of ZeRO stages 2 and 3. None: the user left the key out.

    The properties say what is then done.
    """

    shard_degree: int | None = None
    """Ranks that share one set of shards; the groups of that many are replicas of each other. Default: all."""
    local_degree: int | None = None
    """Stage 3: neighbours among those; units are gathered among the ranks at one place of all of them first, and then
    among neighbours. Default: all at once."""
    gradient_sync: GradientSync | None = None
    """Reduce-scatter gradients after every micro-batch (default), or once, of what a step accumulated."""
    prefetch: int | None = None
    """Stage 3: units that are gathered ahead of the one that computes, default 1. No more than one and these are
    gathered at once."""
    reshard_after_forward: bool | None = None
    """Stage 3: free gathered parameters after forward and gather them again in backward (default)."""
    offload: Offload | None = None
    """Stage 2: keep gradients, master weights and optimizer state on the host, and update there (ZeRO-Offload)."""

    @property
    def syncs_each_microbatch(self) -> bool:
        """Return whether gradients are sharded after every micro-batch."""
        return self.gradient_sync != "last_microbatch"

    @property
    def units_ahead(self) -> int:
        """Return how many units are gathered ahead."""
        return 1 if self.prefetch is None else self.prefetch

    @property
    def reshards(self) -> bool:
        """Return whether parameters are gathered again in backward."""
        return self.reshard_after_forward is not False


def check_sharding(
    zero_stage: int,
    data_degree: int,
    sharding: ShardingSpec,
    pipeline: PipelineSpec,
    *,
    osdp: OsdpSpec | None,
    bucket_bytes: int,
    overlaps: bool,
) -> None:
    """Raise SpecError for options that do not go with the ZeRO stage, and for what is not built."""
    if osdp is not None:
        _check_osdp(zero_stage, sharding, pipeline, bucket_bytes=bucket_bytes, overlaps=overlaps)
        return
    if sharding.offload is not None:
        _check_offload(zero_stage, sharding, pipeline)
    _check_options(zero_stage, sharding)
    if zero_stage < 2:
        return
    degree = sharding.shard_degree
    if degree is not None and (data_degree % degree or degree < 2):
        raise SpecError(
            "parallel.data.shard_degree",
            f"groups of {degree} ranks do not share out {data_degree} replicas",
            _remedy([n for n in range(2, data_degree + 1) if data_degree % n == 0]),
        )
    group, local = degree or data_degree, sharding.local_degree
    if local is not None and (local < 2 or local >= group or group % local):
        raise SpecError(
            "parallel.data.local_degree",
            f"{group} ranks that share one set of shards are not two or more times {local} neighbours",
            _remedy([n for n in range(2, group) if group % n == 0]),
        )
    if not overlaps:
        raise SpecError(
            "parallel.data.overlap_gradient_sync",
            f"ZeRO stage {zero_stage} frees gradients as backward goes on: there is no blocking synchronisation",
            "leave it out, or write zero_stage: 1",
        )
    _check_schedule(zero_stage, sharding, pipeline)
    if zero_stage == 3 and bucket_bytes:
        raise SpecError(
            "parallel.data.bucket",
            "ZeRO stage 3 gathers and reduces layer by layer, so there are no buckets",
            "leave it out, or write zero_stage: 2",
        )


def check_parameter_gather(zero_stage: int, pipeline: PipelineSpec) -> None:
    """Raise SpecError where no gather of updated parameters could be left to the next step's forwards."""
    key = "parallel.data.overlap_parameter_gather"
    if zero_stage != 1:
        rule = f"updated parameters are gathered with zero_stage 1, and zero_stage is {zero_stage}"
        raise SpecError(key, rule, "leave it out, or write zero_stage: 1")
    if pipeline.schedule == "aiao":
        raise SpecError(key, "aiao leaves gathers to the next step's forwards by itself", "leave it out")


def _remedy(degrees: Sequence[int]) -> str:
    """Return which of the degrees that share out evenly to write, the largest few, if there are some."""
    if not degrees:
        return "leave it out"
    *others, last = map(str, degrees[-4:])
    return f"write {', '.join(others)}{' or ' if others else ''}{last}, or leave it out"


def _check_offload(zero_stage: int, sharding: ShardingSpec, pipeline: PipelineSpec) -> None:
    """Raise SpecError for what is not built with gradients and optimizer on the host."""
    key, remedy = "parallel.data.offload", "leave it out, or write"
    if zero_stage != 2:
        rule = f"it shards gradients and keeps parameters whole, which is zero_stage 2, and zero_stage is {zero_stage}"
        raise SpecError(key, rule, f"{remedy} zero_stage: 2")
    if pipeline.degree > 1:
        rule = f"it is not built for pipelines, and this one has {pipeline.degree} ranks"
        raise SpecError(key, rule, f"{remedy} pipeline: {{degree: 1}}")
    if sharding.shard_degree is not None:
        rule = "it is not built for groups of replicas, whose sums of shards would have to leave the host again"
        raise SpecError(key, rule, "leave it, or shard_degree, out")


def _check_schedule(zero_stage: int, sharding: ShardingSpec, pipeline: PipelineSpec) -> None:
    """Raise SpecError for schedules of split backwards, but for gradients sharded once a step, and for two copies."""
    once = zero_stage == 2 and not sharding.syncs_each_microbatch and pipeline.num_copies == 1
    if pipeline.schedule in GRADIENT_SCHEDULES or once:
        return
    if zero_stage == 2 and pipeline.num_copies == 1:
        raise SpecError(
            "parallel.data.gradient_sync",
            f"the backwards of {pipeline.schedule} come in parts, so gradients are not sharded after each",
            "write gradient_sync: last_microbatch, or zero_stage: 1",
        )
    raise SpecError(
        "parallel.data.zero_stage",
        f"ZeRO stage {zero_stage} is not built for {pipeline.schedule}: its backwards come in parts, or the model "
        "in copies",
        f"write zero_stage: 1, or schedule: {' or '.join(GRADIENT_SCHEDULES)}",
    )


def _check_options(zero_stage: int, sharding: ShardingSpec) -> None:
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


def _check_osdp(
    zero_stage: int, sharding: ShardingSpec, pipeline: PipelineSpec, *, bucket_bytes: int, overlaps: bool
) -> None:
    refused = {
        "zero_stage": (zero_stage > 0, "says what all operators shard, and osdp chooses operator by operator"),
        "shard_degree": (sharding.shard_degree is not None, "is not built with osdp: it shards over all replicas"),
        "local_degree": (sharding.local_degree is not None, "is not built with osdp: it gathers all at once"),
        "reshard_after_forward": (
            sharding.reshard_after_forward is not None, "is not built with osdp: it gathers again in backward"
        ),
        "offload": (sharding.offload is not None, "is not built with osdp: it updates operators on the devices"),
        "bucket": (bucket_bytes > 0, "is not built with osdp: every operator is synchronised by itself"),
        "overlap_gradient_sync": (not overlaps, "is not built with osdp: it synchronises while backward goes on"),
    }  # fmt: skip
    for key, (is_wrong, rule) in refused.items():
        if is_wrong:
            raise SpecError(f"parallel.data.{key}", f"{key} {rule}", "leave it out, or leave osdp out")
    if pipeline.schedule not in GRADIENT_SCHEDULES:
        raise SpecError(
            "parallel.data.osdp",
            f"osdp is not built for {pipeline.schedule}: its backwards come in parts, or the model in copies",
            f"leave it out, or write schedule: {' or '.join(GRADIENT_SCHEDULES)}",
        )
