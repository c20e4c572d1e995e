"""From the file of a job mix to its jobs, cluster and policy."""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Final

from scenarios.errors import ScenarioError
from scenarios.reading.documents.located import located
from scenarios.reading.documents.yaml_tree import Document
from scenarios.workloads.job_mix.learned_weights import shipped_weights
from scenarios.workloads.job_mix.schema import (
    FailuresSection,
    JobMixScenario,
    OnesSection,
    PolluxSection,
    TiresiasSection,
)
from scenarios.workloads.job_mix.submitted import jobs_of, past_jobs_of
from sim.jobs.outages import Failures, Outage
from sim.jobs.policies.gandiva import Gandiva
from sim.jobs.policies.gavel import Gavel
from sim.jobs.policies.learned import Learned
from sim.jobs.policies.observed import Observed
from sim.jobs.policies.ones.policy import Ones
from sim.jobs.policies.pollux.policy import Pollux
from sim.jobs.policies.predicted import Predicted
from sim.jobs.policies.preemptive import LeastAttainedService, ShortestRemainingService, ShortestRemainingTime
from sim.jobs.policies.queues import FifoFitFirst, FifoStrict, ShortestJobFirst
from sim.jobs.policies.shares import ApatheticFutureSharing, Optimus
from sim.jobs.policies.sia import Sia
from sim.jobs.policies.themis import Themis
from sim.jobs.policies.tiresias import Tiresias
from sim.jobs.policy import Policy
from sim.jobs.simulator import Mix
from traces.jobs import MAX_GPUS

POLICIES: Final[Mapping[str, Callable[[JobMixScenario], Policy]]] = {
    "fifo": lambda _: FifoStrict(),
    "fifo_fit_first": lambda _: FifoFitFirst(),
    "sjf": lambda _: ShortestJobFirst(),
    "srtf": lambda _: ShortestRemainingTime(),
    "srsf": lambda _: ShortestRemainingService(),
    "las": lambda file: LeastAttainedService(file.policies.las.quantum),
    "tiresias": lambda file: _tiresias(file.policies.tiresias),
    "gavel": lambda file: Gavel(file.policies.gavel.round),
    "gandiva": lambda file: Gandiva(file.policies.gandiva.slice, file.policies.gandiva.pack),
    "themis": lambda file: Themis(file.policies.themis.lease),
    "optimus": lambda file: Optimus(file.policies.optimus.first == "earliest"),
    "afs": lambda _: ApatheticFutureSharing(),
    "sia": lambda file: Sia(file.costs.rescale),
    "pollux": lambda file: _pollux(file.policies.pollux, file),
    "ones": lambda file: _ones(file.policies.ones, file),
    "learned": lambda file: Learned(shipped_weights(observed=file.speeds == "observed")),
}
"""How the policy of a file is made, by its name."""
_WITH_DURATIONS: Final = ("sjf", "srtf", "srsf", "themis", "optimus", "afs")
_WITH_SPEEDS: Final = (*_WITH_DURATIONS, "sia", "learned")
_TURNS: Final = {"las": "quantum", "themis": "lease", "gavel": "round", "gandiva": "slice", "pollux": "round"}
"""Options by which policies let jobs take turns."""
_SPACING: Final = {**_TURNS, "ones": "generation"}
"""Options by which policies decide again and again, whatever happens."""
MOST_DECISIONS: Final = 1_000_000
"""Decisions that a simulation is sure to need, at most: more take hours."""
ASSUME_RESCALE: Final = ("sia", "pollux")
"""Policies that are told what a rescale costs."""
_FOR_ELASTIC_JOBS: Final = ("optimus", "afs", "sia", "pollux", "ones", "learned")


def mix_of(document: Document, file: JobMixScenario) -> Mix:
    """Return the jobs and the cluster of a checked file. Raises ScenarioError where they do not go together."""
    _check_cluster(document, file)
    if file.whole_seconds and (file.round is None or not file.round.is_integer()):
        rule, remedy = "epochs end at whole seconds, and rounds do not", "write a round of whole seconds"
        raise ScenarioError(document.origin(("whole_seconds",)), "whole_seconds", rule, remedy)
    with located(document):
        return Mix(
            jobs=jobs_of(document, file),
            gpus_per_node=tuple(count for _, count in file.cluster.nodes),
            node_types=tuple(name for name, _ in file.cluster.nodes) if file.cluster.types else (),
            start_s=file.costs.start,
            resume_s=file.costs.resume,
            rescale_s=file.costs.rescale,
            round_s=file.round,
            shared_network=file.cluster.shared_network,
            interference=file.cluster.interference,
            packing_loss=file.cluster.packing_loss,
            scatter=file.cluster.placement == "most_free",
            whole_seconds=file.whole_seconds,
            failures=_failures(file.failures, file.seed),
        )


def _check_cluster(document: Document, file: JobMixScenario) -> None:
    """Raise ScenarioError for a cluster without one form, with two types of a name, or with too many GPUs."""
    section = file.cluster
    if section.interference and section.shared_network:
        rule, remedy = "a shared network already slows jobs down that meet", "write one of the two"
        raise ScenarioError(document.origin(("cluster", "interference")), "cluster.interference", rule, remedy)
    plain = (section.num_nodes, section.devices_per_node)
    if any(plain) if section.types else not all(plain):
        rule = "the nodes have no form, or two"
        remedy = "write num_nodes and devices_per_node, or types"
        raise ScenarioError(document.origin(("cluster",)), "cluster", rule, remedy)
    names = [each.name for each in section.types]
    if len(set(names)) < len(names):
        origin = document.origin(("cluster", "types"))
        raise ScenarioError(origin, "cluster.types", "two types have one name", "write a name for each type")
    num_gpus = sum(each.num_nodes * each.devices_per_node for each in section.types)
    if (num_gpus or (section.num_nodes or 0) * (section.devices_per_node or 0)) > MAX_GPUS:
        rule, key = f"the nodes have more than {MAX_GPUS:,} GPUs", "types" if section.types else "num_nodes"
        raise ScenarioError(document.origin(("cluster", key)), f"cluster.{key}", rule, "write fewer nodes")


def policy_of(document: Document, file: JobMixScenario, mix: Mix) -> Policy:
    """Return the policy of a checked file. Raises ScenarioError for options with which jobs would never end."""
    rigid = [job.id for job in mix.jobs if job.training is None]
    if file.durations == "predicted":
        _check_predicted(document, file, rigid)
    if file.speeds == "observed":
        _check_observed(document, file, rigid)
    if file.jobs.measured is not None and (file.policy == "ones" or file.durations == "predicted"):
        rule = "ONES predicts the epochs that are left from losses, which measured trainings lack"
        raise ScenarioError(document.origin(("jobs", "measured")), "jobs.measured", rule, "choose another policy")
    if file.past_jobs:
        _check_past_jobs(document, file)
    if file.policy in _FOR_ELASTIC_JOBS and rigid:
        rule = f"{file.policy} gives jobs other numbers of GPUs than they ask for, and job {rigid[0]} is rigid"
        remedy = "write elastic jobs, or another policy"
        raise ScenarioError(document.origin(("policy",)), "policy", rule, remedy)
    if file.policy in _TURNS:
        _check_turn(document, file, file.policy, _TURNS[file.policy])
    _check_decisions(document, file, mix)
    if file.policy == "gavel":
        _check_gavel(document, file, mix)
    if file.policy == "learned":
        _check_learned(document, file)
    if file.policy == "tiresias":
        _check_tiresias(document, file, max(job.num_gpus for job in mix.jobs))
    policy = POLICIES[file.policy](file)
    if file.speeds == "observed":
        policy = Observed(policy)
    return Predicted(policy, file.seed, past_jobs_of(file)) if file.durations == "predicted" else policy


def _failures(section: FailuresSection, seed: int) -> Failures:
    return Failures(
        listed=[Outage(each.node, each.at, each.at + each.repair) for each in section.list],
        mtbf_s=section.mtbf_per_node,
        repair_s=section.repair,
        save_every_s=section.save_every,
        seed=seed,
    )


def _tiresias(options: TiresiasSection) -> Tiresias:
    return Tiresias(options.thresholds, options.starvation, options.past_services, options.order == "fall")


def _ones(options: OnesSection, file: JobMixScenario) -> Ones:
    return Ones(
        file.seed,
        options.generation,
        options.population_size,
        options.refit_growth,
        past_jobs_of(file),
        options.progress == "drawn",
        options.growth == "every_two_epochs",
    )


def _pollux(options: PolluxSection, file: JobMixScenario) -> Pollux:
    return Pollux(
        seed=file.seed,
        round_s=options.round,
        population_size=options.population_size,
        generations=options.generations,
        penalty_s=file.costs.rescale,
        avoids=options.avoid_interference,
    )


def _check_turn(document: Document, file: JobMixScenario, policy: str, option: str) -> None:
    """Raise ScenarioError where a job may have to stop before its restart has ended."""
    turn_s: float = getattr(getattr(file.policies, policy), option)
    resume_s, key = file.costs.resume, option
    path: tuple[str, ...] = ("policies", policy, option)
    if file.round is not None and (policy == "las" or turn_s <= resume_s):
        key, path, turn_s = "round", ("round",), file.round
    if turn_s <= resume_s:
        rule = f"a {key} of {turn_s:g} s ends before a restart of {resume_s:g} s, so no job would end"
        raise ScenarioError(document.origin(path), ".".join(path), rule, f"write a longer {key}")


def _check_decisions(document: Document, file: JobMixScenario, mix: Mix) -> None:
    """Raise ScenarioError where decisions fall so often that the simulation would hardly end."""
    path: tuple[str, ...] = ("round",)
    spacing_s = file.round
    if spacing_s is None and file.policy in _SPACING:
        path = ("policies", file.policy, _SPACING[file.policy])
        spacing_s = getattr(getattr(file.policies, file.policy), path[-1])
    work_gpu_s = sum(job.num_gpus * job.duration_s for job in mix.jobs)
    span_s = max(work_gpu_s / sum(mix.gpus_per_node), *(job.arrival_s for job in mix.jobs))
    if spacing_s is not None and span_s > MOST_DECISIONS * spacing_s:
        rule = (
            f"jobs for {span_s:.3g} s and a decision every {spacing_s:.3g} s make {span_s / spacing_s:.1e} decisions, "
            f"and at most {MOST_DECISIONS:,} are simulated"
        )
        remedy = f"write more than {span_s / MOST_DECISIONS:.3g} s"
        raise ScenarioError(document.origin(path), ".".join(path), rule, remedy)


def _check_predicted(document: Document, file: JobMixScenario, rigid: Sequence[str]) -> None:
    """Raise ScenarioError for a policy that asks for no duration, and for jobs without epochs."""
    if file.policy not in _WITH_DURATIONS:
        rule, remedy = f"{file.policy} asks for no duration", f"leave it out; {', '.join(_WITH_DURATIONS)} ask"
        raise ScenarioError(document.origin(("durations",)), "durations", rule, remedy)
    if rigid:
        rule = f"durations are predicted from epochs, and job {rigid[0]} is rigid"
        raise ScenarioError(document.origin(("durations",)), "durations", rule, "write elastic jobs")


def _check_observed(document: Document, file: JobMixScenario, rigid: Sequence[str]) -> None:
    """Raise ScenarioError for a policy that asks for no speed, and for jobs that have none."""
    origin = document.origin(("speeds",))
    if file.policy not in _WITH_SPEEDS:
        rule, remedy = f"{file.policy} is given no speed", f"leave it out; {', '.join(_WITH_SPEEDS)} are"
        raise ScenarioError(origin, "speeds", rule, remedy)
    if rigid:
        raise ScenarioError(origin, "speeds", f"job {rigid[0]} is rigid, and has one speed", "write elastic jobs")
    if file.jobs.measured is not None:
        rule, remedy = "measured trainings say what they observe by jobs.batch", "leave it out, or write batch: chosen"
        raise ScenarioError(origin, "speeds", rule, remedy)


def _check_past_jobs(document: Document, file: JobMixScenario) -> None:
    """Raise ScenarioError where past jobs cannot be drawn, or nothing learns from them."""
    origin = document.origin(("past_jobs",))
    if file.jobs.ones is None:
        raise ScenarioError(origin, "past_jobs", "past jobs are drawn as jobs.ones draws them", "write jobs.ones")
    if file.policy != "ones" and file.durations != "predicted":
        rule, remedy = f"nothing learns from them under {file.policy}", "write policy: ones, or durations: predicted"
        raise ScenarioError(origin, "past_jobs", rule, remedy)


def _check_learned(document: Document, file: JobMixScenario) -> None:
    """Raise ScenarioError for rounds so short that a job may change its GPUs before it makes progress."""
    costs_s = max(file.costs.start, file.costs.resume, file.costs.rescale)
    if file.round is not None and file.round <= costs_s:
        rule = f"a round of {file.round:g} s ends before a change of {costs_s:g} s, so no job might end"
        raise ScenarioError(document.origin(("round",)), "round", rule, "write a longer round")


def _check_gavel(document: Document, file: JobMixScenario, mix: Mix) -> None:
    """Raise ScenarioError for a job that is larger than every type."""
    counts: dict[str, int] = {}
    for name, count in file.cluster.nodes:
        counts[name] = counts.get(name, 0) + count
    most = max(counts.values())
    if large := [job for job in mix.jobs if job.num_gpus > most]:
        rule = f"job {large[0].id} needs {large[0].num_gpus} GPUs of one type, where the largest has {most}"
        raise ScenarioError(document.origin(("cluster", "types")), "cluster.types", rule, "add nodes to a type")


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
