"""From the ``jobs`` of a job mix's file to its jobs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from scenarios.errors import ScenarioError
from scenarios.reading.documents.checking import dotted
from scenarios.reading.documents.named_file import named_file
from scenarios.reading.documents.yaml_tree import Document, KeyPath
from scenarios.reading.sections.section import with_values, written_keys
from scenarios.workloads.job_mix.measured import measured_jobs
from scenarios.workloads.job_mix.plan_speed import plan_speed
from scenarios.workloads.job_mix.recorded import TRAININGS, recorded_jobs, recorded_trainings
from scenarios.workloads.job_mix.schema import (
    ElasticSection,
    GpuUseSection,
    JobMixScenario,
    JobSection,
    OnesJobsSection,
    StepSection,
)
from sim.engine.step_times import StepTimes
from sim.jobs.errors import JobsError
from sim.jobs.generate import PhillyLike
from sim.jobs.job import GpuUse, Job, elastic_job
from sim.jobs.ones_mix import OnesLike
from sim.jobs.placement import fewest_nodes
from sim.jobs.speed.speed import GoodputSpeed, MeasuredSpeed, ScaledBatchSpeed, Speed
from sim.jobs.speed.step_time import StepTime
from sim.jobs.training import Training

_FORMS: Final = ("list", "trace", "draw", "ones")
_SPEEDS: Final = ("throughput", "scaled_batch", "goodput", "plan")

PAST_SEEDS: Final = 10_000
"""Difference of the seeds of past jobs and of jobs."""


def jobs_of(document: Document, file: JobMixScenario) -> Sequence[Job]:
    """Return the jobs of a file. Raises ScenarioError, or JobsError with a key, where a rule is broken."""
    if sum(getattr(file.jobs, form) is not None for form in _FORMS) != 1:
        rule, remedy = "the jobs have no form, or several", f"write one of {', '.join(_FORMS)}"
        raise ScenarioError(document.origin(("jobs",)), "jobs", rule, remedy)
    _refuse_unread(document, file)
    gpus_per_node = tuple(count for _, count in file.cluster.nodes)
    if file.jobs.list is not None:
        _refuse_equal_names(document, [job.id for job in file.jobs.list])
        times = StepTimes()
        return [_job(document, place, job, gpus_per_node, times) for place, job in enumerate(file.jobs.list)]
    if file.jobs.draw is not None:
        drawn = file.jobs.draw
        source = PhillyLike(
            num_jobs=drawn.num_jobs,
            load=drawn.load,
            median_duration_s=drawn.median_duration,
            speeds=drawn.speeds,
            network_fraction=drawn.network_fraction,
            gpu_uses=[_gpu_use(each) for each in drawn.gpu_uses],
        )
        return source.jobs(sum(gpus_per_node), file.seed)
    if file.jobs.ones is not None:
        return _ones_like(file.jobs.ones).jobs(gpus_per_node, file.seed)
    path = named_file(document, ("jobs", "trace"), file.jobs.trace or "", "write a row per job: job_id,arrival_s,...")
    if file.jobs.measured is not None:
        return measured_jobs(document, file.jobs, path, gpus_per_node)
    if file.jobs.format in TRAININGS:
        return _submitted(document, file, path, gpus_per_node)
    return recorded_jobs(document, path, file.jobs.format)


def _refuse_unread(document: Document, file: JobMixScenario) -> None:
    """Raise ScenarioError for a key that these jobs do not read."""
    jobs, written = file.jobs, written_keys(file.jobs)
    named = ", ".join(TRAININGS)
    unread = {
        "format": (jobs.trace is None, "it is that of a trace, and there is none", "jobs.trace"),
        "measured": (jobs.trace is None, "the trainings are those of a trace, and there is none", "jobs.trace"),
        "trainings": (
            jobs.format not in TRAININGS, f"only traces of {named} name what a job trains", "jobs.trace and its format"
        ),
        "batch": (jobs.measured is None, "it is that of measured trainings, and there are none", "jobs.measured"),
    }  # fmt: skip
    for key, (is_unread, rule, wanted) in unread.items():
        if is_unread and key in written:
            raise ScenarioError(document.origin(("jobs", key)), f"jobs.{key}", rule, f"leave it out, or write {wanted}")
    if file.whole_seconds and jobs.measured is None:
        rule = "epochs of measured trainings end at whole seconds, and there are none"
        remedy = "leave it out, or write jobs.measured"
        raise ScenarioError(document.origin(("whole_seconds",)), "whole_seconds", rule, remedy)


def _ones_like(section: OnesJobsSection) -> OnesLike:
    return OnesLike(
        num_jobs=section.num_jobs,
        mean_gap_s=section.mean_gap,
        fixed_batch=section.batch == "fixed",
        times=section.speed,
    )


def past_jobs_of(file: JobMixScenario) -> Sequence[Job]:
    """Return the jobs that were done before: those of a seed of its own, drawn as ``jobs.ones`` draws."""
    if not file.past_jobs:
        return ()
    gpus_per_node = tuple(count for _, count in file.cluster.nodes)
    return OnesLike(num_jobs=file.past_jobs).jobs(gpus_per_node, file.seed + PAST_SEEDS)


def _submitted(document: Document, file: JobMixScenario, path: Path, gpus_per_node: tuple[int, ...]) -> Sequence[Job]:
    """Return the jobs of a trace that names trainings."""
    times, found = StepTimes(), []
    for row in recorded_trainings(document, path, file.jobs.format):
        section = file.jobs.trainings.get(row.application)
        if section is None:
            rule = f"{path}:{row.line} trains {row.application}, which the mix does not describe"
            remedy = f"write jobs.trainings: {{{row.application}: {{samples_per_epoch: ..., num_epochs: ...}}}}"
            raise ScenarioError(document.origin(("jobs", "trainings")), "jobs.trainings", rule, remedy)
        if row.samples_per_epoch is not None:
            section = with_values(section, samples_per_epoch=row.samples_per_epoch)
        key: KeyPath = ("jobs", "trainings", row.application)
        found.append(_elastic(document, key, section, (row.job_id, row.arrival_s, row.num_gpus), gpus_per_node, times))
    return found


def _job(document: Document, place: int, job: JobSection, gpus_per_node: tuple[int, ...], times: StepTimes) -> Job:
    """Return one job that is written in the file."""
    path: KeyPath = ("jobs", "list", place)
    if (job.duration is None) == (job.elastic is None):
        which = "neither a duration nor" if job.duration is None else "a duration and"
        rule = f"job {job.id} has {which} elastic training"
        remedy = "write duration for a rigid job, elastic for another"
        raise ScenarioError(document.origin(path), f"jobs.list[{place}]", rule, remedy)
    if job.elastic is None:
        assert job.duration is not None
        found = Job(job.id, job.arrival, job.num_gpus, job.duration)
    else:
        asked = (job.id, job.arrival, job.num_gpus)
        found = _elastic(document, (*path, "elastic"), job.elastic, asked, gpus_per_node, times)
    use = _gpu_use(job.gpu_use)
    return replace(found, speeds=job.speeds, network_fraction=job.network_fraction, gpu_use=use)


def _gpu_use(section: GpuUseSection) -> GpuUse:
    return GpuUse(section.time, section.memory)


def _elastic(
    document: Document,
    key: KeyPath,
    section: ElasticSection,
    asked: tuple[str, float, int],
    gpus_per_node: tuple[int, ...],
    times: StepTimes,
) -> Job:
    """Return an elastic job; ``asked``: its name, its arrival and its GPUs."""
    if sum(getattr(section, form) is not None for form in _SPEEDS) != 1:
        rule, remedy = "the speed has no form, or several", f"write one of {', '.join(_SPEEDS)}"
        raise ScenarioError(document.origin(key), dotted(key), rule, remedy)
    try:
        if section.plan is None:
            speed = _speed(section)
        else:
            speed = plan_speed(document, (*key, "plan"), section.plan, gpus_per_node, times)
        training = _training(section, speed, sum(gpus_per_node))
        return elastic_job(*asked, training, fewest_nodes(gpus_per_node, asked[2]))
    except JobsError as error:
        raise ScenarioError(document.origin(key), dotted(key), error.rule, error.remedy) from error


def _training(section: ElasticSection, speed: Speed, num_gpus: int) -> Training:
    return Training(
        samples_per_epoch=section.samples_per_epoch,
        num_epochs=section.num_epochs,
        speed=speed,
        most_gpus=min(section.most_gpus or num_gpus, num_gpus, speed.most_gpus),
    )


def _speed(section: ElasticSection) -> Speed:
    if section.throughput is not None:
        counts = [row.num_gpus for row in section.throughput]
        if twice := [count for count in counts if counts.count(count) > 1]:
            rule, remedy = f"throughput has two speeds on {twice[0]} GPUs", "write one for each number of GPUs"
            raise JobsError("jobs", rule, remedy)
        return MeasuredSpeed({row.num_gpus: row.samples_per_s for row in section.throughput})
    if section.scaled_batch is not None:
        scaled = section.scaled_batch
        return ScaledBatchSpeed(
            step=_step(scaled.step),
            local_batch=scaled.local_batch_size,
            learning_rate=scaled.learning_rate,
            most_learning_rate=scaled.most_learning_rate,
        )
    assert section.goodput is not None
    found = section.goodput
    return GoodputSpeed(
        step=_step(found.step),
        batch_size=found.batch_size,
        noise_scale=found.noise_scale,
        most_batch=found.most_batch_size,
        most_local_batch=found.most_local_batch_size,
    )


def _step(section: StepSection) -> StepTime:
    return StepTime(
        compute_s=section.compute,
        compute_per_sample_s=section.compute_per_sample,
        node_sync_s=section.node_sync,
        node_sync_per_gpu_s=section.node_sync_per_gpu,
        network_sync_s=section.network_sync,
        network_sync_per_gpu_s=section.network_sync_per_gpu,
        overlap=section.overlap,
    )


def _refuse_equal_names(document: Document, names: Sequence[str]) -> None:
    seen = set[str]()
    for place, name in enumerate(names):
        if name in seen:
            key = ("jobs", "list", place, "id")
            rule = f"two jobs are called {name}"
            raise ScenarioError(document.origin(key), f"jobs.list[{place}].id", rule, "write a name of its own")
        seen.add(name)
