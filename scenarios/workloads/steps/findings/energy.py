"""The electric energy of a step, without hosts, switches and cooling."""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

from costmodels.hardware import DeviceSpec
from costmodels.power import mean_power_w
from scenarios.workloads.steps.findings.means import mean_over_ranks
from scenarios.workloads.steps.findings.program_work import KnownWork, program_work
from sim.engine.running.run import SimulatedRun


def energy_j(run: SimulatedRun, devices: Sequence[tuple[DeviceSpec, int]], dtype: str) -> float | None:
    """Return the joules that all devices take for a step; None where the power of one is not known.

    ``devices``: of the ranks, in their order, each with how many have it. ``dtype``: of products, whose peak counts for
    all arithmetic.
    """
    known = KnownWork()
    works = {id(program): program_work(program, known) for program in run.plan.programs}
    ends = list(accumulate(number for _, number in devices))
    time_s, powers_w = run.iteration_time_s * run.plan.num_steps, dict[int, float]()
    for rank in run.programs:
        device, work = devices[bisect_right(ends, rank)][0], works[id(run.plan.program_of(rank))]
        if device.power_limit_w is None:
            return None
        flop_fraction = work.executed_flop / time_s / device.peak(dtype)
        bandwidth_fraction = work.num_bytes / time_s / device.memory_bandwidth_bytes_per_s
        powers_w[rank] = mean_power_w(device.power_limit_w, flop_fraction, bandwidth_fraction)
    return run.plan.mesh.size * mean_over_ranks(run, powers_w) * run.iteration_time_s
