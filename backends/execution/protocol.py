"""The interfaces of what executes plans, in types that need no torch."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, runtime_checkable

from backends.execution.clicks import ClickCheck
from backends.execution.embedding import EmbeddingExecution, EmbeddingRequest
from backends.execution.het import HetExecution, HetRequest
from backends.execution.jobs import JobsExecution, JobsRequest, LiveTraining, MeasuredJobs
from backends.execution.lock_free import LockFreeExecution, LockFreeRequest
from backends.execution.measuring.benchmarks import Benchmark
from backends.execution.measuring.rounds import Measured
from backends.execution.request import DeviceKind, ExecutionRequest
from backends.execution.result import CheckReport, Execution
from backends.execution.silence import SILENCE_S
from backends.protocol import Backend
from sim.plan.session.protocol import Session
from sim.plan.words.program import Plan
from traces.timeline import Timeline


class ExecutingBackend(Backend, Protocol):
    """Runs the operations of plans on real devices."""

    def session(
        self,
        num_ranks: int,
        *,
        request_of: Callable[[Plan], ExecutionRequest] | None = None,
        on_step: Callable[[Execution], None] | None = None,
    ) -> Session:
        """Return a session of so many ranks, to be entered.

        ``request_of``: what a step asks of a plan, such as a check. ``on_step``: is told what all ranks found out.
        """
        ...

    def execute(self, request: ExecutionRequest) -> Execution | None:
        """Return the results of all ranks; None on the ranks of a running job that do not report.

        Raises CheckError for a plan that cannot run, ExecutionError if the run fails.
        """
        ...

    def timeline(self, execution: Execution) -> Timeline:
        """Return the timeline of one executed step, a row per op; no rows if ops were not timed."""
        ...


@runtime_checkable
class TorchLibrary(Protocol):
    """The functions that need torch; ``backends.registry`` loads them on demand."""

    def backend(self, device: DeviceKind = "cpu", timeout_s: float = SILENCE_S) -> ExecutingBackend:
        """Return the backend of a kind of device. ``timeout_s``: the longest silence of a rank."""
        ...

    def measure(
        self, benchmarks: Sequence[Benchmark], *, processes: int, budget_s: float, seed: int,
        device: DeviceKind = "cpu", beside: ExecutionRequest | None = None,
    ) -> Measured:  # fmt: skip
        """Return every run of every benchmark, measured on so many processes at once, within a budget.

        ``beside``: a request for as many ranks, which runs now and then between the benchmarks.

        Raises ExecutionError if the machine has too few devices, or a process fails or does not answer.
        """
        ...

    def check_clicks(self, check: ClickCheck) -> CheckReport:
        """Return the errors of executed steps of a click model, beside plain torch on whole tables."""
        ...

    def train_lock_free(self, request: LockFreeRequest) -> LockFreeExecution:
        """Return what a training did whose optimizer goes at its own pace, in one process.

        Raises ExecutionError for a full disk, a file that is gone, or an optimizer that ends early.
        """
        ...

    def train_embeddings(self, request: EmbeddingRequest) -> EmbeddingExecution:
        """Return what a training of cached embedding tables counted, on one device.

        Raises CacheTooSmallError for a batch that the cache cannot hold, ExecutionError without the device.
        """
        ...

    def train_with_servers(self, request: HetRequest) -> HetExecution:
        """Return what workers and a parameter server counted, processes of this machine, on CPUs.

        Raises RankError if one of them fails or is killed.
        """
        ...

    def run_jobs(self, request: JobsRequest) -> JobsExecution:
        """Return what came of a job mix on processes of this machine, one per slot.

        Raises ExecutionError where a worker fails or does not answer.
        """
        ...

    def measure_jobs(
        self, trainings: Sequence[LiveTraining], num_slots: int, *, span_s: float, check: bool, timeout_s: float
    ) -> MeasuredJobs:
        """Return the speed of each training by its number of slots, and what changes of slots take.

        ``span_s``: for which each speed is measured.
        """
        ...

    def copy_bandwidths(self) -> Mapping[str, float]:
        """Return bytes per second of copies within the host, and with a GPU from pinned memory to it and back."""
        ...
