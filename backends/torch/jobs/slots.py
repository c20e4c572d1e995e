"""The slots of a live cluster: a process of this machine each. One that ends is started again."""

from collections.abc import Sequence
from contextlib import ExitStack, suppress
from itertools import count
from queue import Empty, SimpleQueue
from threading import Thread
from types import TracebackType
from typing import Self

from backends.processes import LocalProcess, local_processes
from backends.torch.jobs.messages import Order, Report
from backends.torch.jobs.worker import serve_slot
from backends.torch.launching.store import served_store


class Gone:
    """The process of a slot has ended; another one is there now, without jobs."""


class Slots:
    """Processes that hold workers of jobs.

    with Slots(4, check=False, timeout_s=45.0) as slots:
        slots.tell(0, Prepare(...))
        slot, report = slots.hear(1.0)
    """

    def __init__(self, num_slots: int, *, check: bool, timeout_s: float) -> None:
        self.num_ended = 0
        self.meetings = count(1)
        """Numbers of hand-overs: workers meet under a new one each time."""
        self._num_slots, self._check, self._timeout_s = num_slots, check, timeout_s
        self._inbox: SimpleQueue[tuple[int, Report | Gone]] = SimpleQueue()
        self._started = ExitStack()
        self._processes: list[LocalProcess] = []
        self._port = 0

    def __enter__(self) -> Self:
        store, self._port = served_store()
        self._started.callback(lambda: (store, None)[1])  # it serves until all processes are gone
        found = self._started.enter_context(local_processes(self._num_slots, imported=[serve_slot.__module__]))
        self._processes = list(found)
        for slot in range(self._num_slots):
            self._begin(slot)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._started.__exit__(kind, error, trace)

    def tell(self, slots: Sequence[int], order: Order) -> None:
        """Tell some slots the same; one that is gone will be heard of."""
        for slot in slots:
            with suppress(EOFError):
                self._processes[slot].line.send(order)

    def hear(self, timeout_s: float) -> tuple[int, Report | Gone] | None:
        """Return a slot and what it says; None if nothing comes in time."""
        try:
            slot, report = self._inbox.get(timeout=max(0.0, timeout_s))
        except Empty:
            return None
        if isinstance(report, Gone):
            self.num_ended += 1
            self._processes[slot] = self._started.enter_context(local_processes(1, imported=[serve_slot.__module__]))[0]
            self._begin(slot)
        return slot, report

    def _begin(self, slot: int) -> None:
        process = self._processes[slot]
        process.begin(serve_slot, slot, self._port, self._check, self._timeout_s)
        Thread(target=self._listen, args=(slot, process), name=f"slot {slot}", daemon=True).start()

    def _listen(self, slot: int, process: LocalProcess) -> None:
        """Pass on what a process says until it ends."""
        try:
            while True:
                self._inbox.put((slot, process.line.receive()))
        except EOFError:
            self._inbox.put((slot, Gone()))
