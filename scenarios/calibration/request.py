"""The checked options of ``simulate calibrate``, and the files of profiles."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal

import yaml
from msgspec import Struct

from costmodels.calibration.document import parse_calibrated
from costmodels.errors import CatalogueError
from costmodels.hardware import NodeSpec, load_node
from scenarios.errors import Origin, ScenarioError
from scenarios.reading.clusters.profile_file import profile_of
from scenarios.reading.documents.yaml_tree import Document, document_of
from scenarios.reading.option import option_seconds
from scenarios.results.folder import refuse_unwritable, writing_to
from traces.files import replacing

DEFAULT_NODE: Final = "local-cpu"
BUDGETS_S: Final = (2.0, 3600.0)


class MachineOptions(Struct, frozen=True, kw_only=True):
    """Options of a machine's calibration. ``budget``: a time with its unit; ``processes``: None for as many as fit."""

    device: Literal["cpu", "cuda"]
    budget: str
    processes: int | None

    @property
    def words(self) -> str:
        """Return the options as on the command line."""
        return f"--device {self.device} --budget {self.budget!r}"


def write_profile(entry: Mapping[str, Any], path: Path, command: str) -> None:
    """Write a profile, headed by its command, completely or not at all.

    Raises ScenarioError for errors of the file system.
    """
    text = f"# Written by: {command}\n" + yaml.safe_dump(dict(entry), sort_keys=False, width=120, allow_unicode=True)
    parse_calibrated(path.stem, yaml.safe_load(text))  # check that the text can be read
    with writing_to(path.parent), replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_section(before: str, path: Path, name: str, section: Mapping[str, Any], out: Path) -> None:
    """Write a profile to ``out`` with another section of this name; every other line stays.

    ``before``: the text of the profile, read from ``path``. Raises ScenarioError if the section is not written as a
        block of lines, and for errors of the file system.
    """
    block = yaml.safe_dump({name: dict(section)}, sort_keys=False, width=120, allow_unicode=True)
    after, count = re.subn(rf"^{name}:[ ]*\n(?:[ ].*(?:\n|\Z))*", lambda _: block, before, flags=re.MULTILINE)
    if count != 1 or not _is_changed(document_of(before, path), after, name, section):
        rule = "the section is not written as a line with its name and indented lines below it"
        raise ScenarioError(Origin(str(path)), name, rule, "write it so")
    profile_of(document_of(after, out))  # check that the text can be read
    with writing_to(out.parent), replacing(out) as temporary:
        temporary.write_text(after, encoding="utf-8")


def _is_changed(before: Document, after: str, name: str, section: Mapping[str, Any]) -> bool:
    """Return whether a text equals a file except for one section, which has these keys."""
    try:
        found = document_of(after, before.source).data
    except ScenarioError:  # lines of the section remain
        return False
    others = [{key: value for key, value in data.items() if key != name} for data in (before.data, found)]
    return others[0] == others[1] and found[name].keys() == section.keys()


def refuse_unwritable_files(path: Path, *others: Path) -> None:
    """Raise ScenarioError, before any work, unless a YAML file can be written at ``path``, and others beside it."""
    option = Origin(option=f"--out {path}")
    if path.suffix not in {".yaml", ".yml"}:
        raise ScenarioError(option, "", "a profile is a YAML file", "name a file that ends in .yaml")
    try:
        directories = [name for name in (path, *others) if name.is_dir()]
        has_parent = path.absolute().parent.is_dir()
    except (OSError, ValueError) as error:
        raise ScenarioError(option, "", "this cannot be the name of a file", "name another file") from error
    if directories:
        raise ScenarioError(option, "", f"{directories[0]} is a directory, not a file", "name a file in it")
    if not has_parent:
        raise ScenarioError(option, "", f"there is no directory {path.parent}", "make it, or name another")
    refuse_unwritable(path.absolute().parent)


def checked_node(name: str | None, device: str, *, from_tables: bool) -> NodeSpec:
    """Return the node of the catalogue for a profile.

    Raises ScenarioError for an unknown node, a node of another kind of device, and a missing name without a default.
    """
    option = Origin(option="--node")
    if name is None and (from_tables or device != "cpu"):
        rule = "the tables' node is not named" if from_tables else "the node of these GPUs is not named"
        raise ScenarioError(option, "", rule, "write --node and a name that simulate list nodes shows")
    try:
        node = load_node(name or DEFAULT_NODE)
    except CatalogueError as error:
        rule, _, remedy = str(error).rpartition("; ")
        raise ScenarioError(option, "", rule, remedy) from error
    kind = {"cpu": "cpu", "cuda": "gpu"}[device]
    if not from_tables and node.device.kind != kind:
        rule = f"{node.name} has devices of kind {node.device.kind}, and {device} was asked for"
        raise ScenarioError(option, "", rule, "name another node, or another --device")
    return node


def budget_seconds(text: str, option: str = "--budget") -> float:
    """Return the seconds of a budget. Raises ScenarioError for one without a unit, or outside its limits."""
    return option_seconds(option, text, BUDGETS_S, "measuring takes")
