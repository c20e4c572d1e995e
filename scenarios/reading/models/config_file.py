"""A parsed ``config.json`` of Hugging Face, and the errors of its keys."""

import json
import re
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from scenarios.errors import Origin, ScenarioError
from scenarios.reading.documents.text_file import read_text
from scenarios.reading.documents.yaml_tree import describe

OWN: Final = "use the model's own config.json"
MAX_NUMBER: Final = 10**12
"""No number of a model is larger; the schema of scenarios has the limits of each."""


class Config(Struct, frozen=True):
    """A parsed ``config.json``."""

    path: Path
    text: str
    values: dict[str, Any]

    def refuse(self, key: str, rule: str, remedy: str) -> ScenarioError:
        """Return the error for one key, with the line that it stands in."""
        match = re.search(rf'^.*?"{re.escape(key)}"\s*:', self.text, re.DOTALL)
        line = match[0].count("\n") + 1 if match else 1
        return ScenarioError(Origin(str(self.path), line), key, rule, remedy)

    def integer(self, *names: str, default: int | None = None) -> int:
        """Return the first of the keys that is there, a whole number of 1 or more."""
        for name in names:
            value = self.values.get(name)
            if value is None:
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise self.refuse(name, f"a whole number of 1 or more belongs here, not {describe(value)}", OWN)
            if value > MAX_NUMBER:
                raise self.refuse(name, f"must be at most {MAX_NUMBER:,}, got {describe(value)}", OWN)
            return value
        if default is None:
            raise self.refuse(names[0], "the key is required and missing", "use the config.json of a whole model")
        return default

    def number(self, name: str, default: float) -> float:
        """Return a number."""
        value = self.values.get(name, default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) <= MAX_NUMBER:
            raise self.refuse(name, f"a number belongs here, not {describe(value)}", OWN)
        return float(value)

    def flag(self, name: str, *, default: bool) -> bool:
        """Return true or false."""
        value = self.values.get(name, default)
        if not isinstance(value, bool):
            raise self.refuse(name, f"true or false belongs here, not {describe(value)}", OWN)
        return value

    def has(self, name: str) -> bool:
        """Return whether the key is there and neither null, false, nor empty."""
        return bool(self.values.get(name))

    def require(self, name: str, allowed: tuple[object, ...], why: str) -> None:
        """Raise ScenarioError unless the key is missing, null or one of ``allowed``."""
        value = self.values.get(name)
        if value is not None and value not in allowed:
            listed = " or ".join(json.dumps(choice) for choice in allowed)
            raise self.refuse(name, f"{json.dumps(value)[:60]} is not modelled: {why}", f"only {listed} is modelled")


def read_config(path: Path) -> Config:
    """Return a file's configuration. Raises ScenarioError where it holds none."""
    text = read_text(path, "use the config.json of a whole model")
    try:
        values = json.loads(text, object_pairs_hook=lambda pairs: _once(path, text, pairs))
    except ScenarioError:
        raise
    except json.JSONDecodeError as error:
        rule = f"this is not JSON: {error.msg}"
        raise ScenarioError(Origin(str(path), error.lineno), "", rule, OWN) from error
    except (RecursionError, ValueError) as error:  # nested too deep, or a number too long
        raise ScenarioError(Origin(str(path)), "", "this is no model's config", "use a config.json") from error
    if not isinstance(values, dict):
        rule = f"the file holds {describe(values)}, where a mapping belongs"
        raise ScenarioError(Origin(str(path)), "", rule, OWN)
    return Config(path=path, text=text, values=values)


def _once(path: Path, text: str, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a mapping of JSON. Raises ScenarioError for a key that is written twice."""
    values: dict[str, Any] = {}
    for key, value in pairs:
        if key in values:
            raise Config(path, text, values).refuse(key, "the key is written twice", "keep one of the two")
        values[key] = value
    return values
