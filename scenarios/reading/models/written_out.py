"""Models that a scenario names: the keys of a preset or a configuration, written out in the document."""

from typing import Any

from scenarios.errors import Origin, ScenarioError, suggestion
from scenarios.reading.documents.yaml_tree import Document, KeyPath
from scenarios.reading.models import hub, huggingface
from scenarios.reading.models.model_presets import load_preset, load_presets
from scenarios.reading.schema.model import HuggingFaceModel, PresetModel


def written_out(document: Document, section: PresetModel | HuggingFaceModel) -> Document:
    """Return the document with the keys of the model that it names in it. Raises ScenarioError for an unknown one."""
    if isinstance(section, PresetModel):
        return _write_out(document, _preset(document, section), "preset")
    return _write_out(document, huggingface.read_model(hub.config_path(document, section.huggingface)), "huggingface")


def _preset(document: Document, section: PresetModel) -> dict[str, Any]:
    found = load_preset(section.preset)
    if found is None:
        rule = f"there is no model preset {section.preset!r}"
        remedy = suggestion(section.preset, load_presets())
        raise ScenarioError(document.origin(("model", "preset")), "model.preset", rule, remedy)
    return found.keys


def _write_out(document: Document, base: dict[str, Any], name: str) -> Document:
    """Return the document with ``base`` under the model's own keys, ``base`` having the origin of key ``name``.

    A section of both is merged key by key.
    """
    own = {key: value for key, value in document.data["model"].items() if key != name}
    origin = document.origin(("model", name))
    inherited: dict[KeyPath, Origin] = {("model", key): origin for key in base}
    for key, section in base.items():
        if isinstance(section, dict) and isinstance(own.get(key), dict):
            inherited |= {("model", key, inner): origin for inner in section}
            own[key] = section | own[key]
    data = {**document.data, "model": base | own}
    return Document(source=document.source, data=data, origins=inherited | document.origins)
