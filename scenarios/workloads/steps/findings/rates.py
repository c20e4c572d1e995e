"""Rates of a step: tokens/s, FLOP/s, and the fraction of the devices' peak."""

from collections.abc import Sequence

from msgspec import Struct

from costmodels.hardware import DeviceSpec
from scenarios.workloads.steps.findings.means import mean_over_ranks
from sim.engine.running.run import SimulatedRun
from sim.plan.facts.description import kernel_signature, kernel_work
from sim.plan.words.op import Compute
from sim.plan.words.program import Program
from sim.training.spec.job import TrainingJob
from sim.training.spec.precision import PRECISIONS


class Rates(Struct, frozen=True, kw_only=True):
    """Tokens/s and FLOP/s, and their fraction of the mean device's peak; None if nothing is computed."""

    tokens_per_s: float | None = None
    model_flop_per_s_per_device: float | None = None
    hardware_flop_per_s_per_device: float | None = None
    mfu: float | None = None
    hfu: float | None = None


def rates_of(job: TrainingJob, run: SimulatedRun, devices: Sequence[tuple[DeviceSpec, int]]) -> Rates:
    """Return tokens/s, FLOP/s per device and their share of the mean device's peak."""
    time_s, world = run.iteration_time_s, run.plan.mesh.size
    model_rate = job.model_flop / time_s / world
    known: dict[tuple[object, ...], float] = {}
    flop_of = {id(program): _program_flop(program, known) for program in run.plan.programs}
    flop = mean_over_ranks(run, {rank: flop_of[id(run.plan.program_of(rank))] for rank in run.programs})
    hardware_rate = flop / run.plan.num_steps / time_s
    dtype = PRECISIONS[job.training.precision].product
    peak = sum(device.peak(dtype) * count for device, count in devices) / world
    return Rates(
        tokens_per_s=job.training.global_batch_size * job.model.sequence_length / time_s,
        model_flop_per_s_per_device=model_rate,
        hardware_flop_per_s_per_device=hardware_rate,
        mfu=model_rate / peak,
        hfu=hardware_rate / peak,
    )


def _program_flop(program: Program, known: dict[tuple[object, ...], float]) -> float:
    """Return the FLOP that one rank's program spends, recomputation included; ``known``: of kernels met so far."""
    per_task = {
        name: sum(_flop(program, op, known) for op in task.ops if isinstance(op, Compute))
        for name, task in program.tasks.items()
    }
    return sum(per_task[call.task] for call in program.calls)


def _flop(program: Program, op: Compute, known: dict[tuple[object, ...], float]) -> float:
    """Return the FLOP of a kernel: layers have the same kernels, so each is worked out once."""
    key = kernel_signature(program, op)
    if key not in known:
        known[key] = kernel_work(program, op).flop
    return known[key]
