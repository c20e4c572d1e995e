"""Keys of a job mix that would change nothing, as its jobs, its cluster or its policy are: written, they are refused.

A switch that is written false counts as one that is swept: what it would switch on may stand beside it.
"""

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Final, NoReturn

from scenarios.errors import ScenarioError, suggestion
from scenarios.reading.documents.checking import dotted
from scenarios.reading.documents.yaml_tree import Document, KeyPath
from scenarios.reading.sections.section import written_keys
from scenarios.workloads.job_mix.schema import GpuUseSection, JobMixScenario
from sim.jobs.job import Job
from sim.jobs.simulator import Mix

_OWN_SPACING: Final[Mapping[str, str]] = {"las": "quantum", "ones": "generation"}
"""Options whose only use is the time between decisions, which a round sets."""


def refuse_idle(document: Document, file: JobMixScenario, mix: Mix) -> None:
    """Raise ScenarioError for the first key that is written and would change nothing."""
    _check_types(document, file)
    _check_network(document, file, mix)
    _check_shared_gpus(document, file, mix)
    _check_failures(document, file, mix)
    option = _OWN_SPACING.get(file.policy)
    if file.round is not None and option is not None:
        section = getattr(file.policies, file.policy)
        if option in written_keys(section):
            rule = f"with a round, {file.policy} decides when one begins"
            _refuse(document, ("policies", file.policy, option), rule, "leave one of the two out")


def _check_types(document: Document, file: JobMixScenario) -> None:
    """Refuse speeds on types of GPU that the cluster lacks."""
    types = [each.name for each in file.cluster.types]
    for path, names in _speeds(file):
        for name in names:
            if name not in types:
                remedy = suggestion(name, types) if types else "write cluster.types, or leave it out"
                _refuse(document, path, f"the cluster has no type of GPU {name}", remedy)


def _speeds(file: JobMixScenario) -> Iterator[tuple[KeyPath, list[str]]]:
    """Yield the key of each table of speeds, and the types that it names."""
    for place, job in enumerate(file.jobs.list or ()):
        yield ("jobs", "list", place, "speeds"), [*job.speeds]
    for place, row in enumerate(file.jobs.draw.speeds if file.jobs.draw is not None else ()):
        yield ("jobs", "draw", "speeds", place), [*row]


def _check_network(document: Document, file: JobMixScenario, mix: Mix) -> None:
    """Refuse a shared network that no job uses, and uses of a network that is not shared or that a step states."""
    cluster = file.cluster
    if cluster.shared_network and not any(job.network_fraction or _syncs(job) for job in mix.jobs):
        remedy = "write network_fraction of jobs on several nodes, or leave it out"
        _refuse(document, ("cluster", "shared_network"), "no job keeps the network busy", remedy)
    for path, job in _network_fractions(file, mix):
        if "shared_network" not in written_keys(cluster):
            _refuse(
                document, path, "jobs do not share the network", "write cluster.shared_network: true, or leave it out"
            )
        if job is not None and _syncs(job):
            _refuse(document, path, "the step of elastic says how long the network is busy", "leave it out")


def _network_fractions(file: JobMixScenario, mix: Mix) -> Iterator[tuple[KeyPath, Job | None]]:
    """Yield the key of each network fraction that is written, and its job where it is one's own."""
    for place, (row, job) in enumerate(zip(file.jobs.list or (), mix.jobs, strict=False)):
        if "network_fraction" in written_keys(row):
            yield ("jobs", "list", place, "network_fraction"), job
    if file.jobs.draw is not None and "network_fraction" in written_keys(file.jobs.draw):
        yield ("jobs", "draw", "network_fraction"), None


def _syncs(job: Job) -> bool:
    """Return whether the steps of a job on two nodes say how long they keep the network busy."""
    training = job.training
    if training is None or training.most_gpus < 2:
        return False
    return training.epochwise is not None or training.speed.network_share(training.most_gpus, 2) > 0.0


def _check_shared_gpus(document: Document, file: JobMixScenario, mix: Mix) -> None:
    """Refuse the time of a GPU without the memory that a second job needs, and a loss where no job leaves some."""
    for path, use in _gpu_uses(file):
        if use.time < 1.0 and use.memory == 1.0:
            rule = "a job with all memory of its GPUs shares them with none, whatever its time is"
            _refuse(document, path, rule, "write memory below 1, or leave time out")
    if file.cluster.packing_loss and all(job.gpu_use.memory == 1.0 for job in mix.jobs):
        key = "jobs.draw.gpu_uses" if file.jobs.draw is not None else "gpu_use of jobs.list"
        rule, remedy = "no two jobs share GPUs: each takes all of their memory", f"write {key}, or leave it out"
        _refuse(document, ("cluster", "packing_loss"), rule, remedy)


def _gpu_uses(file: JobMixScenario) -> Iterator[tuple[KeyPath, GpuUseSection]]:
    """Yield the key of each use of GPUs, and the use."""
    for place, job in enumerate(file.jobs.list or ()):
        yield ("jobs", "list", place, "gpu_use"), job.gpu_use
    for place, use in enumerate(file.jobs.draw.gpu_uses if file.jobs.draw is not None else ()):
        yield ("jobs", "draw", "gpu_uses", place), use


def _check_failures(document: Document, file: JobMixScenario, mix: Mix) -> None:
    """Refuse states that no job saves, and failures of nodes that are down."""
    failures = file.failures
    if "save_every" in written_keys(failures) and all(job.training is not None for job in mix.jobs):
        rule = "every job is elastic, and saves after each epoch"
        _refuse(document, ("failures", "save_every"), rule, "leave it out")
    places = sorted(range(len(failures.list)), key=lambda place: (failures.list[place].node, failures.list[place].at))
    for before, after in pairwise(places):
        first, second = failures.list[before], failures.list[after]
        up_s = first.at + first.repair
        if first.node == second.node and second.at < up_s:
            rule = f"node {second.node} fails at {second.at:g} s, and is down from {first.at:g} s to {up_s:g} s"
            _refuse(
                document, ("failures", "list", after), rule, "write a later one, or one failure with a longer repair"
            )


def _refuse(document: Document, path: KeyPath, rule: str, remedy: str) -> NoReturn:
    raise ScenarioError(document.origin(path), dotted(path), rule, remedy)
