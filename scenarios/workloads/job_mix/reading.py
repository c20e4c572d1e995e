"""From the file of a job mix to its jobs, cluster and policy."""

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Final

from scenarios.errors import ScenarioError
from scenarios.reading.documents.located import located
from scenarios.reading.documents.yaml_tree import Document
from scenarios.workloads.job_mix.schema import FailuresSection, JobMixScenario, OnesSection, TiresiasSection
from scenarios.workloads.job_mix.submitted import jobs_of
from sim.jobs.outages import Failures, Outage
from sim.jobs.policies.ones.policy import Ones
from sim.jobs.policies.preemptive import LeastAttainedService, ShortestRemainingService, ShortestRemainingTime
from sim.jobs.policies.queues import FifoFitFirst, FifoStrict, ShortestJobFirst
from sim.jobs.policies.shares import ApatheticFutureSharing, Optimus
from sim.jobs.policies.sia import Sia
from sim.jobs.policies.themis import Themis
from sim.jobs.policies.tiresias import Tiresias
from sim.jobs.policy import Policy
from sim.jobs.simulator import Mix
from traces.jobs import MAX_GPUS

_POLICIES: Final[Mapping[str, Callable[[JobMixScenario], Policy]]] = {
    "fifo": lambda _: FifoStrict(),
    "fifo_fit_first": lambda _: FifoFitFirst(),
    "sjf": lambda _: ShortestJobFirst(),
    "srtf": lambda _: ShortestRemainingTime(),
    "srsf": lambda _: ShortestRemainingService(),
    "las": lambda file: LeastAttainedService(file.policies.las.quantum),
    "tiresias": lambda file: _tiresias(file.policies.tiresias),
    "themis": lambda file: Themis(file.policies.themis.lease),
    "optimus": lambda _: Optimus(),
    "afs": lambda _: ApatheticFutureSharing(),
    "sia": lambda file: Sia(file.costs.rescale),
    "ones": lambda file: _ones(file.policies.ones, file.seed),
}
_FOR_ELASTIC_JOBS: Final = ("optimus", "afs", "sia", "ones")


def mix_of(document: Document, file: JobMixScenario) -> Mix:
    """Return the jobs and the cluster of a checked file. Raises ScenarioError where they do not go together."""
    if file.cluster.num_nodes * file.cluster.devices_per_node > MAX_GPUS:
        rule = f"{file.cluster.num_nodes} nodes of {file.cluster.devices_per_node} GPUs are more than {MAX_GPUS:,} GPUs"
        origin = document.origin(("cluster", "num_nodes"))
        raise ScenarioError(origin, "cluster.num_nodes", rule, "write fewer nodes")
    with located(document):
        return Mix(
            jobs=jobs_of(document, file),
            gpus_per_node=(file.cluster.devices_per_node,) * file.cluster.num_nodes,
            start_s=file.costs.start,
            resume_s=file.costs.resume,
            rescale_s=file.costs.rescale,
            round_s=file.round,
            failures=_failures(file.failures, file.seed),
        )


def policy_of(document: Document, file: JobMixScenario, mix: Mix) -> Policy:
    """Return the policy of a checked file. Raises ScenarioError for options with which jobs would never end."""
    if file.policy in _FOR_ELASTIC_JOBS and (rigid := [job.id for job in mix.jobs if job.training is None]):
        rule = f"{file.policy} gives jobs other numbers of GPUs than they ask for, and job {rigid[0]} is rigid"
        remedy = "write elastic jobs, or another policy"
        raise ScenarioError(document.origin(("policy",)), "policy", rule, remedy)
    if file.policy == "las":
        _check_turn(document, file, "las", "quantum", file.policies.las.quantum)
    if file.policy == "themis":
        _check_turn(document, file, "themis", "lease", file.policies.themis.lease)
    if file.policy == "tiresias":
        _check_tiresias(document, file, max(job.num_gpus for job in mix.jobs))
    return _POLICIES[file.policy](file)


def _failures(section: FailuresSection, seed: int) -> Failures:
    return Failures(
        listed=[Outage(each.node, each.at, each.at + each.repair) for each in section.list],
        mtbf_s=section.mtbf_per_node,
        repair_s=section.repair,
        save_every_s=section.save_every,
        seed=seed,
    )


def _tiresias(options: TiresiasSection) -> Tiresias:
    return Tiresias(options.thresholds, options.starvation, options.past_services)


def _ones(options: OnesSection, seed: int) -> Ones:
    return Ones(seed, options.generation, options.population_size, options.refit_growth)


def _check_turn(document: Document, file: JobMixScenario, policy: str, option: str, turn_s: float) -> None:
    """Raise ScenarioError where a job may have to stop before its restart has ended."""
    resume_s, key = file.costs.resume, option
    path: tuple[str, ...] = ("policies", policy, option)
    if file.round is not None and (policy == "las" or turn_s <= resume_s):
        key, path, turn_s = "round", ("round",), file.round
    if turn_s <= resume_s:
        rule = f"a {key} of {turn_s:g} s ends before a restart of {resume_s:g} s, so no job would end"
        raise ScenarioError(document.origin(path), ".".join(path), rule, f"write a longer {key}")


def _check_tiresias(document: Document, file: JobMixScenario, most_gpus: int) -> None:
    resume_s, options = file.costs.resume, file.policies.tiresias
    path = ("policies", "tiresias", "thresholds")
    if not options.thresholds or any(after <= before for before, after in pairwise(options.thresholds)):
        rule = "the thresholds of the queues do not rise" if options.thresholds else "there is no threshold"
        remedy = "write at least one number, each above the one before"
        raise ScenarioError(document.origin(path), ".".join(path), rule, remedy)
    if options.starvation and max(options.thresholds[0] / most_gpus, file.round or 0.0) <= resume_s:
        rule = (
            f"a promoted job of {most_gpus} GPUs falls before its restart of {resume_s:g} s ends, so it might never end"
        )
        remedy = f"write a first threshold above {most_gpus * resume_s:g}"
        raise ScenarioError(document.origin(path), ".".join(path), rule, remedy)
