"""Names of a sweep's points: the values in which they differ."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from scenarios.errors import printable
from scenarios.summaries import sweep

_WORD: Final = re.compile(r"[\w.-]+")
_SAYS_LITTLE: Final = frozenset({"degree", "method", "bandwidth", "latency", "nodes"})


def varied(summary: "sweep.SweepSummary[Any]") -> dict[str, str]:
    """Return the keys with several values, each with its shortest unique name: its last parts.

    A last part that says little alone keeps the one before: ``tensor.degree``.
    """
    keys = [setting.key for setting in summary.settings if len(setting.values) > 1]
    return {key: _short(key, keys) for key in keys}


def _short(key: str, keys: Sequence[str]) -> str:
    parts = key.split(".")
    others = [other.split(".") for other in keys if other != key]
    for length in range(2 if parts[-1] in _SAYS_LITTLE else 1, len(parts)):
        if all(other[-length:] != parts[-length:] for other in others):
            return ".".join(parts[-length:])
    return key


def written(value: Any) -> str:
    """Return a value as in YAML, in one line that is safe to print."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return printable(text).replace("\n", "\\n")


def label(summary: "sweep.SweepSummary[Any]", values: Mapping[str, Any]) -> str:
    """Return a point's name: words alone, other values with their key."""
    named = []
    for key, short in varied(summary).items():
        value = written(values[key])
        is_word = isinstance(values[key], str) and _WORD.fullmatch(value)
        named.append(value if is_word else f"{short}={value}")
    return " · ".join(named) or summary.scenario
