"""The registry of all kinds of work; the kind of a file, and the schema of all files."""

from typing import Any, Final

from scenarios.errors import Origin, ScenarioError, suggestion
from scenarios.reading.documents.yaml_tree import Document, describe
from scenarios.reading.schema.values import json_schema_of
from scenarios.workloads.job_mix.workload import JobMix
from scenarios.workloads.recommendation.workload import Recommendation
from scenarios.workloads.service.workload import Service
from scenarios.workloads.textbook.workload import TextbookSchedule
from scenarios.workloads.training.workload import TrainingStep
from scenarios.workloads.workload import Workload

WORKLOADS: Final[tuple[Workload[Any], ...]] = (
    TrainingStep(), TextbookSchedule(), Service(), Recommendation(), JobMix(),
)  # fmt: skip
"""A file without a kind belongs to the kind that claims it, else to the first one."""


def workload_of(document: Document) -> Workload[Any]:
    """Return the kind of work of a file. Raises ScenarioError for an unknown kind."""
    named = document.data.get("workload")
    if named is None:
        return next((kind for kind in WORKLOADS if kind.claims(document.data)), WORKLOADS[0])
    return workload_named(named, document.origin(("workload",)))


def workload_named(name: object, origin: Origin | None = None) -> Workload[Any]:
    """Return a kind of work by its name. Raises ScenarioError, with the name's origin, for an unknown one."""
    found = next((kind for kind in WORKLOADS if kind.name == name), None)
    if found is None:
        names = [kind.name for kind in WORKLOADS]
        remedy = suggestion(name, names) if isinstance(name, str) else f"write one of {', '.join(names)}"
        raise ScenarioError(origin or Origin(), "workload", f"there is no kind of work {describe(name)}", remedy)
    return found


def sections() -> set[str]:
    """Return the top-level keys of files of all kinds of work."""
    return {key for kind in WORKLOADS for key in kind.schema.model_fields}


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of scenario files, of all kinds of work."""
    definitions: dict[str, Any] = {}
    choice: dict[str, Any] = {}
    for kind in (*WORKLOADS[1:], WORKLOADS[0])[::-1]:  # inside out: the first kind is the last else
        own = json_schema_of(kind.schema)
        definitions |= own.pop("$defs", {}) | {kind.schema.__name__: own}
        reference = {"$ref": f"#/$defs/{kind.schema.__name__}"}
        choice = {"if": _is_of(kind), "then": reference, "else": choice} if choice else reference
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "meshtwin scenario",
        "type": "object",
        **choice,
        "$defs": dict(sorted(definitions.items())),
    }


def _is_of(kind: Workload[Any]) -> dict[str, Any]:
    """Return the JSON Schema that only files of one kind satisfy."""
    named = {"properties": {"workload": {"const": kind.name}}, "required": ["workload"]}
    return {"anyOf": [named, kind.claimed]} if kind.claimed else named
