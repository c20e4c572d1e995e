"""From the file of a job mix to its jobs, cluster and policy."""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Final

from scenarios.errors import ScenarioError
from scenarios.reading.documents.located import located
from scenarios.reading.documents.named_file import named_file
from scenarios.reading.documents.yaml_tree import Document
from scenarios.workloads.job_mix.schema import JobMixScenario
from sim.jobs.generate import PhillyLike
from sim.jobs.job import Job
from sim.jobs.policies.preemptive import LeastAttainedService, ShortestRemainingService, ShortestRemainingTime
from sim.jobs.policies.queues import FifoFitFirst, FifoStrict, ShortestJobFirst
from sim.jobs.policies.tiresias import Tiresias
from sim.jobs.policy import Policy
from sim.jobs.simulator import Mix
from traces.errors import TraceError
from traces.jobs import MAX_GPUS, read_jobs

_POLICIES: Final[Mapping[str, Callable[[JobMixScenario], Policy]]] = {
    "fifo": lambda _: FifoStrict(),
    "fifo_fit_first": lambda _: FifoFitFirst(),
    "sjf": lambda _: ShortestJobFirst(),
    "srtf": lambda _: ShortestRemainingTime(),
    "srsf": lambda _: ShortestRemainingService(),
    "las": lambda file: LeastAttainedService(file.quantum),
    "tiresias": lambda file: Tiresias(file.thresholds, file.starvation, file.past_services),
}


def mix_of(document: Document, file: JobMixScenario) -> Mix:
    """Return the jobs and the cluster of a checked file. Raises ScenarioError where they do not go together."""
    if file.cluster.num_nodes * file.cluster.devices_per_node > MAX_GPUS:
        rule = f"{file.cluster.num_nodes} nodes of {file.cluster.devices_per_node} GPUs are more than {MAX_GPUS:,} GPUs"
        origin = document.origin(("cluster", "num_nodes"))
        raise ScenarioError(origin, "cluster.num_nodes", rule, "write fewer nodes")
    with located(document):
        return Mix(
            jobs=_jobs(document, file),
            gpus_per_node=(file.cluster.devices_per_node,) * file.cluster.num_nodes,
            start_s=file.costs.start,
            resume_s=file.costs.resume,
            round_s=file.round,
        )


def policy_of(document: Document, file: JobMixScenario, mix: Mix) -> Policy:
    """Return the policy of a checked file. Raises ScenarioError for options with which jobs would never end."""
    resume_s, key = file.costs.resume, "quantum" if file.round is None else "round"
    turn_s = file.quantum if file.round is None else file.round
    if file.policy == "las" and turn_s <= resume_s:
        rule = f"a {key} of {turn_s:g} s ends before a restart of {resume_s:g} s, so no job would end"
        raise ScenarioError(document.origin((key,)), key, rule, f"write a longer {key}")
    if not file.thresholds or any(after <= before for before, after in pairwise(file.thresholds)):
        rule = "the thresholds of the queues do not rise" if file.thresholds else "there is no threshold"
        remedy = "write at least one number, each above the one before"
        raise ScenarioError(document.origin(("thresholds",)), "thresholds", rule, remedy)
    most = max(job.num_gpus for job in mix.jobs)
    if file.policy == "tiresias" and file.starvation and max(file.thresholds[0] / most, file.round or 0.0) <= resume_s:
        rule = f"a promoted job of {most} GPUs falls before its restart of {resume_s:g} s ends, so it might never end"
        remedy = f"write a first threshold above {most * resume_s:g}"
        raise ScenarioError(document.origin(("thresholds",)), "thresholds", rule, remedy)
    return _POLICIES[file.policy](file)


def _jobs(document: Document, file: JobMixScenario) -> Sequence[Job]:
    forms = {"list": file.jobs.list, "trace": file.jobs.trace, "draw": file.jobs.draw}
    if sum(form is not None for form in forms.values()) != 1:
        rule, remedy = "the jobs have no form, or several", f"write one of {', '.join(forms)}"
        raise ScenarioError(document.origin(("jobs",)), "jobs", rule, remedy)
    if file.jobs.list is not None:
        _refuse_equal_names(document, [job.id for job in file.jobs.list])
        return [Job(job.id, job.arrival, job.num_gpus, job.duration) for job in file.jobs.list]
    if file.jobs.draw is not None:
        drawn = file.jobs.draw
        source = PhillyLike(num_jobs=drawn.num_jobs, load=drawn.load, median_duration_s=drawn.median_duration)
        return source.jobs(file.cluster.num_nodes * file.cluster.devices_per_node, file.seed)
    assert file.jobs.trace is not None
    path = named_file(document, ("jobs", "trace"), file.jobs.trace, "write a row per job: job_id,arrival_s,...")
    try:
        recorded = read_jobs(path)
    except TraceError as error:
        origin = document.origin(("jobs", "trace"))
        raise ScenarioError(origin, "jobs.trace", error.problem, error.remedy) from error
    return [Job(job.job_id, job.arrival_s, job.num_gpus, job.duration_s) for job in recorded]


def _refuse_equal_names(document: Document, names: Sequence[str]) -> None:
    seen = set[str]()
    for place, name in enumerate(names):
        if name in seen:
            key = ("jobs", "list", place, "id")
            rule = f"two jobs are called {name}"
            raise ScenarioError(document.origin(key), f"jobs.list[{place}].id", rule, "write a name of its own")
        seen.add(name)
