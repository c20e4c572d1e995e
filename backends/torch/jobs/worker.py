"""The process of a slot: it holds a worker, a thread, for each job that is there, comes or goes.

A worker keeps its job's state in memory from one group of slots to the next: state reaches new slots by a broadcast
over the old and the new ones, and a file only where all slots are taken away, and after each epoch.
"""

import os
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from queue import SimpleQueue
from threading import Event, Thread
from time import monotonic

import torch
import torch.distributed as dist
from torch import Tensor

from backends.processes import Line
from backends.torch.jobs.messages import (
    Abandon,
    Broken,
    EpochDone,
    Finished,
    HandOver,
    Pause,
    Paused,
    Prepare,
    Ready,
    Released,
    Repeat,
    Repeated,
    Running,
)
from backends.torch.jobs.replay import compared
from backends.torch.jobs.training import JobTraining
from backends.torch.launching.store import joined_store

SAVED = "saved.pt"
"""The file of a job's state, in the folder of the job."""


class Group:
    """The slots of a job, or those between which its state goes; one slot alone talks to nobody."""

    def __init__(self, port: int, name: str, slots: tuple[int, ...], slot: int, timeout_s: float) -> None:
        self.rank, self.size = slots.index(slot), len(slots)
        self._gloo: dist.ProcessGroup | None = None
        if self.size > 1:
            store = dist.PrefixStore(name, joined_store("localhost", port, timeout_s))  # type: ignore[attr-defined]
            limit = timedelta(seconds=timeout_s)
            self._gloo = dist.ProcessGroupGloo(store, self.rank, self.size, limit)  # type: ignore[assignment]

    def add_up(self, tensor: Tensor) -> None:
        """Add a tensor up over all ranks, in place."""
        if self._gloo is not None:
            self._gloo.allreduce([tensor]).wait()

    def broadcast(self, state: bytes) -> bytes:
        """Return the bytes of rank 0."""
        if self._gloo is None:
            return state
        size = torch.tensor([len(state)])
        self._gloo.broadcast(size, 0).wait()
        content = torch.frombuffer(
            bytearray(state.ljust(int(size)) if self.rank == 0 else int(size)), dtype=torch.uint8
        )
        self._gloo.broadcast(content, 0).wait()
        return content.numpy().tobytes()


class Worker(Thread):
    """A job on one slot."""

    def __init__(self, line: Line, slot: int, port: int, order: Prepare, *, check: bool, timeout_s: float) -> None:
        super().__init__(name=f"job {order.job}", daemon=True)
        self.orders: SimpleQueue[HandOver | Abandon] = SimpleQueue()
        self.pause = Event()
        self._line, self._slot, self._port, self._order = line, slot, port, order
        self._timeout_s = timeout_s
        self._dtype = torch.float64 if check else torch.float32
        self._saved = Path(order.folder) / SAVED
        self._reported = 0, 0.0
        """Position and instant of the last report."""

    def run(self) -> None:
        """Train until the job is done or leaves the slot; then the process of the slot still holds other jobs."""
        with suppress(EOFError):
            try:
                self._line.send(self._work())
            except (
                Exception
            ) as error:  # of torch, where another worker is gone; whatever it is, the controller must know
                self._line.send(Broken(self._order.job, f"slot {self._slot}: {type(error).__name__}: {error}"))

    def _work(self) -> Released | Finished:
        training = JobTraining(self._order.training, self._dtype)
        self._line.send(Ready(self._order.job))
        while True:
            order = self.orders.get()
            if isinstance(order, Abandon):
                return Released(order.job)
            self._hand_over(training, order)
            if self._slot not in order.new:
                return Released(order.job)
            group = self._group(order, "train", order.new)
            training.rescale(group.size)
            self._line.send(Running(order.job, training.position, training.digest()))
            if self._train(training, group):
                first = group.rank == 0
                steps, parameters = (tuple(training.steps), training.flat_parameters()) if first else ((), ())
                return Finished(order.job, training.digest(), steps, parameters)
            self._line.send(Paused(order.job, training.position))

    def _group(self, order: HandOver, name: str, slots: tuple[int, ...]) -> Group:
        return Group(self._port, f"{order.meeting} {name}", slots, self._slot, self._timeout_s)

    def _hand_over(self, training: JobTraining, order: HandOver) -> None:
        """Bring the state to the slots that lack it: from the first old one, at a start from what was saved."""
        joining = [slot for slot in order.new if slot not in order.old]
        first = (*order.old, *order.new)[0]
        if not order.old and self._slot == first and self._saved.exists():
            training.take(self._saved.read_bytes())
        if not order.new and self._slot == first:
            self._save(training)
        if joining:
            group = self._group(order, "hand over", (*order.old, *joining))
            state = group.broadcast(training.to_bytes() if self._slot == first else b"")
            if self._slot in joining and self._slot != first:
                training.take(state)

    def _train(self, training: JobTraining, group: Group) -> bool:
        """Train until the end, and return True, or until all ranks are told to pause."""
        self._reported = training.position, monotonic()
        if group.rank == 0 and not training.position:
            self._report(training)
        while not training.is_done:
            flags = training.step(group.rank, group.size, group.add_up, float(self.pause.is_set()))
            if group.rank == 0 and training.position % training.training.samples_per_epoch == 0:
                self._save(training)
                self._report(training)
            if flags == group.size and not training.is_done:
                self.pause.clear()
                return False
        return True

    def _report(self, training: JobTraining) -> None:
        position, instant_s = self._reported
        now_s = monotonic()
        speed = (training.position - position) / (now_s - instant_s) if training.position > position else 0.0
        self._line.send(EpochDone(self._order.job, training.position, *training.validate(), speed))
        self._reported = training.position, monotonic()

    def _save(self, training: JobTraining) -> None:
        """Write the state; a process that is killed meanwhile leaves the file as it was."""
        part = self._saved.with_suffix(".part")
        part.write_bytes(training.to_bytes())
        os.replace(part, self._saved)


def serve_slot(line: Line, slot: int, port: int, check: bool, timeout_s: float) -> None:
    """Do what the controller says until it says no more. ``port``: of the store through which workers meet."""
    torch.set_num_threads(1)
    workers: dict[int, Worker] = {}
    with suppress(EOFError):
        while True:
            order = line.receive()
            if isinstance(order, Prepare):
                workers[order.job] = Worker(line, slot, port, order, check=check, timeout_s=timeout_s)
                workers[order.job].start()
            elif isinstance(order, Repeat):
                line.send(Repeated(order.job, compared(order.training, order.steps, order.parameters)))
            elif isinstance(order, Pause):
                workers[order.job].pause.set()
            else:
                workers[order.job].orders.put(order)
