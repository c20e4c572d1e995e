"""Sweeps on a Dask cluster: the answer of local processes, lost workers, and what is wrong with a cluster."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from scenarios.errors import Origin, ScenarioError
from scenarios.library.shipped import FOLDER
from scenarios.sweep import workers
from scenarios.sweep.kept import KEPT, kept_points
from scenarios.sweep.point import Measured
from scenarios.sweep.run import Job, prepare, run
from scenarios.sweep.settings import read_settings
from scenarios.sweep.workers import local_workers, workers_at

distributed = pytest.importorskip("distributed", reason="the extra cluster is not installed")
dask_workers = pytest.importorskip("scenarios.sweep.dask_workers")

WORKER = [sys.executable, "-m", "distributed.cli.dask_worker", "--nthreads", "1", "--no-nanny", "--no-dashboard"]


def textbook() -> Job:
    """The points of a textbook sweep; some are refused."""
    options = ("training.num_microbatches=2,3,4,5,6", "parallel.pipeline.schedule=1f1b,interleaved_1f1b")
    return prepare(FOLDER / "textbook-1f1b.yaml", read_settings(options))


@pytest.fixture
def cluster() -> Iterator[Any]:
    """A scheduler in this process, without workers."""
    here = {"processes": False, "protocol": "tcp://", "host": "127.0.0.1", "dashboard_address": ":0"}
    with distributed.LocalCluster(n_workers=0, threads_per_worker=1, **here) as found:
        yield found


@contextmanager
def worker_process(address: str) -> Iterator["subprocess.Popen[bytes]"]:
    """Yield a worker in a process of its own."""
    process = subprocess.Popen([*WORKER, address], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_a_worker_that_is_killed_costs_no_point(cluster: Any, tmp_path: Path) -> None:
    """The only worker is killed with most points on it; another one comes, and every point is kept exactly once."""
    job, killed, seen = textbook(), Event(), list[int]()

    def replace() -> None:
        killed.wait()
        cluster.scale(1)

    thread = Thread(target=replace)
    thread.start()
    address = cluster.scheduler_address
    with worker_process(address) as process, kept_points(tmp_path, job) as kept:

        def keep(index: int, outcome: Measured | str) -> None:
            kept.add(index, outcome)
            seen.append(index)
            if len(seen) == 2:
                process.kill()
                killed.set()

        with answering_within(60.0):
            found = run(job, workers_at(address), 1, tick=lambda: None, keep=keep)
    thread.join()
    assert process.returncode == -9
    lines = (tmp_path / KEPT).read_text(encoding="utf-8").splitlines()
    assert sorted(json.loads(line)["index"] for line in lines[1:]) == [point.index for point, _ in job.points]
    assert found.as_json() == run(textbook(), local_workers, 1, tick=lambda: None).as_json()


@contextmanager
def answering_within(seconds: float) -> Iterator[None]:
    """Give a cluster other seconds to answer."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dask_workers, "_ANSWER_S", seconds)
        yield


def test_what_is_wrong_with_a_cluster_is_said(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody at the address, no worker, another number of processes, no Dask: one error with a remedy."""
    with answering_within(0.2):
        with pytest.raises(ScenarioError, match=r"(?s)--scheduler tcp://127\.0\.0\.1:1: no Dask .*dask scheduler"):
            workers_at("tcp://127.0.0.1:1")(1).__enter__()
        with pytest.raises(ScenarioError, match=r"(?s)no workers.*dask worker"):
            workers_at(cluster.scheduler_address)(1).__enter__()
    with pytest.raises(ScenarioError, match=r"(?s)--jobs asks for local processes.*leave one"):
        workers_at("tcp://127.0.0.1:1", 2)
    monkeypatch.setattr(workers, "find_spec", lambda _: None)
    with pytest.raises(ScenarioError, match=r"(?s)Dask is not installed.*pip install"):
        workers_at("tcp://127.0.0.1:1")


class Client:
    """A client whose workers answer with some version of the program."""

    def __init__(self, there: object) -> None:
        self.there = there

    def wait_for_workers(self, *_: object, **__: object) -> None:
        """Return at once."""

    def run(self, *_: object, **__: object) -> dict[str, object]:
        """Return the version on the only worker."""
        return {"tcp://far:1": self.there}


@pytest.mark.parametrize(("there", "words"), [("0.0.0", "has meshtwin 0.0.0"), (ImportError(), "has no meshtwin")])
def test_workers_have_the_same_version(there: object, words: str) -> None:
    """Another version may find other numbers: it is refused, with the worker's address."""
    with pytest.raises(ScenarioError, match=f"the worker tcp://far:1 {words}"):
        dask_workers._refuse_unfit(Client(there), Origin())
