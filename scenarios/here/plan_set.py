"""Sets of plans that a machine runs for real, to compare what they take with what was predicted."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from costmodels.calibration.document import CalibratedProfile
from scenarios.errors import Origin, ScenarioError
from scenarios.library.shipped import FOLDER
from scenarios.reading.documents.overrides import with_values
from scenarios.reading.documents.yaml_tree import Document, read_document
from scenarios.summaries.measured.here import Thresholds
from scenarios.workloads.loading import step_from_mapping
from scenarios.workloads.steps.scenario import StepScenario

PACKAGED: Final = FOLDER / "here" / "plans.yaml"
_KEYS: Final = ("base", "plans", "thresholds")
_REMEDY: Final = f"{PACKAGED.name}, which ships with meshtwin, is an example of a set of plans"


class PlanSet(Struct, frozen=True):
    """Scenarios by name, all of one type of node."""

    path: Path
    scenarios: Mapping[str, StepScenario]
    thresholds: Thresholds

    @property
    def node(self) -> str:
        """Return the node of the catalogue that all of them run on."""
        return next(s.cluster.node for s in self.scenarios.values() if s.cluster is not None)

    @property
    def num_ranks(self) -> int:
        """Return how many ranks the largest has."""
        return max(s.cluster.world_size for s in self.scenarios.values() if s.cluster is not None)


def read_plan_set(path: Path = PACKAGED) -> PlanSet:
    """Return the plans of a file. Raises ScenarioError, with the file, for whatever is wrong with it."""
    document = read_document(path)
    for key in _KEYS:
        if not isinstance(document.data.get(key), dict) or not document.data[key]:
            raise ScenarioError(Origin(str(path)), key, "a set of plans needs a mapping here", _REMEDY)
    unknown = sorted(set(document.data) - set(_KEYS))
    if unknown:
        raise ScenarioError(document.origin([unknown[0]]), unknown[0], "a set of plans has no such key", _REMEDY)
    scenarios = {str(name): _scenario(document, str(name)) for name in document.data["plans"]}
    found = PlanSet(path, scenarios, _thresholds(document))
    for name, scenario in scenarios.items():
        _refuse_unfit(document, name, scenario, found.node)
    return found


def with_profile(scenario: StepScenario, profile: CalibratedProfile) -> StepScenario:
    """Return a scenario whose cluster has a profile of its own."""
    assert scenario.cluster is not None
    return replace(scenario, cluster=replace(scenario.cluster, calibrated=profile))


def _scenario(document: Document, name: str) -> StepScenario:
    changes, where = document.data["plans"][name], f"{document.source}: plan {name!r}"
    if not isinstance(changes, dict):
        rule = "a plan is a mapping of the keys to change"
        raise ScenarioError(document.origin(["plans", name]), f"plans.{name}", rule, _REMEDY)
    entry: dict[str, Any] = with_values(document.data["base"], changes, Origin(option=where))
    return replace(step_from_mapping(entry, document.source, where), name=name)


def _refuse_unfit(document: Document, name: str, scenario: StepScenario, node: str) -> None:
    """Raise ScenarioError for what cannot be timed beside the others: no cluster, another node, unequal steps."""
    origin, key = document.origin(["plans", name]), f"plans.{name}"
    if scenario.cluster is None:
        raise ScenarioError(
            origin, key, "the times of a textbook workload are stated, not predicted", "name a model's family"
        )
    if scenario.cluster.node != node:
        rule = f"its node is {scenario.cluster.node}, and that of the first plan is {node}"
        raise ScenarioError(origin, key, rule, "one machine is one type of node: make them equal")
    if scenario.pipeline.gradient_delay:
        raise ScenarioError(origin, key, "its steps are not equal", "choose another schedule")


def _thresholds(document: Document) -> Thresholds:
    stated, names = document.data["thresholds"], Thresholds.__struct_fields__
    for name in (*names, *stated):
        value = stated.get(name)
        if name not in names or isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
            rule = f"thresholds are {', '.join(names)}, each a fraction from 0 to 1"
            raise ScenarioError(document.origin(["thresholds", name]), f"thresholds.{name}", rule, _REMEDY)
    return Thresholds(**{name: float(stated[name]) for name in names})
