"""The torch backend: it runs plans on real devices."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from backends.execution.clicks import ClickCheck
from backends.execution.embedding import EmbeddingExecution, EmbeddingRequest
from backends.execution.errors import ExecutionError
from backends.execution.het import HetExecution, HetRequest
from backends.execution.jobs import JobsExecution, JobsRequest, LiveTraining, MeasuredJobs
from backends.execution.lock_free import LockFreeExecution, LockFreeRequest
from backends.execution.measuring.benchmarks import Benchmark
from backends.execution.measuring.rounds import Measured
from backends.execution.protocol import ExecutingBackend, TorchLibrary
from backends.execution.request import DeviceKind, ExecutionRequest
from backends.execution.result import CheckReport, Execution
from backends.execution.silence import SILENCE_S
from backends.torch.embedding.het import train_with_servers
from backends.torch.embedding.training import train
from backends.torch.jobs.controller import run_jobs
from backends.torch.jobs.measuring import measure_jobs
from backends.torch.launching.timeline import timeline
from backends.torch.measuring.session import copy_bandwidths, measure
from backends.torch.reference.click_check import check_clicks
from backends.torch.session import TorchSession, execute
from backends.torch.tiers.training import train_lock_free
from sim.plan.checking.check import check
from sim.plan.words.program import Plan
from sim.plan.words.steps import longest_lag
from traces.timeline import Timeline


@dataclass(frozen=True, slots=True)
class TorchBackend(ExecutingBackend):
    """Runs plans with torch: gloo and threads on CPUs, NCCL and CUDA streams on GPUs.

    ``timeout_s``: how long a rank may not answer; it answers while it computes, too.
    """

    device: DeviceKind = "cpu"
    timeout_s: float = SILENCE_S

    def session(
        self,
        num_ranks: int,
        *,
        request_of: Callable[[Plan], ExecutionRequest] | None = None,
        on_step: Callable[[Execution], None] | None = None,
    ) -> TorchSession:
        """Return a session of so many ranks; entering it starts them, or joins them. See ``TorchSession``."""
        return TorchSession(num_ranks, self.device, self.timeout_s, request_of=request_of, on_step=on_step)

    def execute(self, request: ExecutionRequest) -> Execution | None:
        """Return what all ranks found out; None on the ranks of a running job that do not report.

        Raises CheckError for a plan that could not run, ExecutionError where the run fails.
        """
        check(request.plan)
        executions = execute([request], self.device, timeout_s=self.timeout_s)
        return None if executions is None else executions[0]

    def timeline(self, execution: Execution) -> Timeline:
        """Return one step of executed ranks, a row per op; no rows where ops were not timed."""
        return timeline(execution.plan, execution.ranks)

    def run(self, plan: Plan) -> Timeline:
        """Return the timeline of one step of ``plan``.

        Raises ExecutionError on a rank of a running job that does not report; call ``execute`` there.
        """
        fewest = 1 + max(longest_lag(program) for program in plan.programs)
        execution = self.execute(ExecutionRequest(plan=plan, iterations=fewest))
        if execution is None:
            raise ExecutionError("only rank 0 of a running job has the timeline")
        return self.timeline(execution)


class Library(TorchLibrary):
    """The functions that need torch."""

    def backend(self, device: DeviceKind = "cpu", timeout_s: float = SILENCE_S) -> TorchBackend:
        """Return the backend of a kind of device."""
        return TorchBackend(device, timeout_s)

    def measure(
        self, benchmarks: Sequence[Benchmark], *, processes: int, budget_s: float, seed: int,
        device: DeviceKind = "cpu", beside: ExecutionRequest | None = None,
    ) -> Measured:  # fmt: skip
        """Return every run of every benchmark; see ``backends.torch.measuring.session``."""
        return measure(benchmarks, processes=processes, budget_s=budget_s, seed=seed, device=device, beside=beside)

    def train_with_servers(self, request: HetRequest) -> HetExecution:
        """Return what workers and a parameter server counted; see ``backends.torch.embedding.het``."""
        return train_with_servers(request)

    def check_clicks(self, check: ClickCheck) -> CheckReport:
        """Return the errors of a click model's steps; see ``backends.torch.reference.click_check``."""
        return check_clicks(check)

    def train_lock_free(self, request: LockFreeRequest) -> LockFreeExecution:
        """Return what a training with a thread of updates did; see ``backends.torch.tiers.training``."""
        return train_lock_free(request)

    def train_embeddings(self, request: EmbeddingRequest) -> EmbeddingExecution:
        """Return what a training of cached embedding tables counted; see ``backends.torch.embedding.training``."""
        return train(request)

    def run_jobs(self, request: JobsRequest) -> JobsExecution:
        """Return what came of a job mix; see ``backends.torch.jobs.controller``."""
        return run_jobs(request)

    def measure_jobs(
        self, trainings: Sequence[LiveTraining], num_slots: int, *, span_s: float, check: bool, timeout_s: float
    ) -> MeasuredJobs:
        """Return speeds of trainings and costs of changes; see ``backends.torch.jobs.measuring``."""
        return measure_jobs(trainings, num_slots, span_s=span_s, check=check, timeout_s=timeout_s)

    def copy_bandwidths(self) -> Mapping[str, float]:
        """Return bytes per second of copies within the host, and with a GPU from pinned memory to it and back."""
        return copy_bandwidths()
