"""Imports run downward only: the contracts of pyproject.toml hold, and each fails where it is broken."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOMS = ("scenarios", "backends", "sim", "costmodels", "traces")
LINT = "from importlinter.cli import lint_imports_command; lint_imports_command()"

OFFENCES = [
    ("costmodels/units.py", "sim.plan.words.op", "Rooms import downward only"),
    ("costmodels/units.py", "traces.timeline", "Rooms import downward only"),
    ("sim/plan/words/mesh.py", "backends.protocol", "Rooms import downward only"),
    ("backends/protocol.py", "scenarios.workloads.loading", "Rooms import downward only"),
    ("sim/plan/words/mesh.py", "sim.training.spec.job", "Inside sim"),
    ("sim/engine/prices/activity.py", "sim.training.spec.job", "Inside sim"),
    ("sim/training/spec/job.py", "sim.engine.prices.activity", "Inside sim"),
    ("sim/reliability/spec.py", "sim.training.spec.job", "Inside sim"),
    ("sim/plan/words/mesh.py", "simpy", "Only the rooms where time passes know SimPy"),
    ("traces/timeline.py", "simpy", "Only the rooms where time passes know SimPy"),
    ("sim/engine/prices/activity.py", "torch", "Only the torch backend knows torch"),
    ("scenarios/workloads/steps/running.py", "torch", "Only the torch backend knows torch"),
    ("backends/simulated.py", "torch", "Only the torch backend knows torch"),
    ("scenarios/console/answer.py", "backends.torch.session", "Only the torch backend knows torch"),
    ("sim/plan/words/mesh.py", "sim.plan.checking.check", "Folders and files form no circle"),
    ("sim/plan/words/mesh.py", "sim.plan.functions.basic", "Inside the plan"),
    ("sim/engine/prices/activity.py", "sim.engine.running.loop", "Inside the engine"),
    ("scenarios/workloads/textbook/schema.py", "scenarios.workloads.training.schema", "Kinds of work"),
    ("scenarios/workloads/steps/row.py", "scenarios.workloads.registry", "Kinds of work"),
]
CONTRACTS = {contract for _, _, contract in OFFENCES}


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory, root: Path) -> Path:
    """Return a copy of the packages and their contracts, to break."""
    copy = tmp_path_factory.mktemp("house")
    for room in ROOMS:
        shutil.copytree(root / room, copy / room, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(root / "pyproject.toml", copy)
    return copy


def lint(folder: Path) -> tuple[int, str]:
    """Return exit code and words of import-linter in a folder."""
    command = [sys.executable, "-c", LINT, "--no-cache", "--config", "pyproject.toml"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def test_contracts_hold(root: Path) -> None:
    """The layers of the rooms, and who may know SimPy and torch, are kept."""
    code, words = lint(root)
    assert code == 0, words
    assert "0 broken" in words


def test_contracts_fail_where_they_are_broken(house: Path) -> None:
    """Each forbidden import is named, and breaks the contract that forbids it; one run finds all of them."""
    for file, imported, _ in OFFENCES:
        with (house / file).open("a", encoding="utf-8") as module:
            module.write(f"\nimport {imported}\n")
    code, words = lint(house)
    assert code == 1, words
    broken = [line.removesuffix(" BROKEN") for line in words.splitlines() if line.endswith(" BROKEN")]
    assert {contract for _, _, contract in OFFENCES} == {name for name in CONTRACTS if name in "\n".join(broken)}
    for file, imported, contract in OFFENCES:
        importer = file.removesuffix(".py").replace("/", ".")
        told = words.split("Broken contracts")[1].split(f"\n{contract}")[1].split("\n----")[1]
        assert f"{importer} -> {imported}" in told or contract.startswith("Folders"), (importer, imported, told)
