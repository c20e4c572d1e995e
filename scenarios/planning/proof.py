"""The engine's word on a strategy. Runs in whatever process it is sent to."""

import math

from msgspec import Struct
from msgspec.structs import replace

from scenarios.sweep.refusal import REFUSALS, one_line
from scenarios.workloads.steps.findings.energy import energy_j
from scenarios.workloads.steps.intervals import errors_of
from scenarios.workloads.steps.running import plan_of, run_plan
from scenarios.workloads.steps.scenario import StepScenario
from sim.engine.findings.critical_path import critical_path
from sim.engine.prices.pricing import ClusterPricing
from sim.engine.running.memory import memory_use
from sim.engine.uncertainty.interval import step_time_interval
from sim.training.spec.precision import PRECISIONS


class Proof(Struct, frozen=True):
    """A strategy that was laid out and, if it fits, simulated: bytes of the fullest rank, seconds and joules per step.

    ``time_s``: None where it does not fit, and so was not simulated. ``interval_s``: None where nobody asked.
    ``energy_j``: of all devices; None where the power of one is not known.
    """

    memory_bytes: int
    time_s: float | None = None
    interval_s: tuple[float, float] | None = None
    energy_j: float | None = None


def prove(scenario: StepScenario, room_bytes: int, bar_s: float = math.inf) -> Proof | str:
    """Return the simulation of a strategy, or in one line why there is none.

    ``bar_s``: what takes longer than that is not worth an interval, which takes as long as the simulation.
    """
    try:
        scenario = scenario.decided()
        plan = plan_of(scenario)
        peak_bytes = max(memory_use(program).peak_bytes for program in plan.programs)
        if peak_bytes > room_bytes:
            return Proof(peak_bytes)
        pricing = scenario.pricing()
        run = run_plan(scenario, plan, pricing)
    except REFUSALS as error:
        return one_line(error)
    job = scenario.dense_job
    assert job is not None  # a search is of training
    energy = energy_j(run, scenario.devices, PRECISIONS[job.training.precision].product)
    proof = Proof(peak_bytes, run.iteration_time_s, energy_j=energy)
    if run.iteration_time_s > bar_s or not isinstance(pricing, ClusterPricing):
        return proof
    bounds = step_time_interval(critical_path(run), errors_of(pricing)).bounds
    return replace(proof, interval_s=(bounds.low, bounds.high))
