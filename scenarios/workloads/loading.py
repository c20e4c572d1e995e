"""Reading of scenarios of all kinds of work from files."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scenarios.errors import Origin
from scenarios.reading.documents.overrides import apply_overrides, read_overridden
from scenarios.reading.documents.yaml_tree import Document, read_document
from scenarios.workloads.registry import workload_of
from scenarios.workloads.steps.scenario import StepScenario, step_of
from scenarios.workloads.workload import Scenario


def load_scenario(path: Path | str, overrides: Sequence[str] = ()) -> Scenario:
    """Return the scenario of a file with ``key=value`` overrides put in.

    Raises ScenarioError, with file, line, key, rule and remedy, for every error in either.
    """
    return scenario_of(read_document(Path(path)), overrides)


def scenario_of(document: Document, overrides: Sequence[str] = ()) -> Scenario:
    """Return the scenario of a file that was read, with ``key=value`` overrides put in. Raises as ``load_scenario``."""
    return read_overridden(document, overrides, lambda changed: _loaded(changed, overrides, document))


def point_of(document: Document, overrides: Sequence[str]) -> Scenario:
    """Return one of many scenarios of a file. Raises as ``scenario_of``, without asking whose the fault is."""
    return _loaded(apply_overrides(document, overrides), overrides, document)


def _loaded(changed: Document, overrides: Sequence[str], as_read: Document) -> Scenario:
    found: Scenario = workload_of(changed).load(changed, overrides, as_read)
    return found


def scenario_from_mapping(data: Mapping[str, Any], source: Path, where: str) -> Scenario:
    """Return the scenario that a mapping from ``source`` describes.

    Raises ScenarioError, with ``where`` in the place of file and line, for every error in it.
    """
    return scenario_of(Document(source=source, data=dict(data), origins={(): Origin(option=where)}))


def load_step(path: Path | str, overrides: Sequence[str] = ()) -> StepScenario:
    """Return the step of a file. Raises ScenarioError as ``load_scenario``, and for a kind of work without a step."""
    return step_of(load_scenario(path, overrides))


def step_from_mapping(data: Mapping[str, Any], source: Path, where: str) -> StepScenario:
    """Return the step that a mapping describes. Raises ScenarioError as ``load_step``."""
    return step_of(scenario_from_mapping(data, source, where))
