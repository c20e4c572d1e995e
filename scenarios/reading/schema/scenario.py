"""The whole file: which sections it has, and its JSON Schema."""

from typing import Any

from pydantic import Field

from scenarios.reading.schema.cluster import ClusterSection, NetworkSection, SoftwareSection
from scenarios.reading.schema.model import DelayModel, Model
from scenarios.reading.schema.parallel import DelayParallelSection, ParallelSection
from scenarios.reading.schema.reliability import ReliabilitySection
from scenarios.reading.schema.training import DelayTrainingSection, TrainingSection
from scenarios.reading.schema.values import Section


class _ScenarioHead(Section):
    name: str = Field(min_length=1, max_length=200)
    """What to call this scenario in results."""
    seed: int = Field(default=0, ge=0, le=2**63 - 1)
    """Seed of everything random."""


class DenseScenario(_ScenarioHead):
    """Dense training of a transformer on a cluster."""

    cluster: ClusterSection
    model: Model
    training: TrainingSection
    parallel: ParallelSection = ParallelSection()
    network: NetworkSection = NetworkSection()
    software: SoftwareSection = SoftwareSection()
    reliability: ReliabilitySection | None = None
    """A long run on hardware that fails; default: only a step is simulated."""


class DelayScenario(_ScenarioHead):
    """A textbook workload on ranks without hardware."""

    model: DelayModel
    training: DelayTrainingSection
    parallel: DelayParallelSection = DelayParallelSection()


def scenario_class(data: dict[str, Any]) -> type[DenseScenario] | type[DelayScenario]:
    """Return the schema that a file's values are to be checked against."""
    model = data.get("model")
    return DelayScenario if isinstance(model, dict) and model.get("family") == "delay" else DenseScenario


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a scenario file."""
    template = "#/$defs/{model}"
    dense = DenseScenario.model_json_schema(ref_template=template)
    delay = DelayScenario.model_json_schema(ref_template=template)
    definitions = {**dense.pop("$defs"), **delay.pop("$defs"), "DenseScenario": dense, "DelayScenario": delay}
    is_delay = {"properties": {"family": {"const": "delay"}}, "required": ["family"]}
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "meshtwin scenario",
        "type": "object",
        "if": {"properties": {"model": is_delay}, "required": ["model"]},
        "then": {"$ref": "#/$defs/DelayScenario"},
        "else": {"$ref": "#/$defs/DenseScenario"},
        "$defs": definitions,
    }
    return {key: _without_null(value) for key, value in schema.items()}


def _without_null(schema: Any) -> Any:
    """Return a JSON Schema that refuses null everywhere, as the loader does: leave a key out for its default."""
    if isinstance(schema, list):
        return [_without_null(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    result = {key: _without_null(value) for key, value in schema.items() if not (key == "default" and value is None)}
    if {"type": "null"} in result.get("anyOf", ()):
        kept = [option for option in result.pop("anyOf") if option != {"type": "null"}]
        result |= kept[0] if len(kept) == 1 else {"anyOf": kept}
    return result
