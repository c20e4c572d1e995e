"""Backends are used through types: nothing at the seam is Any or a module, and everybody uses the same protocols."""

import ast
import inspect
import tomllib
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath

import pytest

from backends.execution.protocol import ExecutingBackend, TorchLibrary
from backends.protocol import Backend
from backends.simulated import SimulatedBackend, SimulatedSession
from sim.plan.session.protocol import Session

UNTYPED = {"Any", "ModuleType", "cast"}
SEAM = ("backends/*.py", "backends/execution/*.py", "backends/execution/measuring/*.py", "backends/torch/backend.py",
        "backends/torch/session.py", "sim/plan/session/*.py")  # fmt: skip
APART = "backends/processes.py"
"""Started processes take any function with any arguments; no backend is behind it."""


def untyped_names(nodes: Sequence[ast.AST]) -> list[tuple[str, int]]:
    """Return the names, with their lines, by which a type is left open."""
    found = [(node.id, node.lineno) for node in nodes if isinstance(node, ast.Name) and node.id in UNTYPED]
    return found + [
        (alias.name, node.lineno)
        for node in nodes
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.name in UNTYPED
    ]


def is_seam(name: str) -> bool:
    """Return whether a file is part of the seam."""
    return (
        not name.startswith("tests") and name != APART and any(PurePosixPath(name).match(pattern) for pattern in SEAM)
    )


def test_nothing_at_the_seam_is_untyped(modules) -> None:
    """No file of the seam names Any or a module as a type, or casts to one."""
    seam = [module for module in modules if is_seam(module.name)]
    assert len(seam) > 15
    assert {module.name: names for module in seam if (names := untyped_names(module.nodes))} == {}


@pytest.mark.parametrize("code", ["def f() -> Any: ...", "x: ModuleType", "from typing import Any", "x = cast(int, y)"])
def test_the_search_sees_what_is_untyped(code: str) -> None:
    """Each way to leave a type open is found."""
    assert untyped_names(tuple(ast.walk(ast.parse(code))))


def test_mypy_refuses_any_at_the_seam(root: Path) -> None:
    """mypy holds every module of the seam to the same rule, implied types included."""
    settings = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["mypy"]
    [override] = [each for each in settings["overrides"] if each.get("disallow_any_explicit")]
    patterns = override["module"]
    files = [path.relative_to(root).as_posix() for pattern in SEAM for path in root.glob(pattern)]
    names = [name.removesuffix(".py").replace("/", ".") for name in files if is_seam(name) and "__init__" not in name]
    assert [name for name in names if not any(fnmatch(name, pattern) for pattern in patterns)] == []


def test_everybody_uses_the_protocol(modules) -> None:
    """Both backends and the registry import the protocols of backends; nobody imports a backend by name beside it."""
    users = {
        module.name
        for module in modules
        if module.in_room
        for node in module.nodes
        if isinstance(node, ast.ImportFrom) and node.module in {"backends.protocol", "backends.execution.protocol"}
    }
    assert {"backends/registry.py", "backends/simulated.py", "backends/torch/backend.py"} <= users
    loaders = {
        module.name
        for module in modules
        if module.in_room and not module.name.startswith("backends/torch/")
        for node in module.nodes
        if isinstance(node, ast.ImportFrom) and node.module in {"backends.torch.backend", "backends.torch.session"}
    }
    assert loaders == set()


@pytest.mark.parametrize(
    ("protocol", "implementation"),
    [(Backend, SimulatedBackend), (Session, SimulatedSession)],
)
def test_what_a_protocol_asks_for_is_there(protocol: type, implementation: type) -> None:
    """Each public name of a protocol is an attribute of what implements it, with the same parameters."""
    names = [name for name in vars(protocol) if not name.startswith("_")]
    assert names
    for name in names:
        asked, given = inspect.getattr_static(protocol, name), inspect.getattr_static(implementation, name)
        if inspect.isfunction(asked):
            assert list(inspect.signature(asked).parameters) == list(inspect.signature(given).parameters), name


def test_the_torch_library_is_asked_for_by_its_protocol() -> None:
    """What executes is a backend like the simulated one, and says what it can beside."""
    assert set(vars(Backend)) & {"session", "run"} == {"session", "run"}
    assert {"execute", "timeline"} <= set(vars(ExecutingBackend))
    assert {"backend", "measure", "copy_bandwidths"} <= set(vars(TorchLibrary))
