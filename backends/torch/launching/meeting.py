"""Startup of a running job's processes, and detection of a process that does not answer.

Each process has its own connection to the job's store, and a thread that writes a heartbeat there. Rank 0 checks the
heartbeats of all other ranks. The other ranks check the heartbeat of rank 0. A process that notices silence reports it
in the store, and all processes end.
"""

import os
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from threading import Event, Thread
from types import TracebackType
from typing import Final, Self

from torch.distributed import Store  # type: ignore[attr-defined]

from backends.execution.errors import ExecutionError, JobError, RankError
from backends.execution.silence import LOOK_S, Silence, silent_ranks
from backends.torch.launching.environment import JobMember, refuse_unknown_address
from backends.torch.launching.store import joined_store, served_store

_ALL_HERE: Final = "meshtwin/all here"
_VERDICT: Final = "meshtwin/verdict"
_LEFT: Final = b"left"
_LINGER_S: Final = 3 * LOOK_S
"""Time that rank 0, which may serve the store, waits before it ends, so that other ranks can read the reason."""
_POLL_S: Final = 0.1
_STORE_TIMEOUT_S: Final = 30.0


class Meeting:
    """The presence of all processes of a running job: a context that watches them while they work.

        with Meeting(member, timeout_s=45.0):
            ...  # join the process group, and work

    Entering waits for all processes. It raises JobError if MASTER_ADDR or MASTER_PORT cannot be used, or if two
    processes have the same rank. It raises RankError with the ranks that have not come in time.
    Inside the context, if a process does not answer for ``timeout_s``, all other processes end and print its rank on
    standard error. They end because a thread that waits in a collective cannot raise.
    """

    def __init__(self, member: JobMember, timeout_s: float) -> None:
        self._member = member
        self._timeout_s = timeout_s
        others = range(1, member.size) if member.rank == 0 else range(min(member.size - 1, 1))
        self._watched = list(others)
        self._silence = Silence[int | None]([*self._watched, None], timeout_s)
        """By watched rank; None stands for the store."""
        self._arrived = Event()
        self._leaving = Event()
        self._left = Event()
        self._problem: ExecutionError | None = None
        self._verdict = ""
        self._failed = False
        self._server: Store | None = None

    def __enter__(self) -> Self:
        member = self._member
        refuse_unknown_address(member)
        if member.serves_store:
            self._server = self._served()
        deadline_s = time.monotonic() + self._timeout_s
        Thread(target=self._talk, args=(deadline_s,), name="beat", daemon=True).start()
        if not self._arrived.wait(self._timeout_s + 2 * LOOK_S):  # the server accepts connections and never answers
            raise RankError(self._nobody())
        if self._problem is not None:
            time.sleep(_LINGER_S if self._verdict else 0.0)
            raise self._problem
        Thread(target=self._judge, name="silence", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._failed = error is not None
        self._leaving.set()
        self._left.wait(_LINGER_S)

    def _served(self) -> Store:
        try:
            return served_store(self._member.port)[0]
        except RuntimeError as error:
            rule = f"rank 0 cannot listen on this port: {str(error).rpartition('message: ')[2]}"
            raise JobError("MASTER_PORT", str(self._member.port), rule, "give all processes another one") from error

    # --- the thread that talks to the store ----------------------------------------------------------------

    def _talk(self, deadline_s: float) -> None:
        try:
            store = self._connected(deadline_s)
            self._arrive(store, deadline_s)
        except ExecutionError as error:
            self._problem = error
            return
        except Exception as error:  # an error of the store must be reported
            self._problem = RankError(f"{self._nobody()} ({type(error).__name__}: {error})")
            return
        finally:
            self._arrived.set()
        with suppress(RuntimeError):  # the store is gone, and ``_judge`` notices its silence
            self._beat(store)

    def _connected(self, deadline_s: float) -> Store:
        """Return a connection to the store, as soon as a process serves the store."""
        member = self._member
        while True:
            try:
                socket.create_connection((member.address, member.port), timeout=LOOK_S).close()
                break
            except OSError as error:
                if time.monotonic() >= deadline_s:
                    raise RankError(self._nobody()) from error
                time.sleep(_POLL_S)
        return joined_store(member.address, member.port, _STORE_TIMEOUT_S)

    def _arrive(self, store: Store, deadline_s: float) -> None:
        """Wait until all ranks have come. Raises JobError for a rank that came twice, RankError for missing ranks."""
        rank = self._member.rank
        if store.add(f"meshtwin/came/{rank}", 1) > 1:
            rule = "another process of the job has this rank"
            raise JobError("RANK", str(rank), rule, "give every process a rank of its own, as torchrun does")
        store.set(_beat_of(rank), "0")
        while not store.check([_ALL_HERE]):
            if store.check([_VERDICT]):
                raise RankError(store.get(_VERDICT).decode())
            if rank == 0 and all(store.check([_beat_of(other)]) for other in self._watched):
                store.set(_ALL_HERE, "yes")
            elif time.monotonic() >= deadline_s + (0 if rank == 0 else LOOK_S):
                missing = [other for other in range(self._member.size) if not store.check([_beat_of(other)])]
                words = _missing(missing, self._timeout_s)
                if rank == 0:
                    self._verdict = words
                    store.set(_VERDICT, words)
                raise RankError(words)
            time.sleep(_POLL_S)

    def _beat(self, store: Store) -> None:
        """Write this process's heartbeat and read the heartbeats of the watched ranks, until this process leaves."""
        keys = [_beat_of(rank) for rank in self._watched]
        last: list[bytes] = []
        beats = 0
        while not self._leaving.wait(LOOK_S):
            beats += 1
            store.set(_beat_of(self._member.rank), str(beats))
            found = store.multi_get(keys) if keys else []
            for rank, beat, before in zip(self._watched, found, last or [b""] * len(found), strict=True):
                if beat != before or beat == _LEFT:
                    self._silence.hear(rank)
            last = found
            self._silence.hear(None)
            if self._verdict:
                store.set(_VERDICT, self._verdict)
            elif store.check([_VERDICT]):
                self._end(store.get(_VERDICT).decode())
        store.set(_beat_of(self._member.rank), _LEFT.decode())
        while keys and self._member.serves_store and not self._failed and set(store.multi_get(keys)) != {_LEFT}:
            time.sleep(_POLL_S)  # other ranks still use the store that this process serves
        self._left.set()

    # --- the thread that judges ----------------------------------------------------------------------------

    def _judge(self) -> None:
        while not self._leaving.wait(LOOK_S):
            silent = self._silence.look()
            if ranks := [rank for rank in silent if rank is not None]:
                self._verdict = silent_ranks(ranks, self._timeout_s)
                self._leaving.wait(_LINGER_S)  # meanwhile the other ranks read the verdict
                self._end(self._verdict)
            elif silent:
                self._end(self._nobody())

    def _end(self, words: str) -> None:
        """End this process, whose main thread waits in a collective for a process that does not answer."""
        if not self._leaving.is_set():
            with suppress(OSError):
                os.write(2, f"error: {words}\n".encode())
            os._exit(1)

    def _nobody(self) -> str:
        return (
            f"{self._member.server} has not answered rank {self._member.rank} for {self._timeout_s:g} s;\n"
            "    look whether it runs and the port can be reached; simulate execute --timeout allows more time"
        )


def _beat_of(rank: int) -> str:
    return f"meshtwin/beat/{rank}"


def _missing(ranks: Sequence[int], timeout_s: float) -> str:
    who = f"rank {ranks[0]} has" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))} have"
    return (
        f"{who} not come within {timeout_s:g} s;\n"
        "    start a process for each rank of the job; simulate execute --timeout allows more time"
    )
