"""Put ``--set key=value`` options into a document, and blame them for what they break."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from typing import Any, Final, TypeVar

from scenarios.errors import Origin, ScenarioError
from scenarios.reading.documents import value_list
from scenarios.reading.documents.yaml_tree import MAX_DEPTH, Document, KeyPath, describe, read_value

T = TypeVar("T")

_ITEM: Final = r"(.+?)\[\d+\]"
BASED: Final[frozenset[KeyPath]] = frozenset({("cluster", "topology"), ("cluster", "topology", "nodes")})
"""Keys that hold a name of the topology catalogue, or a mapping with that name under ``base``."""

_NAMED_MODELS: Final[Mapping[str, str]] = {
    "preset": "write another value, or the model's own keys in the place of preset",
    "huggingface": "write another value, or name a config.json without it",
}
"""Keys of a model that name another one, and how to be rid of one of its keys."""


def apply_overrides(document: Document, overrides: Iterable[str]) -> Document:
    """Return the document with each ``key=value`` put in, later ones over earlier ones.

    Keys are dotted paths, values YAML. A mapping replaces the whole mapping; ``null`` takes the key out. Raises
    ScenarioError where the text is not ``key=value``, the path runs through something that is no mapping, or ``null``
    is to take out what the file leaves to a named model.
    """
    data, origins = deepcopy(document.data), dict(document.origins)
    for text in overrides:
        path, value, origin = _parse(text)
        if value is None:
            _refuse_inherited(data, path, origin)
        _put(data, path, value, origin)
        origins = {known: where for known, where in origins.items() if known[: len(path)] != path}
        for length in range(1, len(path)):
            origins.setdefault(path[:length], origin)
        origins[path] = origin
    return Document(source=document.source, data=data, origins=origins)


def read_overridden(document: Document, overrides: Sequence[str], read: Callable[[Document], T]) -> T:
    """Return what ``read`` makes of a document with ``key=value`` overrides put in.

    Raises ScenarioError for what is wrong. Where the file without some of the overrides does not have that fault, the
    error is theirs, and not of a line of the file.
    """
    try:
        return read(apply_overrides(document, overrides))
    except ScenarioError as error:
        if error.origin.option:
            raise _with_sweep(error, overrides) from error
        if error.file != str(document.source):
            raise
        culprits = _culprits(error, document, overrides, read)
        if not culprits:
            raise
        origin = Origin(option=" ".join(map(_option, culprits)), from_shell=True)
        raise ScenarioError(origin, error.key, error.rule, error.remedy, num_more=error.num_more) from error


def _culprits(
    error: ScenarioError, document: Document, overrides: Sequence[str], read: Callable[[Document], object]
) -> list[str]:
    """Return the overrides without which the error would not be; none where the file has it by itself."""
    left = list(overrides)
    for text in overrides:
        others = [other for other in left if other is not text]
        try:
            read(apply_overrides(document, others))
        except ScenarioError as found:
            if (found.key, found.rule) == (error.key, error.rule):
                left = others
    return left


def _with_sweep(error: ScenarioError, overrides: Sequence[str]) -> ScenarioError:
    """Return an error of an option; where the option lists several values, with the command that takes them."""
    for text in overrides:
        key, _, values = text.partition("=")
        if error.origin.option == _option(text) and _is_list(values):
            remedy = f"{error.remedy}; several values: simulate sweep SCENARIO.yaml --set {key}={values[:100]}"
            return ScenarioError(error.origin, error.key, error.rule, remedy, num_more=error.num_more)
    return error


def _is_list(values: str) -> bool:
    try:
        return len(list(value_list.split_values(values, Origin()))) > 1
    except ScenarioError:
        return False


def with_values(data: Mapping[str, Any], values: Mapping[str, Any], origin: Origin) -> dict[str, Any]:
    """Return a scenario's mapping with values put in under dotted keys. Raises ScenarioError as ``apply_overrides``."""
    changed = deepcopy(dict(data))
    for key, value in values.items():
        _put(changed, tuple(str(key).split(".")), deepcopy(value), origin)
    return changed


def _parse(text: str) -> tuple[tuple[str, ...], Any, Origin]:
    """Return key path, value and origin of one override."""
    option = _option(text)
    origin = Origin(option=option, from_shell=True)
    key, equals, value = text.partition("=")
    path = tuple(part.strip() for part in key.split("."))
    if not equals or not all(path) or len(path) > MAX_DEPTH:
        remedy = "write it as in --set parallel.tensor.degree=4"
        raise ScenarioError(origin, "", "an override is a dotted key, =, and a value", remedy)
    if item := re.match(_ITEM, key):
        rule = "items of a list are not set one by one"
        raise ScenarioError(origin, "", rule, f"set {item[1][:200]} itself, with all its items")
    return path, read_value(value, option), origin


def _refuse_inherited(data: Mapping[str, Any], path: tuple[str, ...], origin: Origin) -> None:
    """Raise ScenarioError for a key of the model that does not stand in the file, but may in the model it names."""
    section, *names = path
    model = held = data.get("model")
    if section != "model" or not names or names[0] in {"family", *_NAMED_MODELS} or not isinstance(model, dict):
        return
    for name in names:
        held = held.get(name) if isinstance(held, dict) else None
    form = next((form for form in _NAMED_MODELS if form in model), "")
    if form and held is None:
        rule = f"null takes out what the scenario writes, not the keys of the model that {form} names"
        raise ScenarioError(origin, ".".join(path), rule, _NAMED_MODELS[form])


def _option(text: str) -> str:
    """Return an override as it was typed, in one line."""
    return f"--set {' '.join(text[:200].splitlines())}"


def _put(data: dict[str, Any], path: tuple[str, ...], value: object, origin: Origin) -> None:
    """Put ``value`` into nested mappings in place, making those that are missing; None takes the key out."""
    for length, name in enumerate(path[:-1], start=1):
        child = data.setdefault(name, {})
        if not isinstance(child, dict):
            above: KeyPath = path[:length]
            rule = f"{'.'.join(map(str, above))} holds {describe(child)}, which has no keys below it"
            raise ScenarioError(origin, ".".join(path), rule, _remedy(above, child, path[length]))
        data = child
    if value is None:
        data.pop(path[-1], None)
    else:
        data[path[-1]] = value


def _remedy(above: KeyPath, held: object, wanted: str) -> str:
    """Return how to set a key below a value that has none: a name of the catalogue may become its base."""
    key = ".".join(map(str, above))
    if above in BASED and isinstance(held, str):
        return f"write {key}={{base: {held[:80]}, {wanted}: ...}}"
    return f"set {key} itself"
