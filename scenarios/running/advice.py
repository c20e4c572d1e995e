"""What would help a scenario most: its greatest loss, and overrides that go against it.

Only overrides that make a valid scenario are named, and only such as fit in memory, where any do. What they bring is
for the next simulation to say.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from scenarios.errors import ScenarioError
from scenarios.reading.loader import Scenario, load_scenario
from scenarios.report.causes import cause_of
from scenarios.report.words import Advice, mean_over_ranks, recompute_fraction
from scenarios.running.runner import device_of, plan_of
from sim.engine.breakdown import BUBBLE
from sim.engine.memory import memory_use
from sim.training.spec import DenseTraining, ParallelSpec, TextbookTraining

Change = tuple[str, ...]
"""Overrides, ``key=value``, that go together."""

_STEADY: Final = ("1f1b", "interleaved_1f1b")
"""Schedules whose peak memory does not grow with the number of micro-batches."""

_GAINS_BY_STAGES: Final = ("gpipe", "1f1b", "interleaved_1f1b", "breadth_first")
"""Schedules whose bubble is (p-1)/(vm) of the work: of more stages a rank it is smaller (Narayanan et al. 2021, section
2.2). Those that split the backward, or run micro-batches from both ends, may have less as they are.
"""
_EXPOSED: Final = "communication that nothing hides"
WORTH_SAYING = 0.02
"""Losses of a smaller fraction of the step are not worth a change."""


def advise(scenario: Scenario, summary: Mapping[str, Any]) -> Advice | None:
    """Return the greatest loss with the first change against it that fits in memory.

    Where no change makes a plan fit that does not, the first valid one; None where nothing is worth changing.
    """
    misfit: Advice | None = None
    for loss, fraction, candidates in _losses(scenario, summary):
        for candidate in candidates:
            changed = _changed(scenario, candidate)
            if changed is None:
                continue
            if _fits_memory(changed):
                return Advice(loss, fraction, candidate, fits_memory=True)
            if summary.get("fits_memory") is False:
                misfit = misfit or Advice(loss, fraction, candidate, fits_memory=False)
    return misfit


def _losses(scenario: Scenario, summary: Mapping[str, Any]) -> Iterator[tuple[str, float, Sequence[Change]]]:
    """Yield losses, the greatest first; a plan that does not fit comes before any other."""
    job = scenario.job
    if summary.get("fits_memory") is False and isinstance(job, DenseTraining):
        yield "memory", 1.0, _against_memory(job)
        return
    losses = [("pipeline bubble", summary["bubble_fraction"], _against_bubble(job))]
    if isinstance(job, DenseTraining):
        exposed = summary["exposed_communication_fraction"]
        losses += [
            (_communication_words(summary), exposed, _against_communication(job, summary)),
            ("recomputation", recompute_fraction(summary), _against_recompute(job)),
        ]
    for loss, fraction, changes in sorted(losses, key=lambda item: -item[1]):
        if fraction >= WORTH_SAYING:
            yield loss, fraction, changes


def _against_memory(job: DenseTraining) -> list[Change]:
    parallel, recompute = job.parallel, job.training.recompute
    changes: list[Change] = []
    shards = parallel.data_degree > 1 and parallel.osdp is None
    if shards and parallel.zero_stage == 0:
        changes.append(("parallel.data.zero_stage=1",))
    if parallel.tensor_degree > 1 and not parallel.sequence_parallel:
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
    changes.append((f"parallel.tensor.degree={2 * parallel.tensor_degree}", "parallel.data.degree=auto"))
    return changes


def _against_bubble(job: DenseTraining | TextbookTraining) -> list[Change]:
    changes: list[Change] = []
    if isinstance(job, TextbookTraining):
        pipeline, more = job.pipeline, f"training.num_microbatches={2 * job.num_microbatches}"
        finer = [pipeline.virtual_stages + 1]
    else:
        pipeline, more = job.parallel.pipeline, f"training.global_batch_size={2 * job.training.global_batch_size}"
        layers_per_rank, rest = divmod(job.model.num_layers, pipeline.degree)
        numbers = range(pipeline.virtual_stages + 1, layers_per_rank + 1)
        finer = [] if rest or pipeline.layers_per_stage else [v for v in numbers if layers_per_rank % v == 0]
    if pipeline.degree > 1 and pipeline.schedule in _GAINS_BY_STAGES and finer:
        stages = f"parallel.pipeline.virtual_stages={finer[0]}"
        changes.append(("parallel.pipeline.schedule=interleaved_1f1b", stages))
    return [*changes, (more,)]


def _against_communication(job: DenseTraining, summary: Mapping[str, Any]) -> list[Change]:
    """Return changes, those against the greatest cause first; none against what is hardly waited for."""
    parallel = job.parallel
    more = (f"training.global_batch_size={2 * job.training.global_batch_size}",)
    pipeline: list[Change] = []
    if parallel.tensor_degree > 1 and parallel.pipeline.degree > 1 and not parallel.pipeline.scatter_gather:
        pipeline.append(("parallel.pipeline.scatter_gather=true",))
    data: list[Change] = [more]
    if not parallel.overlap_gradient_sync:
        data.insert(0, ("parallel.data.overlap_gradient_sync=true",))
    tensor: list[Change] = []
    if parallel.tensor_degree % 2 == 0:
        tensor.append((f"parallel.tensor.degree={parallel.tensor_degree // 2}", "parallel.data.degree=auto"))
    by_axis = {
        "tp": tensor, "cp": _against_context(parallel), "ep": _against_experts(parallel), "pp": pipeline, "dp": data,
    }  # fmt: skip
    seconds, least_s = _exposed_by_axis(summary), WORTH_SAYING * summary["iteration_time_s"]
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


def _exposed_by_axis(summary: Mapping[str, Any]) -> Mapping[str, float]:
    """Return the seconds that the mean rank waits for the streams of each mesh axis."""
    seconds = defaultdict[str, float](float)
    for stream, waited_s in mean_over_ranks(summary, "exposed_s").items():
        seconds[stream.partition("_")[0]] += waited_s
    return seconds


def _communication_words(summary: Mapping[str, Any]) -> str:
    """Return what the loss is called, with what most of it is."""
    waited = [(waited_s, stream) for stream, waited_s in _exposed_by_axis(summary).items() if stream != BUBBLE]
    most_s, most = max(waited, default=(0.0, ""))
    return _EXPOSED + (f", most of it {cause_of(most)[0]}" if most_s > 0.0 else "")


def _against_recompute(job: DenseTraining) -> list[Change]:
    """Return less recomputation: alone, then with what makes room for the activations that it keeps."""
    if job.parallel.pipeline.recompute_per_stage:  # chosen stage by stage
        return []
    less = "training.recompute=selective" if job.training.recompute == "full" else "training.recompute=none"
    changes: list[Change] = [(less,)]
    if job.parallel.tensor_degree > 1 and not job.parallel.sequence_parallel:
        changes.append((less, "parallel.tensor.sequence_parallel=true"))
    if job.parallel.data_degree > 1 and job.parallel.zero_stage == 0:
        changes.append((less, "parallel.data.zero_stage=1"))
    if job.training.microbatch_size > 1:
        changes.append((less, f"training.microbatch_size={job.training.microbatch_size // 2}"))
    return changes


def _changed(scenario: Scenario, change: Change) -> Scenario | None:
    """Return the scenario with the change, None where that is not valid."""
    try:
        return load_scenario(scenario.source, (*scenario.overrides, *change))
    except ScenarioError:
        return None


def _fits_memory(scenario: Scenario) -> bool:
    """Return whether every role's peak fits; a textbook workload always does."""
    device = device_of(scenario)
    if device is None:
        return True
    try:
        programs = plan_of(with_few_microbatches(scenario)).programs
    except ScenarioError:  # no choice of what to shard fits
        return False
    return all(memory_use(program).peak_bytes <= device.memory_bytes for program in programs)


def with_few_microbatches(scenario: Scenario) -> Scenario:
    """Return the scenario with no more micro-batches than its peak memory needs: two per stage of a 1F1B schedule.

    No rank of such a schedule begins more forwards before its first backward (Narayanan et al. 2021, section 2.2).
    """
    job = scenario.job
    if not isinstance(job, DenseTraining) or job.parallel.pipeline.schedule not in _STEADY:
        return scenario
    most = 2 * job.parallel.pipeline.degree * job.training.microbatch_size * job.parallel.data_degree
    training = replace(job.training, global_batch_size=min(job.training.global_batch_size, most))
    return replace(scenario, job=replace(job, training=training))
