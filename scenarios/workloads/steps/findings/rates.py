"""Rates of a step: tokens/s, FLOP/s, and the fraction of the devices' peak."""

from collections.abc import Sequence

from msgspec import Struct

from costmodels.hardware import DeviceSpec
from scenarios.workloads.steps.findings.means import mean_over_ranks
from scenarios.workloads.steps.findings.program_work import KnownWork, program_work
from sim.engine.running.run import SimulatedRun
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
    known = KnownWork()
    flop_of = {id(program): program_work(program, known).flop for program in run.plan.programs}
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
