"""Systems for mixtures of experts: a name, and the keys that it stands for, read from ``scenarios/library/systems``.

A system is data. The keys that it writes are keys of every scenario, so nothing else knows of systems.
"""

from collections.abc import Iterator
from typing import Any, Final

from msgspec import Struct

from scenarios.errors import Origin, ScenarioError, suggestion
from scenarios.library.shipped import FOLDER
from scenarios.reading.documents.yaml_tree import Document, KeyPath, read_document

_FILE: Final = FOLDER / "systems" / "moe.yaml"
_KEY: Final[KeyPath] = ("moe", "system")


class MoeSystem(Struct, frozen=True, kw_only=True):
    """A published system: a line about it, where its settings come from, and the keys that it writes."""

    name: str
    what: str
    source: str
    keys: dict[str, Any]


def load_moe_systems() -> dict[str, MoeSystem]:
    """Return every system by name, in the order of the file."""
    return {name: MoeSystem(name=name, **entry) for name, entry in read_document(_FILE).data.items()}


def with_moe_system(document: Document, name: str) -> Document:
    """Return the document with the keys of a system below its own, of the origin of key ``moe.system``.

    Raises ScenarioError for an unknown system, and where the model has no experts.
    """
    systems = load_moe_systems()
    if name not in systems:
        rule = f"there is no system {name!r}"
        raise ScenarioError(document.origin(_KEY), "moe.system", rule, suggestion(name, systems))
    if "experts" not in document.data["model"]:
        rule, remedy = "the model has no experts", "write model.experts, or leave it out"
        raise ScenarioError(document.origin(_KEY), "moe.system", rule, remedy)
    keys = systems[name].keys
    origin = document.origin(_KEY)
    inherited: dict[KeyPath, Origin] = dict.fromkeys(_paths(keys, document.data), origin)
    return Document(document.source, _below(keys, document.data), inherited | document.origins)


def _below(keys: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """Return mappings merged key by key; where both have a value, it is the document's own."""
    merged = {**keys, **own}
    for key in keys.keys() & own.keys():
        if isinstance(keys[key], dict) and isinstance(own[key], dict):
            merged[key] = _below(keys[key], own[key])
    return merged


def _paths(keys: dict[str, Any], own: dict[str, Any], prefix: KeyPath = ()) -> Iterator[KeyPath]:
    """Yield the paths of the keys that the document does not have itself."""
    for key, value in keys.items():
        path = (*prefix, key)
        if key not in own:
            yield path
            if isinstance(value, dict):
                yield from _paths(value, {}, path)
        elif isinstance(value, dict) and isinstance(own[key], dict):
            yield from _paths(value, own[key], path)
