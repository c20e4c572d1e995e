"""What all tests share."""

import gc
import os
import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from sim.engine.running.collector import collector_paused
from tests.examples import examples

for threads in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):  # numpy and torch read them when they are imported
    os.environ.setdefault(threads, "1")  # teams of threads on tiny arrays wait for each other more than they compute

settings.register_profile(
    "meshtwin",
    max_examples=examples(40),
    deadline=None,  # a busy machine must not fail a test
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)
settings.load_profile("meshtwin")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the cycle collector waiting while modules are imported and tests are found: all of them stay."""
    with collector_paused():
        return (yield)


def pytest_collection_finish() -> None:
    """Take all modules and tests out of the cycle collector's sight: they live to the end."""
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _compile_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Let started processes share compiled files where Python may not write them beside the sources.

    Each of them would else compile all sources again, a second of processor time. Started processes inherit this.
    """
    if not sys.dont_write_bytecode:
        yield
        return
    folder = tmp_path_factory.getbasetemp()
    shared = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
        patch.setenv("PYTHONPYCACHEPREFIX", str(shared / "compiled"))
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Generator[None, object, object]:
    """Let the cycle collector run between tests only: inside one it walks a simulation's live objects for nothing."""
    with collector_paused():
        return (yield)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Return the folder of shared measurements; skip where there is none."""
    default = Path(__file__).resolve().parents[1].parent / "shared"
    folder = Path(os.environ.get("MESHTWIN_SHARED", default)) / "data"
    if not folder.is_dir():
        pytest.skip(f"no shared measurements at {folder} (set MESHTWIN_SHARED)")
    return folder
