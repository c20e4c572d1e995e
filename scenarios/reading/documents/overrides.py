"""Put ``--set key=value`` options into a document."""

from collections.abc import Iterable, Mapping
from copy import deepcopy
from typing import Any, Final

from scenarios.errors import Origin, ScenarioError
from scenarios.reading.documents.yaml_tree import MAX_DEPTH, Document, KeyPath, describe, read_value

BASED: Final[frozenset[KeyPath]] = frozenset({("cluster", "topology"), ("cluster", "topology", "nodes")})
"""Keys that hold a name of the topology catalogue, or a mapping with that name under ``base``."""


def apply_overrides(document: Document, overrides: Iterable[str]) -> Document:
    """Return the document with each ``key=value`` put in, later ones over earlier ones.

    Keys are dotted paths, values YAML. A mapping replaces the whole mapping. Raises ScenarioError where
    the text is not ``key=value`` or the path runs through something that is no mapping.
    """
    data, origins = deepcopy(document.data), dict(document.origins)
    for text in overrides:
        path, value, origin = _parse(text)
        _put(data, path, value, origin)
        origins = {known: where for known, where in origins.items() if known[: len(path)] != path}
        for length in range(1, len(path)):
            origins.setdefault(path[:length], origin)
        origins[path] = origin
    return Document(source=document.source, data=data, origins=origins)


def with_values(data: Mapping[str, Any], values: Mapping[str, Any], origin: Origin) -> dict[str, Any]:
    """Return a scenario's mapping with values put in under dotted keys. Raises ScenarioError as ``apply_overrides``."""
    changed = deepcopy(dict(data))
    for key, value in values.items():
        _put(changed, tuple(str(key).split(".")), deepcopy(value), origin)
    return changed


def _parse(text: str) -> tuple[tuple[str, ...], Any, Origin]:
    """Return key path, value and origin of one override."""
    option = f"--set {' '.join(text[:200].splitlines())}"
    origin = Origin(option=option)
    key, equals, value = text.partition("=")
    path = tuple(part.strip() for part in key.split("."))
    if not equals or not all(path) or len(path) > MAX_DEPTH:
        remedy = "write it as in --set parallel.tensor.degree=4"
        raise ScenarioError(origin, "", "an override is a dotted key, =, and a value", remedy)
    return path, read_value(value, option), origin


def _put(data: dict[str, Any], path: tuple[str, ...], value: object, origin: Origin) -> None:
    """Put ``value`` into nested mappings in place, making those that are missing."""
    for length, name in enumerate(path[:-1], start=1):
        child = data.setdefault(name, {})
        if not isinstance(child, dict):
            above: KeyPath = path[:length]
            rule = f"{'.'.join(map(str, above))} holds {describe(child)}, which has no keys below it"
            raise ScenarioError(origin, ".".join(path), rule, _remedy(above, child, path[length]))
        data = child
    data[path[-1]] = value


def _remedy(above: KeyPath, held: object, wanted: str) -> str:
    """Return how to set a key below a value that has none: a name of the catalogue may become its base."""
    key = ".".join(map(str, above))
    if above in BASED and isinstance(held, str):
        return f"write {key}={{base: {held[:80]}, {wanted}: ...}}"
    return f"set {key} itself"
