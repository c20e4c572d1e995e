"""From keys of `model.experts` to the way in which a step is routed."""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Final

from scenarios.errors import ScenarioError
from scenarios.reading.documents.named_file import named_file
from scenarios.reading.documents.yaml_tree import Document, KeyPath
from scenarios.reading.schema.model import DenseToSparseSection, RoutingSection
from scenarios.reading.sections.section import values_of, written_keys
from sim.moe.dense_to_sparse import DenseToSparse
from sim.moe.errors import RoutingError
from sim.moe.recorded import RecordedRouting
from sim.moe.routing import RoutingSource
from sim.moe.skew import Skew
from sim.moe.sources import Shares
from sim.training.gates.gate import RoutingWord

_KEY: Final[KeyPath] = ("model", "experts", "routing")
_HINT: Final = "record one with simulate execute --record-routing FILE"


def routing_of(document: Document, section: RoutingSection | RoutingWord, seed: int) -> RoutingWord | RoutingSource:
    """Return the routing that a scenario states, with the file of a trace read.

    Raises ScenarioError for a mapping that states none or several, and where the file lies nowhere or has no such step;
    TraceError for a file that cannot be read.
    """
    if isinstance(section, str):
        return section
    stated = [name for name in ("skew", "shares", "trace") if getattr(section, name) is not None]
    if len(stated) != 1:
        rule = f"it states {' and '.join(stated) or 'no routing'}"
        remedy = "write one of skew, shares and trace, or learned or balanced in place of the mapping"
        raise ScenarioError(document.origin(_KEY), ".".join(map(str, _KEY)), rule, remedy)
    if section.shares is not None:
        if "step" in written_keys(section):
            key = (*_KEY, "step")
            rule, remedy = "shares are those of every step", "leave it out, or write skew or trace"
            raise ScenarioError(document.origin(key), ".".join(map(str, key)), rule, remedy)
        return Shares(section.shares)
    if section.skew is not None:
        return Skew(**values_of(section.skew), step=section.step, seed=seed)
    assert section.trace is not None
    key = (*_KEY, "trace")
    try:
        return _read(named_file(document, key, section.trace, _HINT)).at(section.step)
    except RoutingError as error:
        where = (*_KEY, "step")
        raise ScenarioError(document.origin(where), ".".join(map(str, where)), error.rule, error.remedy) from error


def dense_to_sparse_of(document: Document, section: DenseToSparseSection | None) -> DenseToSparse | None:
    """Return the schedule of a gate that a scenario states. Raises ScenarioError for a temperature that rises."""
    try:
        return None if section is None else DenseToSparse(**values_of(section))
    except RoutingError as error:
        key = ("model", "experts", "dense_to_sparse", "end")
        raise ScenarioError(document.origin(key), ".".join(key), error.rule, error.remedy) from error


def _read(file: Path) -> RecordedRouting:
    """Read a file with the reader that only few scenarios need: pyarrow is imported on demand."""
    read: Callable[[Path], RecordedRouting] = import_module("sim.moe.routing_file").read_routing
    return read(file)
