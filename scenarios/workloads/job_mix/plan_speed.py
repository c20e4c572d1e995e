"""The speed of a job from the simulated plan of its training step, on each number of GPUs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from scenarios.errors import Origin, ScenarioError
from scenarios.library.shipped import found, scenario_names
from scenarios.reading.documents.checking import dotted
from scenarios.reading.documents.located import located
from scenarios.reading.documents.named_file import named_file
from scenarios.reading.documents.overrides import apply_overrides
from scenarios.reading.documents.yaml_tree import Document, KeyPath, read_document
from scenarios.workloads.job_mix.schema import PlanSection
from scenarios.workloads.training.scenario import TrainingScenario
from scenarios.workloads.training.workload import TrainingStep
from sim.engine.step_times import StepTimes
from sim.jobs.speed.speed import MeasuredSpeed

_OF_GPUS: Final = ("cluster.num_nodes", "cluster.devices_per_node", "parallel.data.degree")
"""Keys that follow from a number of GPUs."""
_BATCH: Final = "training.global_batch_size"


def plan_speed(
    document: Document, key: KeyPath, section: PlanSection, gpus_per_node: Sequence[int], times: StepTimes
) -> MeasuredSpeed:
    """Return the speed of a job whose step is a plan: simulated samples per second by number of GPUs.

    Each number of GPUs lies on as few nodes as possible, of the size of the mix's first one. ``times`` knows equal
    steps of other jobs again. Raises ScenarioError, with the key, for a step that cannot be built.
    """
    path = _path(document, (*key, "scenario"), section.scenario)
    _refuse_own_keys(document, (*key, "set"), section)
    table = {}
    for num_gpus in section.num_gpus:
        try:
            step = _step(path, _changes(section, num_gpus, gpus_per_node[0])).decided()
            with located(step.document):
                table[num_gpus] = step.num_samples / times.step_time_s(step.build(), step.pricing())
        except ScenarioError as error:
            rule = f"on {num_gpus} GPUs {section.scenario} is refused: {error.key}: {error.rule}"
            raise ScenarioError(document.origin(key), dotted(key), rule, error.remedy) from error
    return MeasuredSpeed(table)


def _path(document: Document, key: KeyPath, name: str) -> Path:
    """Return the file of a scenario that comes with the program, or lies beside the mix."""
    if name.removesuffix(".yaml") in scenario_names():
        return found(Path(name))
    return named_file(document, key, name, "name a training scenario: simulate list scenarios")


def _changes(section: PlanSection, num_gpus: int, per_node: int) -> tuple[str, ...]:
    """Return what changes in a training scenario on a number of GPUs."""
    nodes = -(-num_gpus // per_node)
    if num_gpus % nodes:
        rule = f"{num_gpus} GPUs do not spread evenly over {nodes} nodes of {per_node}"
        raise ScenarioError(Origin(), "num_gpus", rule, "write numbers up to a node, and multiples of one")
    changes = [
        f"{key}={value}" for key, value in zip(_OF_GPUS, (nodes, num_gpus // nodes, "auto"), strict=True)
    ]  # fmt: skip
    if section.batch_per_gpu is not None:
        changes.append(f"{_BATCH}={section.batch_per_gpu * num_gpus}")
    return (*changes, *section.set)


def _refuse_own_keys(document: Document, key: KeyPath, section: PlanSection) -> None:
    """Raise ScenarioError for changes of keys that the numbers of GPUs set, or the batch for each of them."""
    batch = () if section.batch_per_gpu is None else (_BATCH,)
    for change in section.set:
        name = change.partition("=")[0].strip()
        if any(own == name or own.startswith(f"{name}.") for own in (*_OF_GPUS, *batch)):
            rule = f"{name} follows from {'batch_per_gpu' if name == _BATCH else 'num_gpus'}, and is set"
            raise ScenarioError(document.origin(key), dotted(key), rule, "leave one of the two out")


def _step(path: Path, changes: Sequence[str]) -> TrainingScenario:
    document = read_document(path)
    return TrainingStep().load(apply_overrides(document, changes), changes, document)
