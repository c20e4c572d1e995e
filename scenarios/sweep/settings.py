"""Read ``--set key=a,b,c`` options, and make the points of their product."""

import json
from collections.abc import Iterator, Sequence
from itertools import product
from math import prod
from typing import Any, Final

from msgspec import Struct

from scenarios.errors import Origin, ScenarioError
from scenarios.reading.documents.value_list import split_values
from scenarios.reading.documents.yaml_tree import read_value

MAX_POINTS: Final = 10_000

_EXAMPLE: Final = "write it as in --set parallel.tensor.degree=1,2,4"


class Setting(Struct, frozen=True):
    """A scenario key and the values that it takes: ``texts`` as typed, ``values`` as YAML reads them."""

    key: str
    texts: tuple[str, ...]
    values: tuple[Any, ...]


class Point(Struct, frozen=True):
    """One element of the product: its number, ``key=value`` overrides, and the values by key."""

    index: int
    overrides: tuple[str, ...]
    values: dict[str, Any]


def read_settings(options: Sequence[str]) -> tuple[Setting, ...]:
    """Return the settings of all ``--set`` options, in their order.

    Values are YAML, separated by commas; a comma inside brackets, braces or quotes belongs to its value. Raises
    ScenarioError for text that is not so, a key or value that comes twice, a mapping that would undo an earlier
    option, and a product of more than 10,000 points.
    """
    settings = tuple(_read_setting(text) for text in options)
    if not settings:
        rule = "a sweep needs values to go through"
        raise ScenarioError(Origin(option="--set"), "", rule, _EXAMPLE)
    for place, setting in enumerate(settings):
        for earlier in settings[:place]:
            _refuse_undoing(earlier, setting)
    num_points = prod(len(setting.texts) for setting in settings)
    if num_points > MAX_POINTS:
        counts = " x ".join(str(len(setting.texts)) for setting in settings)
        rule = f"{counts} = {num_points:,} points are more than {MAX_POINTS:,}"
        raise ScenarioError(Origin(option="--set"), "", rule, "leave some values out")
    return settings


def points(settings: Sequence[Setting]) -> Iterator[Point]:
    """Yield the product of all values; the last setting varies fastest."""
    choices = [
        [(setting.key, *pair) for pair in zip(setting.texts, setting.values, strict=True)] for setting in settings
    ]
    for index, chosen in enumerate(product(*choices)):
        overrides = tuple(f"{key}={text}" for key, text, _ in chosen)
        yield Point(index, overrides, {key: value for key, _, value in chosen})


def _refuse_undoing(earlier: Setting, setting: Setting) -> None:
    """Raise ScenarioError for a setting that undoes an earlier one, or a part of one that the earlier one varies."""
    rule, remedy = "", "state it in one of the two"
    if f"{earlier.key}.".startswith(f"{setting.key}."):
        rule = f"{earlier.key} was set before, and this would undo it"
        remedy = "list all values in one option" if earlier.key == setting.key else "put this option first"
    elif setting.key.startswith(f"{earlier.key}.") and len(earlier.values) > 1:
        path = setting.key.removeprefix(f"{earlier.key}.").split(".")
        if any(_states(value, path) for value in earlier.values):
            rule = f"values of {earlier.key} state it too, and this would undo it"
    if rule:
        raise ScenarioError(_origin(f"{setting.key}={','.join(setting.texts)}"), setting.key, rule, remedy)


def _states(value: object, path: Sequence[str]) -> bool:
    """Return whether a value is a mapping with the key of a path."""
    for name in path:
        if not isinstance(value, dict) or name not in value:
            return False
        value = value[name]
    return True


def _read_setting(text: str) -> Setting:
    key, equals, values = text.partition("=")
    parts = tuple(part.strip() for part in key.split("."))
    if not equals or not all(parts):
        raise ScenarioError(_origin(text), "", "a setting is a dotted key, =, and values", _EXAMPLE)
    texts = tuple(split_values(values, _origin(text)))
    read = tuple(read_value(part, str(_origin(f"{key}={part}"))) for part in texts)
    seen = set[str]()
    for part, value in zip(texts, read, strict=True):
        same = json.dumps(value, sort_keys=True)
        if same in seen:
            rule = f"the value {part[:60]} comes twice"
            raise ScenarioError(_origin(text), ".".join(parts), rule, "keep one of the two")
        seen.add(same)
    return Setting(".".join(parts), texts, read)


def _origin(text: str) -> Origin:
    return Origin(option=f"--set {' '.join(text[:200].splitlines())}")
