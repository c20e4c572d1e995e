"""Shared real runs: one launch of four processes serves all tests, also under pytest-xdist."""

import os
import pickle
import time
from pathlib import Path

import pytest

from backends.torch.launch import Execution, execute
from backends.torch.worker import ExecutionRequest
from tests.backends.jobs import Executed

_PATIENCE_S = 300


@pytest.fixture(scope="session")
def executed(tmp_path_factory: pytest.TempPathFactory) -> Executed:
    """Return a function that runs a set of requests once per test session."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent

    def run(name: str, requests: dict[str, ExecutionRequest]) -> dict[str, Execution]:
        path = folder / f"{name}.pickle"
        try:
            path.with_suffix(".lock").touch(exist_ok=False)
        except FileExistsError:
            return _awaited(path)
        _run_into(path, requests)
        return _awaited(path)

    return run


def _run_into(path: Path, requests: dict[str, ExecutionRequest]) -> None:
    outcome: list[Execution] | Exception | None
    try:
        outcome = execute(list(requests.values()), timeout_s=60.0)
    except Exception as error:  # it is raised by whoever asks for the results
        outcome = error
    named = dict(zip(requests, outcome, strict=True)) if isinstance(outcome, list) else outcome
    temporary = path.with_suffix(".part")
    temporary.write_bytes(pickle.dumps(named))
    temporary.rename(path)


def _awaited(path: Path) -> dict[str, Execution]:
    deadline_s = time.monotonic() + _PATIENCE_S
    while not path.exists():
        if time.monotonic() > deadline_s:
            pytest.fail(f"nobody finished {path.stem}")
        time.sleep(0.1)
    outcome = pickle.loads(path.read_bytes())
    if isinstance(outcome, Exception):
        raise outcome
    assert isinstance(outcome, dict)
    return outcome
