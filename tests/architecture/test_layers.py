"""Imports run downward only: the contracts of pyproject.toml hold, and each fails where it is broken."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOMS = ("scenarios", "backends", "sim", "costmodels", "traces")
LINT = "from importlinter.cli import lint_imports_command; lint_imports_command()"

OFFENCES = [
    ("costmodels/units.py", "import sim.plan.words.op", "Rooms import downward only"),
    ("costmodels/units.py", "import traces.timeline", "Rooms import downward only"),
    ("sim/plan/words/mesh.py", "import backends.protocol", "Rooms import downward only"),
    ("backends/protocol.py", "import scenarios.workloads.loading", "Rooms import downward only"),
    ("sim/plan/words/mesh.py", "import sim.training.spec.job", "Inside sim"),
    ("sim/engine/prices/activity.py", "import sim.training.spec.job", "Inside sim"),
    ("sim/training/spec/job.py", "import sim.engine.prices.activity", "Inside sim"),
    ("sim/reliability/spec.py", "import sim.training.spec.job", "Inside sim"),
    ("sim/plan/words/mesh.py", "import simpy", "Only the rooms where time passes know SimPy"),
    ("traces/timeline.py", "import simpy", "Only the rooms where time passes know SimPy"),
    ("sim/engine/prices/activity.py", "import torch", "Only the torch backend knows torch"),
    ("scenarios/workloads/steps/running.py", "import torch", "Only the torch backend knows torch"),
    ("backends/simulated.py", "import torch", "Only the torch backend knows torch"),
    ("scenarios/console/answer.py", "import backends.torch.session", "Only the torch backend knows torch"),
    ("sim/plan/words/mesh.py", "import sim.plan.checking.check", "Folders and files form no circle"),
]


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


@pytest.mark.parametrize(("file", "offence", "contract"), OFFENCES)
def test_contract_fails_where_it_is_broken(house: Path, file: str, offence: str, contract: str) -> None:
    """One forbidden import breaks the contract that forbids it."""
    path = house / file
    text = path.read_text(encoding="utf-8")
    path.write_text(text + f"\n{offence}\n", encoding="utf-8")
    try:
        code, words = lint(house)
    finally:
        path.write_text(text, encoding="utf-8")
    assert code == 1, words
    assert [line for line in words.splitlines() if line.startswith(contract) and line.endswith("BROKEN")], words
