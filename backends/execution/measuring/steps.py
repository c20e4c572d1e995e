"""Benchmarks of whole training steps: the time of the step, or of every kernel in it.

A kernel in a step finds other data in the caches than a kernel that is repeated alone, and uses memory that other ops
have just freed. On a CPU it takes a sixth longer on average, and a small kernel takes twice as long. So kernels are
timed in steps.
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean, median
from typing import TypeGuard

from msgspec.structs import replace

from backends.execution.measuring.benchmarks import Request, Result
from costmodels.kernels import KERNELS
from sim.plan.words.buffer import Buffer
from sim.plan.words.op import Compute, Op
from sim.plan.words.program import Plan, Program

_UNTIMED = frozenset({"delay", "none"})


@dataclass(frozen=True, slots=True)
class KernelCall:
    """A kernel call on the buffers that its op names. ``key``: equal for calls with equal shapes and attributes."""

    key: str
    op: Compute
    buffers: Mapping[str, Buffer] = field(hash=False)


@dataclass(frozen=True, slots=True)
class StepBenchmark:
    """A whole step of a plan, after one step that warms up."""

    key: str
    plan: Plan = field(hash=False)

    def request(self, processes: int, repeats: int) -> Request:
        """Return a run of ``repeats`` steps of the plan after one step that warms up."""
        del processes
        return Request(self.plan, repeats + 1, "step")

    def figures(self, result: Result, repeats: int) -> Mapping[str, float]:
        """Return the end of this rank's last step, in seconds."""
        del repeats
        return {self.key: result.step_s}


@dataclass(frozen=True, slots=True)
class StepKernels:
    """The kernels of a training step of one rank or one tensor-parallel group, measured on all processes at once.

    ``plan``: its mesh has one replica; the measured replicas are independent of each other.
    ``kind``: a name shared by steps that differ only in size.
    """

    key: str
    plan: Plan = field(hash=False)
    kind: tuple[Hashable, ...] = ()

    def calls(self) -> dict[str, KernelCall]:
        """Return the different kernel calls of the step, by key."""
        found: dict[str, KernelCall] = {}
        for program in self.plan.programs:
            for op in timed_kernels(program):
                call = _call(program, op)
                found.setdefault(call.key, call)
        return found

    def request(self, processes: int, repeats: int) -> Request:
        """Return a run of as many replicas as the processes allow."""
        group = self.plan.mesh.size
        axes = tuple((name, processes // group if name == "dp" else size) for name, size in self.plan.mesh.axes)
        return Request(replace(self.plan, mesh=replace(self.plan.mesh, axes=axes)), repeats + 1)

    def figures(self, result: Result, repeats: int) -> Mapping[str, float]:
        """Return the mean seconds of every kernel call, with the usual pause before an op."""
        del repeats
        program = self.plan.program_of(0)
        ops = [op for _, _, _, op in program.instances()]
        pause_s = _usual_pause_s(ops, result)
        keys = {id(op): _call(program, op).key for op in timed_kernels(program)}
        found: dict[str, list[float]] = {}
        for op, start_s, end_s in zip(ops, result.starts_s, result.ends_s, strict=True):
            if id(op) in keys:
                found.setdefault(keys[id(op)], []).append(end_s - start_s + pause_s)
        return {key: fmean(values) for key, values in found.items()}


def kernel_calls(benchmarks: Iterable[StepKernels]) -> dict[str, KernelCall]:
    """Return the different kernel calls of some steps, by key."""
    found: dict[str, KernelCall] = {}
    for benchmark in benchmarks:
        found |= benchmark.calls()
    return found


def timed_kernels(program: Program) -> Iterator[Compute]:
    """Yield the timed kernels of a program, once per task that contains them."""
    return (op for task in program.tasks.values() for op in task.ops if _is_timed(op))


def _is_timed(op: Op) -> TypeGuard[Compute]:
    return isinstance(op, Compute) and KERNELS[op.kernel].family not in _UNTIMED


def _call(program: Program, op: Compute) -> KernelCall:
    """Return the call of an op. Its key states kernel, shapes, types and attributes, but no names or salts."""
    buffers = {name: program.buffers[name] for name in (*op.reads, *op.writes)}
    shapes = " ".join(f"{b.dtype}{list(b.shape)}" for b in buffers.values())
    attributes = " ".join(f"{name}={value}" for name, value in sorted(op.attributes.items()) if name != "salt")
    return KernelCall(f"{op.kernel} {shapes} {attributes}".strip(), op, buffers)


def _usual_pause_s(ops: Sequence[Op], result: Result) -> float:
    """Return the median time, in seconds, from the end of a kernel to the start of the next one."""
    kernels = [row for row, op in enumerate(ops) if isinstance(op, Compute)]
    pauses = [result.starts_s[after] - result.ends_s[row] for row, after in pairwise(kernels)]
    return median(pauses) if pauses else 0.0
