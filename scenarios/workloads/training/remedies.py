"""The losses of a step, with overrides of its scenario against each loss, the mildest first."""

from collections import defaultdict
from collections.abc import Mapping
from typing import Final

from scenarios.report.causes import cause_of
from scenarios.report.words import recompute_fraction
from scenarios.summaries.steps.mean_rank import mean_exposed_s
from scenarios.summaries.steps.step import StepSummary
from scenarios.workloads.steps.findings.losses import MEMORY, WORTH_SAYING, Change, Loss, against_bubble, worth_saying
from sim.engine.findings.breakdown import BUBBLE
from sim.plan.words.stream import stream_of
from sim.training.spec.job import ParallelSpec, TrainingJob

_EXPOSED: Final = "communication that nothing hides"


def losses_of(job: TrainingJob, summary: StepSummary) -> list[Loss]:
    """Return the losses of a step, the greatest first; memory alone if the plan does not fit."""
    if summary.fits_memory is False:
        return [Loss(MEMORY, 1.0, _against_memory(job))]
    exposed = summary.exposed_communication_fraction
    losses = [
        Loss("pipeline bubble", summary.bubble_fraction, _against_bubble(job)),
        Loss(_communication_words(summary), exposed, _against_communication(job, summary)),
        Loss("recomputation", recompute_fraction(summary), _against_recompute(job)),
    ]
    return worth_saying(losses)


def _against_memory(job: TrainingJob) -> list[Change]:
    parallel, recompute = job.parallel, job.training.recompute
    changes: list[Change] = []
    shards = parallel.data_degree > 1 and parallel.osdp is None
    if shards and parallel.zero_stage == 0:
        changes.append(("parallel.data.zero_stage=1",))
    if parallel.tensor.degree > 1 and not parallel.tensor.cuts_residual:
        changes.append(("parallel.tensor.sequence_parallel=true",))
    if recompute != "full" and not parallel.pipeline.recompute_per_stage:
        changes.append((f"training.recompute={'selective' if recompute == 'none' else 'full'}",))
    if job.training.microbatch_size > 1:
        changes.append((f"training.microbatch_size={job.training.microbatch_size // 2}",))
    if shards and parallel.zero_stage < 3:  # operators by need where that is built, else all parameters
        changes.append(("parallel.data.zero_stage=0", "parallel.data.osdp={}"))
        changes.append(("parallel.data.zero_stage=3",))
    if parallel.context_degree > 1:
        changes.append((f"parallel.context.degree={2 * parallel.context_degree}", "parallel.data.degree=auto"))
    changes.append((f"parallel.pipeline.degree={2 * parallel.pipeline.degree}", "parallel.data.degree=auto"))
    changes.append((f"parallel.tensor.degree={2 * parallel.tensor.degree}", "parallel.data.degree=auto"))
    return changes


def _against_bubble(job: TrainingJob) -> list[Change]:
    pipeline, more = job.parallel.pipeline, f"training.global_batch_size={2 * job.training.global_batch_size}"
    layers_per_rank, rest = divmod(job.model.num_layers, pipeline.degree)
    numbers = range(pipeline.virtual_stages + 1, layers_per_rank + 1)
    finer = [] if rest or pipeline.layers_per_stage else [v for v in numbers if layers_per_rank % v == 0]
    return against_bubble(pipeline, finer, more)


def _against_communication(job: TrainingJob, summary: StepSummary) -> list[Change]:
    """Return changes, those against the greatest cause first; none against what is hardly waited for."""
    parallel = job.parallel
    more = (f"training.global_batch_size={2 * job.training.global_batch_size}",)
    pipeline: list[Change] = []
    if parallel.tensor.degree > 1 and parallel.pipeline.degree > 1 and not parallel.pipeline.scatter_gather:
        pipeline.append(("parallel.pipeline.scatter_gather=true",))
    data: list[Change] = [more]
    if not parallel.overlap_gradient_sync:
        data.insert(0, ("parallel.data.overlap_gradient_sync=true",))
    tensor: list[Change] = []
    if parallel.tensor.degree % 2 == 0:
        tensor.append((f"parallel.tensor.degree={parallel.tensor.degree // 2}", "parallel.data.degree=auto"))
    by_axis = {
        "tp": tensor, "cp": _against_context(parallel), "ep": _against_experts(parallel), "pp": pipeline, "dp": data,
    }  # fmt: skip
    seconds, least_s = _exposed_by_axis(summary), WORTH_SAYING * summary.iteration_time_s
    waited_for = [axis for axis in by_axis if seconds[axis] >= least_s]
    return [change for axis in sorted(waited_for, key=lambda axis: -seconds[axis]) for change in by_axis[axis]]


def _against_experts(parallel: ParallelSpec) -> list[Change]:
    """Return fewer ranks that share out the experts: fewer tokens leave their rank, and those nearer by."""
    half, rest = divmod(parallel.expert_degree, 2)
    return [] if rest else [(f"parallel.expert.degree={half}",)]


def _against_context(parallel: ParallelSpec) -> list[Change]:
    """Return keys and values that go round while others are computed with, and fewer ranks that share a sequence."""
    if parallel.context_degree == 1:
        return []
    ring: list[Change] = [] if parallel.context_method == "p2p" else [("parallel.context.method=p2p",)]
    if parallel.context_degree % 2:
        return ring
    return [*ring, (f"parallel.context.degree={parallel.context_degree // 2}", "parallel.data.degree=auto")]


def _exposed_by_axis(summary: StepSummary) -> Mapping[str, float]:
    """Return the seconds that the mean rank waits for the streams of each mesh axis."""
    seconds = defaultdict[str, float](float)
    for stream, waited_s in mean_exposed_s(summary.roles).items():
        if (purpose := stream_of(stream).purpose) is not None:
            seconds[purpose] += waited_s
    return seconds


def _communication_words(summary: StepSummary) -> str:
    """Return what the loss is called, with what most of it is."""
    waited = [(waited_s, stream) for stream, waited_s in _exposed_by_axis(summary).items() if stream != BUBBLE]
    most_s, most = max(waited, default=(0.0, ""))
    return _EXPOSED + (f", most of it {cause_of(most)[0]}" if most_s > 0.0 else "")


def _against_recompute(job: TrainingJob) -> list[Change]:
    """Return less recomputation: alone, then with what makes room for the activations that it keeps."""
    if job.parallel.pipeline.recompute_per_stage:  # chosen stage by stage
        return []
    less = "training.recompute=selective" if job.training.recompute == "full" else "training.recompute=none"
    changes: list[Change] = [(less,)]
    if job.parallel.tensor.degree > 1 and not job.parallel.tensor.cuts_residual:
        changes.append((less, "parallel.tensor.sequence_parallel=true"))
    if job.parallel.data_degree > 1 and job.parallel.zero_stage == 0:
        changes.append((less, "parallel.data.zero_stage=1"))
    if job.training.microbatch_size > 1:
        changes.append((less, f"training.microbatch_size={job.training.microbatch_size // 2}"))
    return changes
