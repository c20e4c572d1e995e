"""A job mix on processes of this machine, beside the simulation of the same jobs with the speeds measured there."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import fmean, geometric_mean, harmonic_mean
from typing import Final

from msgspec.structs import replace

from backends.execution.jobs import JobsRequest, LiveTraining, MeasuredJobs, Perceptron
from backends.registry import load_torch_backend
from scenarios.errors import ScenarioError
from scenarios.reading.documents.checking import check_document
from scenarios.reading.documents.located import located
from scenarios.reading.sections.section import keys_of
from scenarios.workloads.executing import ExecutionOptions, refuse_options, silence_s
from scenarios.workloads.job_mix.executed import ExecutedMix, summary_of, typical
from scenarios.workloads.job_mix.reading import ASSUME_RESCALE
from scenarios.workloads.job_mix.scenario import MixScenario
from scenarios.workloads.job_mix.schema import JobMixScenario, JobSection, SharedClusterSection
from sim.jobs.job import Job, elastic_job
from sim.jobs.placement import fewest_nodes
from sim.jobs.simulator import Mix, simulate_jobs
from sim.jobs.speed.speed import MeasuredSpeed, ScaledBatchSpeed

MOST_SLOTS: Final = 64
"""Processes of one machine."""
SPAN_S: Final = 1.0
"""Duration of the measurement of each speed, before the jobs run and after."""


def execute(scenario: MixScenario, options: ExecutionOptions) -> ExecutedMix:
    """Return what came of the jobs. Raises ScenarioError if they cannot be run here."""
    refuse_options(options, "job mixes", but=("check", "timeout", "repeats"))
    file, slots = check_document(scenario.document, JobMixScenario), scenario.mix.gpus_per_node
    _refuse_what_is_simulated_alone(scenario, file)
    trainings = _trainings(scenario, file)
    torch = load_torch_backend()
    timeout_s = silence_s(options)
    measure = partial(
        torch.measure_jobs, trainings, sum(slots), span_s=SPAN_S, check=options.check, timeout_s=timeout_s
    )
    before = measure()
    with located(scenario.document):
        request = JobsRequest(
            jobs=measured_mix(scenario.mix, before).jobs,
            trainings=trainings,
            slots_per_node=slots,
            policy=scenario.policy,
            check=options.check,
            timeout_s=timeout_s,
        )
        runs = [torch.run_jobs(request) for _ in range(options.repeats)]
        after = measure()
        measured = between(before, after)
        simulated = simulate_jobs(measured_mix(scenario.mix, measured), scenario.policy)
    drift = drift_of(before, after)
    return ExecutedMix(summary_of(scenario, measured, drift, runs, simulated), typical(runs).record, simulated)


def _refuse_what_is_simulated_alone(scenario: MixScenario, file: JobMixScenario) -> None:
    """Raise ScenarioError for a cluster, costs, rounds or failures that no processes of this machine can have."""
    num_slots = sum(scenario.mix.gpus_per_node)
    if file.cluster.types:
        rule = "an execution has processes of one type"
        raise ScenarioError(scenario.document.origin(("cluster", "types")), "cluster.types", rule, "write num_nodes")
    if num_slots > MOST_SLOTS:
        rule = f"{num_slots} GPUs are as many processes of this machine, and at most {MOST_SLOTS} are started"
        origin = scenario.document.origin(("cluster", "num_nodes"))
        raise ScenarioError(origin, "cluster.num_nodes", rule, "write fewer nodes")
    if any(job.gpu_use.memory < 1.0 for job in scenario.mix.jobs):
        rule, remedy = "each process trains one job, and two share none", "leave gpu_use out"
        raise ScenarioError(scenario.document.origin(("jobs",)), "jobs.list", rule, remedy)
    for key in ("placement", "shared_network", "interference"):
        if getattr(file.cluster, key) != keys_of(SharedClusterSection)[key].default:
            rule = "processes of this machine are placed on few nodes, and meet as they do"
            raise ScenarioError(scenario.document.origin(("cluster", key)), f"cluster.{key}", rule, "leave it out")
    for key in ("start", "resume", "rescale"):
        if getattr(file.costs, key) and (key != "rescale" or file.policy not in ASSUME_RESCALE):
            rule = "an execution measures what a change takes"
            raise ScenarioError(scenario.document.origin(("costs", key)), f"costs.{key}", rule, "leave it out")
    if file.round is not None:
        rule = "an execution decides at every event"
        raise ScenarioError(scenario.document.origin(("round",)), "round", rule, "leave it out")
    if file.failures.list or file.failures.mtbf_per_node is not None:
        rule = "an execution has the failures that happen, and draws none"
        raise ScenarioError(scenario.document.origin(("failures",)), "failures", rule, "leave it out")


def between(before: MeasuredJobs, after: MeasuredJobs) -> MeasuredJobs:
    """Return the means of two measurements, of the times of a sample and of the changes."""
    return MeasuredJobs(
        samples_per_s=[
            _means(*pair, harmonic_mean) for pair in zip(before.samples_per_s, after.samples_per_s, strict=True)
        ],
        machine_shares=[_means(*pair, fmean) for pair in zip(before.machine_shares, after.machine_shares, strict=True)],
        prepare_s=fmean((before.prepare_s, after.prepare_s)),
        start_s=fmean((before.start_s, after.start_s)),
        resume_s=fmean((before.resume_s, after.resume_s)),
        rescale_s=fmean((before.rescale_s, after.rescale_s)),
    )


def drift_of(before: MeasuredJobs, after: MeasuredJobs) -> float:
    """Return the time of a sample after the run over that before it, in the geometric mean of all speeds."""
    pairs = zip(before.samples_per_s, after.samples_per_s, strict=True)
    return geometric_mean(one[count] / other[count] for one, other in pairs for count in one)


def _means(
    before: Mapping[int, float], after: Mapping[int, float], mean: Callable[[Sequence[float]], float]
) -> Mapping[int, float]:
    return {count: mean((before[count], after[count])) for count in before}


def measured_mix(mix: Mix, measured: MeasuredJobs) -> Mix:
    """Return a mix with the measured speeds and costs in place of those of its file."""
    rows = zip(mix.jobs, measured.samples_per_s, measured.machine_shares, strict=True)
    return replace(
        mix,
        jobs=[_with_speed(mix, job, MeasuredSpeed(table), shares) for job, table, shares in rows],
        prepare_s=measured.prepare_s,
        start_s=measured.start_s,
        resume_s=measured.resume_s,
        rescale_s=measured.rescale_s,
    )


def _with_speed(mix: Mix, job: Job, speed: MeasuredSpeed, machine_shares: Mapping[int, float]) -> Job:
    assert job.training is not None
    most_gpus = min(job.training.most_gpus, speed.most_gpus)
    training = replace(job.training, speed=speed, most_gpus=most_gpus, machine_shares=machine_shares)
    return elastic_job(job.id, job.arrival_s, job.num_gpus, training, fewest_nodes(mix.gpus_per_node, job.num_gpus))


def _trainings(scenario: MixScenario, file: JobMixScenario) -> list[LiveTraining]:
    """Return what each job trains. Raises ScenarioError for a job without batches, or with parts of samples."""
    rows = file.jobs.list or ()
    if not rows:
        rule, remedy = "an execution needs jobs that are written one by one", "write jobs.list"
        raise ScenarioError(scenario.document.origin(("jobs",)), "jobs", rule, remedy)
    pairs = zip(rows, scenario.mix.jobs, strict=True)
    return [_training(scenario, place, row, job) for place, (row, job) in enumerate(pairs)]


def _training(scenario: MixScenario, place: int, row: JobSection, job: Job) -> LiveTraining:
    path = ("jobs", "list", place, "elastic")
    speed = job.training.speed if job.training is not None else None
    if row.elastic is None or not isinstance(speed, ScaledBatchSpeed):
        rule, remedy = f"job {job.id} states no batch that could be trained", "write elastic.scaled_batch"
        raise ScenarioError(scenario.document.origin(path[:3]), f"jobs.list[{place}]", rule, remedy)
    if not row.elastic.samples_per_epoch.is_integer() or not row.elastic.num_epochs.is_integer():
        rule, remedy = f"job {job.id} has parts of samples or epochs", "write whole numbers"
        raise ScenarioError(scenario.document.origin(path), f"jobs.list[{place}].elastic", rule, remedy)
    return LiveTraining(
        network=Perceptron(
            num_features=row.elastic.perceptron.num_features,
            hidden_size=row.elastic.perceptron.hidden_size,
            num_classes=row.elastic.perceptron.num_classes,
        ),
        samples_per_epoch=int(row.elastic.samples_per_epoch),
        num_epochs=int(row.elastic.num_epochs),
        batches=speed,
        seed=scenario.seed + place,
    )
