"""Processes of a running job meet in time or say who is missing, and notice who does not answer."""

import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from torch.distributed import Store

from backends.execution.errors import ExecutionError, JobError, RankError
from backends.execution.silence import Silence
from backends.torch.launching.environment import JobMember
from backends.torch.launching.meeting import Meeting
from tests.processes import BOUND_S, ended, first_line, started

STEPS_FOR_LONG = """
from backends.torch.launching import joined
from backends.torch.session import execute
from backends.execution.request import ExecutionRequest
from tests.backends.plans import textbook_plan

class Meeting(joined.Meeting):
    def __enter__(self):
        super().__enter__()
        print("begins", flush=True)

joined.Meeting = Meeting
execute([ExecutionRequest(plan=textbook_plan(0.01, ranks=2), iterations=100_000)], timeout_s=10.0)
"""


@contextmanager
def free_port() -> Iterator[int]:
    """Yield a port that nobody listens on."""
    with socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]
    yield int(port)


def place(rank: int, size: int, port: int) -> JobMember:
    """Return a place in a job on this machine, of which rank 0 serves the store."""
    return JobMember(
        rank=rank, size=size, local_rank=0, local_size=None, address="localhost", port=port, launcher_serves=False
    )


def met(rank: int, size: int, port: int, timeout_s: float = 1.0) -> None:
    """Meet and part again."""
    with Meeting(place(rank, size, port), timeout_s):
        pass


def test_silence_is_counted_in_looks() -> None:
    """Who is heard between looks is never silent; who is not, after the limit; who is forgotten, no more."""
    silence = Silence("abc", 3.0)
    for _ in range(2):
        assert silence.look() == []
        silence.hear("a")
        silence.hear("nobody")
    assert silence.look() == ["b", "c"]
    silence.forget("b")
    silence.hear("c")
    assert [silence.look() for _ in range(3)] == [[], ["a"], ["a", "c"]]


def test_all_meet_and_part() -> None:
    """Two processes that come at different times go on together."""
    with free_port() as port, ThreadPoolExecutor() as pool:
        late: Future[None] = pool.submit(met, 1, 2, port, 20.0)
        time.sleep(0.3)
        met(0, 2, port, 20.0)
        late.result()


def test_missing_ranks_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that have come hear in time who has not."""
    monkeypatch.setattr("backends.torch.launching.meeting._LINGER_S", 0.5)
    with free_port() as port, ThreadPoolExecutor() as pool:
        found = [pool.submit(met, rank, 4, port) for rank in (0, 2)]
        for future in found:
            with pytest.raises(RankError, match=r"^ranks 1, 3 have not come within 1 s;"):
                future.result()


def test_a_rank_that_comes_twice_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes with the same RANK are not let in."""
    monkeypatch.setattr("backends.torch.launching.meeting._LINGER_S", 0.5)
    with free_port() as port, ThreadPoolExecutor() as pool:
        found = [pool.submit(met, rank, 3, port) for rank in (0, 1, 1)]
        errors = [future.exception() for future in found]
    assert sorted(type(error).__name__ for error in errors) == ["JobError", "RankError", "RankError"]
    assert any("RANK=1: another process of the job has this rank" in str(error) for error in errors)


@pytest.mark.parametrize(("rank", "error"), [(0, JobError), (1, RankError)])
def test_a_port_of_somebody_else_is_refused(rank: int, error: type[ExecutionError]) -> None:
    """Rank 0 cannot serve there, which its port says; the others get no answer, however long the other one listens."""
    words = {
        0: r"^MASTER_PORT=\d+: rank 0 cannot listen on this port: address already in use;",
        1: r"^rank 0 at localhost:\d+ \(MASTER_ADDR, MASTER_PORT\) has not answered rank 1 for 1 s;",
    }
    with socket.create_server(("", 0)) as server, pytest.raises(error, match=words[rank]):
        met(rank, 2, server.getsockname()[1])


class Mortal(Meeting):
    """A meeting whose process is not ended: what it would say is kept. Rank 2 stops to beat."""

    def __init__(self, member: JobMember, timeout_s: float) -> None:
        super().__init__(member, timeout_s)
        self.last_words = ""

    def _beat(self, store: Store) -> None:
        if self._member.rank != 2:
            super()._beat(store)

    def _end(self, words: str) -> None:
        self.last_words = words
        self._leaving.set()

    def lived(self) -> str:
        """Return what ended it."""
        with self:
            self._leaving.wait(BOUND_S)
        return self.last_words


def test_all_hear_who_does_not_answer() -> None:
    """Rank 0 finds who is silent, and says so to those that do not look."""
    with free_port() as port, ThreadPoolExecutor() as pool:
        found = [pool.submit(Mortal(place(rank, 3, port), 4.0).lived) for rank in range(3)]
        words = [future.result() for future in found]
    assert all(each.startswith("rank 2 has not answered for 4 s") for each in words[:2])


def test_a_stopped_rank_of_a_running_job_ends_it() -> None:
    """Without a launcher of ours, and with the store in the process that is stopped, the other rank ends in time."""
    job = {"WORLD_SIZE": "2", "MASTER_ADDR": "localhost"}
    with free_port() as port, started(STEPS_FOR_LONG, RANK="0", MASTER_PORT=str(port), **job) as stopped:
        with started(STEPS_FOR_LONG, RANK="1", MASTER_PORT=str(port), **job) as other:
            assert first_line(other) == "begins"
            time.sleep(1.0)
            stopped.send_signal(signal.SIGSTOP)
            error = ended(other, bound_s=60.0)
            assert other.returncode == 1
        assert "rank 0 has not answered for 10 s" in error
