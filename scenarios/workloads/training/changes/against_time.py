"""Changes of a training step that may make it faster. None changes the global batch, or what is computed."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from scenarios.workloads.steps.findings.changes import (
    BUBBLE,
    COMPUTING,
    RECOMPUTED,
    Change,
    Overrides,
    schedule_changes,
)
from scenarios.workloads.training.changes.degrees import degree_changes
from scenarios.workloads.training.changes.recomputation import recomputing
from sim.training.pipeline.rules import OVERLAPPING_SCHEDULES
from sim.training.pipeline.spec import Recompute
from sim.training.spec.job import ParallelSpec, TrainingJob

_BUCKET: Final = "100 MB"
"""A size of buckets of gradients that most links carry at nearly their full rate."""


def changes_of(job: TrainingJob, written: Mapping[str, Any]) -> list[Change]:
    """Return all changes that may make a step faster; some may be refused, or not fit in memory.

    ``written``: the section ``parallel`` of the scenario's file.
    """
    return [
        *_of_tensor(job.parallel),
        *_of_recomputation(job),
        *schedule_changes(job.parallel.pipeline, _finer(job), _slices(job)),
        *_of_microbatches(job),
        *_of_data(job.parallel),
        *_of_messages(job.parallel),
        *_of_exchanges(job.parallel),
        *degree_changes(job.parallel, written),
    ]


def _of_tensor(parallel: ParallelSpec) -> Iterator[Change]:
    tensor, sequence = parallel.tensor, "parallel.tensor.sequence_parallel=true"
    if tensor.degree == 1:
        return
    if not tensor.cuts_residual:
        yield Change((sequence,), {"tp": 0.1, "duplicated": 0.8})
    if tensor.splits_products:
        yield Change(("parallel.tensor.collective_matmul=false",), {COMPUTING: 0.05})
    else:
        needed = () if tensor.cuts_residual else (sequence,)
        yield Change((*needed, "parallel.tensor.collective_matmul=true"), {"tp": 0.8})
    if not tensor.overlaps_backward:
        yield Change(("parallel.tensor.overlap_backward=true",), {"tp": 0.3})


def _of_recomputation(job: TrainingJob) -> Iterator[Change]:
    """Yield less recomputation."""
    now = {*(job.parallel.pipeline.recompute_per_stage or (job.training.recompute,))}
    levels: tuple[Recompute, ...] = ("selective", "none") if now != {"none"} else ()
    less = [overrides for level in levels if (overrides := recomputing(job, level))]
    above: Overrides = ()
    for overrides, part in zip(less, (1.0, 0.95), strict=False):
        yield Change(overrides, {RECOMPUTED: part}, above)
        above = overrides


def _finer(job: TrainingJob) -> list[int]:
    """Return the numbers of virtual stages that a rank's layers make, those above the present one first."""
    pipeline = job.parallel.pipeline
    if pipeline.layers_per_stage:
        return []
    layers = job.model.num_layers // pipeline.degree
    numbers = [number for number in range(2, layers + 1) if layers % number == 0]
    return sorted(numbers, key=lambda number: (number <= pipeline.virtual_stages, number))


def _slices(job: TrainingJob) -> list[int]:
    """Return numbers of token slices, where there are too few micro-batches to fill the pipeline."""
    few = job.num_microbatches < 4 * job.parallel.pipeline.degree
    return [number for number in (2, 4) if few and job.model.sequence_length % number == 0]


def _of_microbatches(job: TrainingJob) -> Iterator[Change]:
    size = job.training.microbatch_size
    yield Change((f"training.microbatch_size={2 * size}",), {COMPUTING: 0.05, "tp": 0.05, "dp": 0.05})
    if size % 2 == 0:
        yield Change((f"training.microbatch_size={size // 2}",), {BUBBLE: 0.5})


def _of_data(parallel: ParallelSpec) -> Iterator[Change]:
    """Yield other ways to synchronise gradients and to shard state."""
    stage, sharding = parallel.zero_stage, parallel.sharding
    if not parallel.overlap_gradient_sync:
        yield Change(("parallel.data.overlap_gradient_sync=true",), {"dp": 0.7})
    elif not parallel.bucket_bytes and stage < 2:
        yield Change((f"parallel.data.bucket={_BUCKET}",), {"dp": 0.5})
    if parallel.osdp is not None:
        return
    for other, part in ((1, 0.3), (0, 0.3), (2, 0.1), (3, 0.0)):
        if other != stage and (parallel.data_degree > 1 or other < stage):
            yield Change((f"parallel.data.zero_stage={other}",), {"dp": part})
    if stage < 2 and not parallel.overlap_parameter_gather and parallel.data_degree > 1:
        needed = () if stage else ("parallel.data.zero_stage=1",)
        yield Change((*needed, "parallel.data.overlap_parameter_gather=true"), {"dp": 0.4})
    if stage >= 2 and sharding.syncs_each_microbatch:
        yield Change(("parallel.data.gradient_sync=last_microbatch",), {"dp": 0.5})
    if stage == 3 and sharding.reshards:
        yield Change(("parallel.data.reshard_after_forward=false",), {"dp": 0.3})
    if stage == 3:
        yield Change((f"parallel.data.prefetch={sharding.units_ahead + 1}",), {"dp": 0.2})


def _of_messages(parallel: ParallelSpec) -> Iterator[Change]:
    if parallel.tensor.degree > 1 and parallel.pipeline.degree > 1 and not parallel.pipeline.scatter_gather:
        yield Change(("parallel.pipeline.scatter_gather=true",), {"pp": 0.6})
    if parallel.context_degree > 1:
        for other in ("p2p", "all_gather", "ulysses"):
            if other != parallel.sequence.name:
                yield Change((f"parallel.context.method={other}",), {"cp": 0.5})
        if len(parallel.sequence.roles(causal=True)) > 1:
            yield Change(("parallel.context.layout=zigzag",), {"cp": 0.5, "dp": 0.5})


def _of_exchanges(parallel: ParallelSpec) -> Iterator[Change]:
    """Yield that experts' exchanges hide behind a pass that overlaps, where no pass gathers parameters."""
    pipeline = parallel.pipeline
    overlaps = pipeline.schedule in OVERLAPPING_SCHEDULES and not pipeline.overlap_exchanges
    if overlaps and parallel.expert_degree > 1 and parallel.zero_stage < 2:
        yield Change(("parallel.pipeline.overlap_exchanges=true",), {"ep": 0.5})
