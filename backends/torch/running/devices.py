"""Execution of a rank's streams: threads on a CPU, CUDA streams on a GPU."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from queue import SimpleQueue
from threading import Event, Thread
from time import perf_counter, sleep
from typing import NamedTuple, Protocol

import torch
import torch.distributed as dist

from backends.torch.running.schedule import OpInstance, Schedule
from sim.plan.words.op import Recv, Send

_POLL_S = 0.2


class OpRunner(Protocol):
    """The callbacks of a device: it calls them to start, complete and finish ops."""

    def start(self, instance: OpInstance) -> Sequence[dist.Work]:
        """Run an op on the current stream; return its messages that are still in flight."""

    def complete(self, instance: OpInstance, works: Sequence[dist.Work]) -> None:
        """Wait until the messages of an op are complete."""

    def finish(self, instance: OpInstance) -> None:
        """Release the buffers whose last use was an op."""


class RankTimes(NamedTuple):
    """Start and end of every op in issue order, and the end of the step. Without op times the first two are empty.

    Times are seconds since the origin. An op starts when its hazards are cleared and its stream is free.
    """

    starts_s: Sequence[float]
    ends_s: Sequence[float]
    step_s: float


class Device(Protocol):
    """The hardware that runs a rank's schedule."""

    @property
    def torch_device(self) -> torch.device:
        """Return the torch device of the tensors."""

    def sleep(self, duration_s: float) -> None:
        """Keep the current stream busy."""

    def run(self, schedule: Schedule, runner: OpRunner, origin_s: float, *, time_ops: bool) -> RankTimes:
        """Run one step; ``origin_s`` is a reading of ``perf_counter`` from which times count."""

    def peak_allocated_bytes(self) -> int | None:
        """Return the peak that the allocator itself reports; None if it reports none."""


class CpuDevice:
    """A CPU, on which every stream is a thread.

    A stream that both sends and receives has a second thread, which waits for its messages. So its sends do not delay
    its receives, and two ranks that both send first do not deadlock.
    """

    torch_device = torch.device("cpu")

    def sleep(self, duration_s: float) -> None:
        """Let this stream's thread sleep."""
        sleep(duration_s)

    def run(self, schedule: Schedule, runner: OpRunner, origin_s: float, *, time_ops: bool) -> RankTimes:
        """Run one step. The first error of any stream ends the step; other streams stop where they are."""
        times = _ThreadedStep(schedule, runner, origin_s).run()
        return times if time_ops else RankTimes((), (), times.step_s)

    def peak_allocated_bytes(self) -> int | None:
        """Return None: torch's CPU allocator does not report a peak."""
        return None


Messages = SimpleQueue[tuple[OpInstance, Sequence[dist.Work]] | None]
"""Sends in flight, in order; None marks the end."""


class _ThreadedStep:
    """One step of a rank, executed by threads."""

    def __init__(self, schedule: Schedule, runner: OpRunner, origin_s: float) -> None:
        self._instances = schedule.instances
        self._runner = runner
        self._origin_s = origin_s
        self._starts_s = [0.0] * len(self._instances)
        self._ends_s = [0.0] * len(self._instances)
        waited = {position for instance in self._instances for position in instance.waits}
        self._done: Mapping[int, Event] = {position: Event() for position in sorted(waited)}
        self._failed = Event()
        self._ended: SimpleQueue[BaseException | None] = SimpleQueue()

    def run(self) -> RankTimes:
        """Start all threads and wait until all have ended; raise the first error."""
        streams: dict[str, list[OpInstance]] = {}
        for instance in self._instances:
            streams.setdefault(instance.op.stream, []).append(instance)
        count = 0
        for stream, instances in streams.items():
            kinds = {type(instance.op) for instance in instances}
            messages: Messages | None = SimpleQueue() if {Send, Recv} <= kinds else None
            self._spawn(stream, partial(self._run_stream, instances, messages))
            count += 1
            if messages is not None:
                self._spawn(f"{stream} (sends)", partial(self._see_off, messages))
                count += 1
        for _ in range(count):
            error = self._ended.get()
            if error is not None:
                raise error
        self._queue_up(streams)
        return RankTimes(self._starts_s, self._ends_s, max(self._ends_s, default=0.0))

    def _spawn(self, name: str, work: Callable[[], None]) -> None:
        Thread(target=self._guarded, args=(work,), name=name, daemon=True).start()

    def _guarded(self, work: Callable[[], None]) -> None:
        torch.set_num_threads(1)  # OpenMP counts its threads per thread: a new thread would otherwise use all cores
        try:
            with torch.inference_mode():  # plans hold their own gradients: autograd's books take a fifth of a step
                work()
        except BaseException as error:  # any error must end the rank
            self._failed.set()
            self._ended.put(error)
        else:
            self._ended.put(None)

    def _run_stream(self, instances: Sequence[OpInstance], messages: Messages | None) -> None:
        for instance in instances:
            for position in instance.waits:
                if not self._wait(position):
                    return
            self._starts_s[instance.position] = perf_counter() - self._origin_s
            works = self._runner.start(instance)
            if works and messages is not None:
                messages.put((instance, works))
            else:
                self._runner.complete(instance, works)
                self._finish(instance)
        if messages is not None:
            messages.put(None)

    def _wait(self, position: int) -> bool:
        """Wait for an op; return False if a stream failed first."""
        while not self._done[position].wait(_POLL_S):
            if self._failed.is_set():
                return False
        return True

    def _see_off(self, messages: Messages) -> None:
        while (message := messages.get()) is not None:
            instance, works = message
            self._runner.complete(instance, works)
            self._finish(instance)

    def _finish(self, instance: OpInstance) -> None:
        self._ends_s[instance.position] = perf_counter() - self._origin_s
        self._runner.finish(instance)
        if instance.position in self._done:
            self._done[instance.position].set()

    def _queue_up(self, streams: Mapping[str, Sequence[OpInstance]]) -> None:
        """Let no op start before the previous op of its stream has ended, not even a send that was posted early."""
        for instances in streams.values():
            free_s = 0.0
            for instance in instances:
                position = instance.position
                self._ends_s[position] = max(self._ends_s[position], free_s)
                self._starts_s[position] = min(max(self._starts_s[position], free_s), self._ends_s[position])
                free_s = self._ends_s[position]


class CudaDevice:
    """A GPU: one CUDA stream per stream of the plan, and CUDA events for hazards and times.

    One host thread issues the ops in program order. A stream runs an op when its hazards are cleared.
    """

    def __init__(self, index: int) -> None:
        self.torch_device = torch.device("cuda", index)
        torch.cuda.set_device(self.torch_device)
        self._streams: dict[str, torch.cuda.Stream] = {}
        self._cycles_per_s = 0.0

    def sleep(self, duration_s: float) -> None:
        """Keep the current stream busy for about this time (the clock rate may drift with the device's state)."""
        if not self._cycles_per_s:
            self._cycles_per_s = self._measure_cycles_per_s()
        _spin(int(duration_s * self._cycles_per_s))

    def _measure_cycles_per_s(self) -> float:
        cycles = 20_000_000
        start, end = _event(timed=True), _event(timed=True)
        _spin(cycles)
        start.record()
        _spin(cycles)
        end.record()
        end.synchronize()
        return cycles / _seconds(start, end)

    def run(self, schedule: Schedule, runner: OpRunner, origin_s: float, *, time_ops: bool) -> RankTimes:
        """Issue one step and wait for the device. Raises the error of an op that could not be issued."""
        torch.cuda.synchronize(self.torch_device)
        torch.cuda.reset_peak_memory_stats(self.torch_device)
        origin, origin_after_s = _event(timed=True), perf_counter() - origin_s
        origin.record()
        starts: list[torch.cuda.Event] = []
        ends: list[torch.cuda.Event] = []
        for instance in schedule.instances:
            start, end = self._issue(instance, runner, ends, origin, timed=time_ops)
            starts.append(start)
            ends.append(end)
        torch.cuda.synchronize(self.torch_device)
        step_s = perf_counter() - origin_s
        if not time_ops:
            return RankTimes((), (), step_s)
        return RankTimes(
            [origin_after_s + _seconds(origin, event) for event in starts],
            [origin_after_s + _seconds(origin, event) for event in ends],
            step_s,
        )

    def _issue(
        self,
        instance: OpInstance,
        runner: OpRunner,
        ends: Sequence[torch.cuda.Event],
        origin: torch.cuda.Event,
        *,
        timed: bool,
    ) -> tuple[torch.cuda.Event, torch.cuda.Event]:
        """Issue one op on its stream; return the events before and after the op."""
        name = instance.op.stream
        if name not in self._streams:
            self._streams[name] = torch.cuda.Stream(self.torch_device)  # type: ignore[no-untyped-call]
        stream = self._streams[name]
        start, end = _event(timed=timed), _event(timed=timed)
        with torch.cuda.stream(stream):
            stream.wait_event(origin)
            for position in instance.waits:
                stream.wait_event(ends[position])
                if instance.on_host:  # the host itself runs this op, now
                    ends[position].synchronize()
            start.record(stream)
            works = runner.start(instance)
            runner.complete(instance, works)
            end.record(stream)
            for slot in instance.touched:
                if slot.tensor is not None and slot.tensor.is_cuda:
                    slot.tensor.record_stream(stream)
        runner.finish(instance)
        return start, end

    def peak_allocated_bytes(self) -> int | None:
        """Return the peak of the bytes allocated by the caching allocator during the last step."""
        return torch.cuda.max_memory_allocated(self.torch_device)


def _event(*, timed: bool) -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=timed)  # type: ignore[no-untyped-call]


def _seconds(start: torch.cuda.Event, end: torch.cuda.Event) -> float:
    return float(start.elapsed_time(end)) * 1e-3


def _spin(cycles: int) -> None:
    """Keep the current stream busy for some cycles; torch has no public call for it."""
    torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]
