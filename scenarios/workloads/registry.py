"""The registry of all kinds of work; the kind of a file, and the schema of all files."""

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import Any, Final

from msgspec import Struct

from scenarios.errors import Origin, ScenarioError, suggestion
from scenarios.reading.documents.yaml_tree import Document, describe
from scenarios.reading.sections import json_schema as section_schema
from scenarios.reading.sections.section import keys_of
from scenarios.workloads.workload import Workload


class Kind(Struct, frozen=True):
    """The place of a kind of work: its class is imported when a file of that kind is read.

    ``claim``: section, key and value of the files that belong to it without naming it; None: there are none.
    """

    name: str
    module: str
    class_name: str
    claim: tuple[str, str, str] | None = None

    @property
    def workload(self) -> Workload[Any]:
        """Return the kind of work itself, always the same object."""
        return _workload(self)

    def claims(self, data: Mapping[str, Any]) -> bool:
        """Return whether a file without a kind of work belongs to this kind."""
        if self.claim is None:
            return False
        section, key, value = self.claim
        found = data.get(section)
        return isinstance(found, dict) and found.get(key) == value

    @property
    def claimed(self) -> Mapping[str, Any]:
        """Return the JSON Schema of the files for which ``claims`` is true; empty if there are none."""
        if self.claim is None:
            return {}
        section, key, value = self.claim
        inner = {"properties": {key: {"const": value}}, "required": [key]}
        return {"properties": {section: inner}, "required": [section]}


KINDS: Final[tuple[Kind, ...]] = (
    Kind("training", "scenarios.workloads.training.workload", "TrainingStep"),
    Kind("textbook", "scenarios.workloads.textbook.workload", "TextbookSchedule", ("model", "family", "delay")),
    Kind("service", "scenarios.workloads.service.workload", "Service"),
    Kind("inference", "scenarios.workloads.inference.workload", "Inference"),
    Kind("recommendation", "scenarios.workloads.recommendation.workload", "Recommendation"),
    Kind("job_mix", "scenarios.workloads.job_mix.workload", "JobMix"),
)
"""A file without a kind belongs to the kind that claims it, else to the first one."""


@cache
def _workload(kind: Kind) -> Workload[Any]:
    found: Workload[Any] = getattr(import_module(kind.module), kind.class_name)()
    return found


def workloads() -> tuple[Workload[Any], ...]:
    """Return all kinds of work, importing each."""
    return tuple(kind.workload for kind in KINDS)


def workload_of(document: Document) -> Workload[Any]:
    """Return the kind of work of a file. Raises ScenarioError for an unknown kind."""
    named = document.data.get("workload")
    if named is None:
        return next((kind for kind in KINDS if kind.claims(document.data)), KINDS[0]).workload
    return workload_named(named, document.origin(("workload",)))


def workload_named(name: object, origin: Origin | None = None) -> Workload[Any]:
    """Return a kind of work by its name. Raises ScenarioError, with the name's origin, for an unknown one."""
    found = next((kind for kind in KINDS if kind.name == name), None)
    if found is None:
        names = [kind.name for kind in KINDS]
        remedy = suggestion(name, names) if isinstance(name, str) else f"write one of {', '.join(names)}"
        raise ScenarioError(origin or Origin(), "workload", f"there is no kind of work {describe(name)}", remedy)
    return found.workload


def sections() -> set[str]:
    """Return the top-level keys of files of all kinds of work."""
    return {key for kind in workloads() for key in keys_of(kind.schema)}


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of scenario files, of all kinds of work."""
    definitions: dict[str, Any] = {}
    choice: dict[str, Any] = {}
    for kind in (*KINDS[1:], KINDS[0])[::-1]:  # inside out: the first kind is the last else
        schema = kind.workload.schema
        definitions |= section_schema.definitions_of(schema)
        reference: dict[str, Any] = {"$ref": f"#/$defs/{schema.__name__}"}
        if refused := [found for each in kind.workload.unread for found in each.json_schemas()]:
            reference |= {"not": {"anyOf": refused}}
        choice = {"if": _is_of(kind), "then": reference, "else": choice} if choice else reference
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "meshtwin scenario",
        "type": "object",
        **choice,
        "$defs": dict(sorted(definitions.items())),
    }


def _is_of(kind: Kind) -> dict[str, Any]:
    """Return the JSON Schema that only files of one kind satisfy."""
    named = {"properties": {"workload": {"const": kind.name}}, "required": ["workload"]}
    return {"anyOf": [named, kind.claimed]} if kind.claimed else named
