"""What one rank of a job does: run requests one after the other, and report."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from time import perf_counter, process_time
from typing import Final, Literal

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from backends.torch.communication.algorithms import ExplicitCollectives
from backends.torch.communication.groups import Communicators
from backends.torch.errors import ExecutionError, JobError
from backends.torch.launching.environment import JobMember
from backends.torch.launching.store import store_of
from backends.torch.reference.check import CheckReport, check_rank, kept_for_check
from backends.torch.reference.dense import Reference, backpropagation, run_reference
from backends.torch.reference.local import local_updates
from backends.torch.running.allocator import keep_freed_memory
from backends.torch.running.devices import CpuDevice, CudaDevice, Device, StepTimes
from backends.torch.running.interpreter import Interpreter
from backends.torch.running.memory import MemoryAccount, account_memory
from backends.torch.running.schedule import InstanceKey
from sim.plan.words.buffer import Tier
from sim.plan.words.program import Plan
from sim.plan.words.steps import longest_lag
from sim.training.spec.job import DenseTraining

DeviceKind = Literal["cpu", "cuda"]
Timing = Literal["op", "step"]

_LONGEST_WAIT_S: Final = 1800.0
"""How long an op may wait for peers, as long as torch lets gloo wait: they may compute meanwhile.

Peers that do not answer end a run much earlier (``Silence``).
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionRequest:
    """A plan to run. ``check_against``: the training that it must reproduce, None for no check.

    ``mute``: names of ops that communicate nothing (to prove that the check notices). ``keep``: buffers whose last
    values come back with the result. ``iterations``: steps in all, after which a plan that leaves something to the next
    step is drained; times, memory, check and values are those of the last. ``timing``: of every op, or of the step
    alone. ``explicit``: run collectives as step lists over messages, None for the library's own.
    """

    plan: Plan
    check_against: DenseTraining | None = None
    mute: frozenset[str] = frozenset()
    keep: frozenset[str] = frozenset()
    iterations: int = 1
    timing: Timing = "op"
    explicit: ExplicitCollectives | None = None

    def __post_init__(self) -> None:
        if self.iterations < 1:
            raise ExecutionError(f"a run needs at least one iteration, got {self.iterations}")
        if self.iterations <= self.longest_lag:
            raise ExecutionError(f"a step that completes the one before needs two iterations, got {self.iterations}")

    @property
    def longest_lag(self) -> int:
        """Return how many steps back calls of the plan belong."""
        return max(longest_lag(program) for program in self.plan.programs)


@dataclass(frozen=True, slots=True)
class RankResult:
    """What one rank found out about the last step.

    ``starts_s`` and ``ends_s``: of every op in issue order, from the step's common origin; empty where ops were
    not timed. ``allocator_peak_bytes``: the device allocator's own figure, None on a CPU. ``values``: what was asked
    to be kept, by buffer and micro-batch, in float64. ``cpu_s``: processor time of all of the rank's threads in the
    step. ``sent_bytes``: what this rank sent in collectives that ran as step lists, in all steps; 0 where none did.
    ``host_peak_bytes``: the most that its buffers took on the host.
    """

    rank: int
    role: str
    starts_s: Sequence[float]
    ends_s: Sequence[float]
    step_s: float
    cpu_s: float
    memory: MemoryAccount
    check: CheckReport | None
    allocator_peak_bytes: int | None
    values: Mapping[InstanceKey, NDArray[np.float64]]
    sent_bytes: int = 0
    host_peak_bytes: int = 0


@dataclass(slots=True)
class Worker:
    """A rank of a running job; torch.distributed is initialised."""

    device: Device
    communicators: Communicators
    one_machine: bool
    _references: dict[tuple[object, ...], Reference] = field(default_factory=dict)

    def run(self, request: ExecutionRequest) -> RankResult | None:
        """Run one request; None where the plan has no such rank. All ranks of the job must call this."""
        plan, rank = request.plan, dist.get_rank()
        self.communicators.prepare(plan, explicit=request.explicit is not None)
        interpreter = self._interpreter(request, rank) if rank < plan.mesh.size else None
        times, cpu_s = StepTimes((), (), 0.0), 0.0
        for step in range(request.iterations):
            if interpreter is not None:
                interpreter.prepare(step, request.iterations)
            origin_s = common_origin_s(one_machine=self.one_machine)
            if interpreter is not None:
                began_cpu_s = process_time()
                times = interpreter.run(origin_s, time_ops=request.timing == "op")
                cpu_s = process_time() - began_cpu_s
        peak_bytes = self.device.peak_allocated_bytes()
        if request.longest_lag:
            origin_s = common_origin_s(one_machine=self.one_machine)
            if interpreter is not None:
                interpreter.drain(request.iterations, origin_s)
        return None if interpreter is None else self._result(request, interpreter, times, cpu_s, peak_bytes)

    def _interpreter(self, request: ExecutionRequest, rank: int) -> Interpreter:
        checked = kept_for_check(request.plan.program_of(rank)) if request.check_against else frozenset()
        return Interpreter(
            request.plan, rank, self.device, self.communicators, mute=request.mute, kept=request.keep | checked,
            explicit=request.explicit,
        )  # fmt: skip

    def _result(
        self,
        request: ExecutionRequest,
        interpreter: Interpreter,
        times: StepTimes,
        cpu_s: float,
        peak_bytes: int | None,
    ) -> RankResult:
        program, schedule = interpreter.program, interpreter.schedule
        job = request.check_against
        report = None
        if job is not None:
            steps = request.iterations * request.plan.num_steps
            report = check_rank(interpreter, self._reference(job, steps), job.training.precision)
        return RankResult(
            rank=interpreter.rank,
            role=program.role_name,
            starts_s=times.starts_s,
            ends_s=times.ends_s,
            step_s=times.step_s,
            cpu_s=cpu_s,
            memory=account_memory(program, schedule.slots),
            check=report,
            allocator_peak_bytes=peak_bytes,
            values={
                key: slot.tensor.to("cpu", torch.float64).numpy()
                for key, slot in schedule.slots.items()
                if key[0] in request.keep and slot.tensor is not None
            },
            sent_bytes=interpreter.sent_bytes,
            host_peak_bytes=account_memory(program, schedule.slots, Tier.HOST).peak_bytes,
        )

    def _reference(self, job: DenseTraining, steps: int) -> Reference:
        """Return the dense run, computed once for all plans that must reproduce the same."""
        t = job.training
        optimizer = (t.optimizer, t.learning_rate, t.adam_beta1, t.adam_beta2, t.adam_epsilon)
        blocks = (t.update, job.parallel.pipeline) if t.method == "local" else None
        delay = job.parallel.pipeline.gradient_delay
        slots = (t.microbatch_size, job.parallel.context_degree) if job.model.experts else None
        key = (job.model, job.seed, t.global_batch_size, t.precision, optimizer, blocks, delay, steps, slots)
        if key not in self._references:
            objective = local_updates(job) if t.method == "local" else backpropagation(job.model)
            self._references[key] = run_reference(job, steps, self.device.torch_device, objective, delay)
        return self._references[key]


def common_origin_s(*, one_machine: bool) -> float:
    """Return the reading of ``perf_counter`` at which a step begins, when all ranks are ready.

    On one machine its clock is the same for all processes, and all count from the first rank to be ready to
    go; across machines each counts from the moment that the barrier lets it go.
    """
    dist.barrier()
    origin = torch.tensor([perf_counter()], dtype=torch.float64)
    if one_machine:
        dist.all_reduce(origin, dist.ReduceOp.MIN)
    return float(origin)


def joined_worker(kind: DeviceKind, member: JobMember) -> Worker:
    """Join a job as one of its processes and return its worker.

    Collectives and messages of the plan use NCCL on GPUs and gloo on CPUs; the job's own small talk uses gloo.
    """
    device: Device
    if kind == "cuda":
        if member.local_rank >= torch.cuda.device_count():
            rule = f"this machine has {torch.cuda.device_count()} CUDA devices, of which each rank needs its own"
            raise JobError("LOCAL_RANK", str(member.local_rank), rule, "start as many ranks here as there are devices")
        device = CudaDevice(member.local_rank)
        backend = "cpu:gloo,cuda:nccl"
    else:
        torch.set_num_threads(1)
        keep_freed_memory()
        device, backend = CpuDevice(), "gloo"
    wait = timedelta(seconds=_LONGEST_WAIT_S)
    if not dist.is_initialized():
        store = store_of(member, _LONGEST_WAIT_S)
        dist.init_process_group(backend, store=store, rank=member.rank, world_size=member.size, timeout=wait)
    one_machine = member.local_size == member.size
    return Worker(device, Communicators(device.torch_device, _LONGEST_WAIT_S), one_machine)


def run_all(requests: Sequence[ExecutionRequest], kind: DeviceKind, member: JobMember) -> list[RankResult | None]:
    """Join the job and run all requests; return this rank's results."""
    worker = joined_worker(kind, member)
    results = [worker.run(request) for request in requests]
    dist.barrier()
    return results
