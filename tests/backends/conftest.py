"""Shared runs: one launch of four processes, and one of eight, serve all tests, also under pytest-xdist."""

import os
import pickle
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from pathlib import Path

import pytest
import torch

from backends.execution.request import ExecutionRequest
from backends.execution.result import Execution
from backends.torch.reference.references import References
from backends.torch.session import execute
from tests.backends.drawn_once import values_drawn_once
from tests.backends.mesh_runs import wide_requests, wide_requests_in_one_process
from tests.backends.one_process import CPU, execute_in_one_process
from tests.backends.runs import one_process_requests, process_requests

_PATIENCE_S = 300


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests of runs first, those of one run together.

    One test process begins with them, the others have all else to do meanwhile.
    """
    items.sort(key=_place)


def _place(item: pytest.Item) -> tuple[bool, str]:
    others = {"results", "wide_results"}.isdisjoint(getattr(item, "fixturenames", ()))
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    return others, "" if others else str(parameters.get("name", ""))


class Runs(Mapping[str, Execution]):
    """Runs by name: those on processes, and those with all ranks in this process, which run when they are asked for.

    It keeps the last of these, since the tests of one run come one after the other.
    """

    def __init__(
        self,
        on_processes: Mapping[str, Execution],
        here: Mapping[str, Callable[[], ExecutionRequest]],
        references: References,
    ) -> None:
        self._on_processes, self._here, self._references = on_processes, here, references
        self._last: tuple[str, Execution] | None = None

    def __getitem__(self, name: str) -> Execution:
        if name in self._on_processes:
            return self._on_processes[name]
        if self._last is None or self._last[0] != name:
            self._last = name, execute_in_one_process(self._here[name](), self._references)
        return self._last[1]

    def __iter__(self) -> Iterator[str]:
        return chain(self._on_processes, self._here)

    def __len__(self) -> int:
        return len(self._on_processes) + len(self._here)


@pytest.fixture(scope="session", autouse=True)
def _draw_once() -> Iterator[None]:
    """Draw equal random values once: hashing them took a third of the time of a run in this process."""
    with values_drawn_once():
        yield


@pytest.fixture(scope="session")
def references() -> References:
    """Return the dense runs that tests have needed so far: plans of equal models share one."""
    return References(CPU)


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory, references: References) -> Mapping[str, Execution]:
    """Return all runs of ``tests.backends.runs``; of several test processes one starts those on processes for all."""
    return Runs(_shared(tmp_path_factory, "executions", process_requests), one_process_requests(), references)


@pytest.fixture(scope="session")
def wide_results(tmp_path_factory: pytest.TempPathFactory, references: References) -> Mapping[str, Execution]:
    """Return the runs of ``tests.backends.mesh_runs`` on eight ranks."""
    return Runs(_shared(tmp_path_factory, "wide", wide_requests), wide_requests_in_one_process(), references)


Requests = Callable[[], Mapping[str, ExecutionRequest]]


def _shared(tmp_path_factory: pytest.TempPathFactory, name: str, requests: Requests) -> dict[str, Execution]:
    """Return the results of some requests; of several test processes one runs them for all."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    path = folder / f"{name}.pickle"
    try:
        path.with_suffix(".lock").touch(exist_ok=False)
    except FileExistsError:
        return _awaited(path)
    _run_into(path, requests)
    return _awaited(path)


def _run_into(path: Path, make: Requests) -> None:
    outcome: dict[str, Execution] | Exception
    try:
        requests = make()
        outcome = dict(zip(requests, execute(list(requests.values()), timeout_s=60.0) or [], strict=True))
    except Exception as error:  # it is raised by whoever asks for the results
        outcome = error
    temporary = path.with_suffix(".part")
    temporary.write_bytes(pickle.dumps(outcome))
    temporary.rename(path)


def _awaited(path: Path) -> dict[str, Execution]:
    deadline_s = time.monotonic() + _PATIENCE_S
    while not path.exists():
        if time.monotonic() > deadline_s:
            pytest.fail("nobody finished the real runs")
        time.sleep(0.1)
    outcome = pickle.loads(path.read_bytes())
    if isinstance(outcome, Exception):
        raise outcome
    assert isinstance(outcome, dict)
    return outcome


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Let torch compute on one thread: for such small tensors a team of threads is mostly waiting."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
