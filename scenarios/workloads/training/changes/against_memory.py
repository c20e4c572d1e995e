"""Changes of a training step that take less memory: alone, and one on top of the other."""

from collections.abc import Iterator, Mapping
from typing import Any

from scenarios.workloads.steps.findings.changes import Change, Overrides
from scenarios.workloads.training.changes.degrees import resized
from scenarios.workloads.training.changes.recomputation import recomputing
from sim.training.spec.job import ParallelSpec, TrainingJob


def remedies_of(job: TrainingJob, written: Mapping[str, Any]) -> list[Change]:
    """Return changes that take less memory, the mildest first; ``written``: the section ``parallel`` of the file."""
    return [Change(overrides) for overrides in (*_mild(job), *_sharded(job.parallel), *_wider(job.parallel, written))]


def ladder_of(job: TrainingJob, written: Mapping[str, Any]) -> list[Overrides]:
    """Return changes to put on top of each other until a step fits: those that cost little time come first."""
    parallel = job.parallel
    steps = [*_mild(job)]
    if parallel.data_degree > 1 and parallel.osdp is None and parallel.zero_stage < 3:
        steps.append(("parallel.data.zero_stage=3",))
    sequence = ("parallel.tensor.sequence_parallel=true",)
    for overrides in resized(parallel, written, tensor=2 * parallel.tensor.degree):
        steps.append((*overrides, *sequence))
    for times in (2, 4, 8):
        steps += resized(parallel, written, pipeline=times * parallel.pipeline.degree)
    return steps


def _mild(job: TrainingJob) -> Iterator[Overrides]:
    """Yield what changes no degree: a sharded optimizer state, a split sequence, recomputation, fewer sequences."""
    parallel, training = job.parallel, job.training
    if parallel.data_degree > 1 and parallel.osdp is None and parallel.zero_stage == 0:
        yield ("parallel.data.zero_stage=1",)
    if parallel.tensor.degree > 1 and not parallel.tensor.cuts_residual:
        yield ("parallel.tensor.sequence_parallel=true",)
    if training.recompute == "none" and not parallel.pipeline.recompute_per_stage:
        yield ("training.recompute=selective",)
    if training.microbatch_size > 3:
        yield (f"training.microbatch_size={training.microbatch_size // 2}",)
    if training.microbatch_size > 1:
        yield ("training.microbatch_size=1",)
    if more := recomputing(job, "full"):
        yield more


def _sharded(parallel: ParallelSpec) -> Iterator[Overrides]:
    """Yield more sharding over replicas: operators by need, gradients, parameters, and the optimizer on the host."""
    if parallel.data_degree == 1 or parallel.osdp is not None:
        return
    stage = parallel.zero_stage
    if stage < 3:
        yield ("parallel.data.zero_stage=0", "parallel.data.osdp={}")
    if stage < 2:
        yield ("parallel.data.zero_stage=2",)
    if parallel.sharding.offload is None:
        yield ("parallel.data.zero_stage=2", "parallel.data.offload=optimizer")
    if stage < 3:
        yield ("parallel.data.zero_stage=3",)


def _wider(parallel: ParallelSpec, written: Mapping[str, Any]) -> Iterator[Overrides]:
    """Yield twice of each degree, at the cost of data parallelism."""
    yield from resized(parallel, written, context=2 * parallel.context_degree)
    yield from resized(parallel, written, pipeline=2 * parallel.pipeline.degree)
    yield from resized(parallel, written, tensor=2 * parallel.tensor.degree)
