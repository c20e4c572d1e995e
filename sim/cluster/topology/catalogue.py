"""The catalogue of node layouts and whole topologies: packaged YAML, every number with its source."""

import difflib
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from costmodels.packaged import packaged_yaml
from sim.cluster.topology.errors import TopologyError, quoted
from sim.cluster.topology.reading import dotted


def list_topologies() -> tuple[str, ...]:
    """Return the names of all topologies of the catalogue, sorted."""
    return tuple(sorted(_read()["topologies"]))


def list_node_layouts() -> tuple[str, ...]:
    """Return the names of all node layouts of the catalogue, sorted."""
    return tuple(sorted(_read()["nodes"]))


def load_topology(name: str, where: str) -> Mapping[str, Any]:
    """Return the description of a topology. Raises TopologyError for an unknown name, with the nearest known."""
    return _lookup("topologies", "topology", name, where)


def load_node(name: str, where: str) -> Mapping[str, Any]:
    """Return the description of a node. Raises TopologyError for an unknown name, with the nearest known."""
    return _lookup("nodes", "node layout", name, where)


def based_on(description: object, where: str, load: Callable[[str, str], Mapping[str, Any]]) -> object:
    """Return a description merged over the one named by its key ``base``, mapping by mapping."""
    if not isinstance(description, Mapping) or "base" not in description:
        return description
    base = based_on(load(str(description["base"]), dotted(where, "base")), where, load)
    own = {key: value for key, value in description.items() if key != "base"}
    return _laid_over(base, own)


def _laid_over(below: Any, above: Any) -> Any:
    is_whole = not (isinstance(below, Mapping) and isinstance(above, Mapping))
    if is_whole or "value" in below or below.get("kind") != above.get("kind", below.get("kind")):
        return above
    merged = {key: _laid_over(below[key], value) if key in below else value for key, value in above.items()}
    return {**below, **merged}


def _lookup(section: str, what: str, name: str, where: str) -> Mapping[str, Any]:
    entries = _read()[section]
    if name in entries:
        found: Mapping[str, Any] = entries[name]
        return found
    close = difflib.get_close_matches(name.lower()[:200], sorted(entries), n=3, cutoff=0.4)
    hint = f"did you mean {' or '.join(close)}?" if close else f"known: {', '.join(sorted(entries))}"
    raise TopologyError(where, f"there is no {what} {quoted(name)} in the catalogue", hint)


@cache
def _read() -> Mapping[str, Mapping[str, Any]]:
    return packaged_yaml("catalogue", "topologies")
