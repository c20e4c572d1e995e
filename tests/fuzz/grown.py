"""Scenarios that the schema allows, with keys and values that nobody puts together: limits, and all choices."""

import random
from collections.abc import Iterator
from functools import cache
from typing import Any, Final

from scenarios.workloads.registry import json_schema
from tests.fuzz.mutate import Tree

Path = tuple[str, ...]
_SIZES: Final = (0, 1, 2, 3, 4, 8, 16, 64, 100, 1_000, 1 << 20)
_QUANTITIES: Final = ("1 ns", "1 us", "1 ms", "1 s", "11 d", "300000 d", "0 s", "1 B", "25 MiB", "1 TiB", "1000 TiB")
_MOST_DEPTH: Final = 6


@cache
def leaves(section: str) -> list[tuple[Path, Tree]]:
    """Return every key of a kind of work that holds a value, with its part of the schema; ``section``: its file's."""
    schema = json_schema()
    return list(_leaves(schema, schema["$defs"][section], ()))


def grown(rng: random.Random, data: Tree, known: list[tuple[Path, Tree]]) -> Tree:
    """Return a scenario with one to three of its keys, or of those that it lacks, at some value that is allowed."""
    for _ in range(rng.randrange(1, 4)):
        path, node = rng.choice(known)
        holder = data
        for part in path[:-1]:
            if not isinstance(holder.get(part), dict):
                holder[part] = {}
            holder = holder[part]
        holder[path[-1]] = _value(rng, node)
    return data


def _leaves(schema: Tree, node: Tree, path: Path) -> Iterator[tuple[Path, Tree]]:
    if len(path) > _MOST_DEPTH:
        return
    if "$ref" in node:
        yield from _leaves(schema, schema["$defs"][node["$ref"].rsplit("/", 1)[1]], path)
        return
    variants = [variant for word in ("anyOf", "oneOf", "allOf") for variant in node.get(word, [])]
    if any("$ref" in variant for variant in variants):
        for variant in variants:
            yield from _leaves(schema, variant, path)
    elif "properties" in node:
        for name, child in node["properties"].items():
            yield from _leaves(schema, child, (*path, name))
    elif path:
        yield path, node


def _value(rng: random.Random, node: Tree) -> Any:
    """Return a value that a part of the schema allows, near its limits more often than not."""
    if "anyOf" in node:
        return _value(rng, rng.choice(node["anyOf"]))
    if "const" in node:
        return node["const"]
    if "enum" in node:
        return rng.choice(node["enum"])
    kind = node.get("type")
    kind = rng.choice(kind) if isinstance(kind, list) else kind
    if kind in {"integer", "number"}:
        low, high = (node.get(key, node.get(f"exclusive{key.capitalize()}")) for key in ("minimum", "maximum"))
        inside = [size for size in _SIZES if (low is None or size >= low) and (high is None or size <= high)]
        value = rng.choice([*inside, *(limit for limit in (low, high) if limit is not None)])
        return value if kind == "integer" else value + rng.choice((0.0, 0.5, 1e-9))
    if kind == "boolean":
        return rng.random() < 0.5
    if kind == "array":
        item = node.get("items", {"type": "integer", "minimum": 1})
        return [_value(rng, item) for _ in range(rng.choice((0, 1, 2, 4, 8)))]
    return (
        rng.choice(_QUANTITIES) if "pattern" in node else rng.choice(("auto", "a", "hgx-h100", "ring", "dgx-a100-80g"))
    )
