"""The engine's word on a strategy. Runs in whatever process it is sent to."""

import math

from msgspec import Struct

from scenarios.sweep.refusal import REFUSALS, one_line
from scenarios.workloads.steps.intervals import errors_of
from scenarios.workloads.steps.running import plan_of, run_plan
from scenarios.workloads.steps.scenario import StepScenario
from sim.engine.findings.critical_path import critical_path
from sim.engine.prices.pricing import ClusterPricing
from sim.engine.running.memory import memory_use
from sim.engine.uncertainty.interval import step_time_interval


class Proof(Struct, frozen=True):
    """A strategy that was laid out and, if it fits, simulated: bytes of the fullest rank, seconds per step.

    ``time_s``: None where it does not fit, and so was not simulated. ``interval_s``: None where nobody asked.
    """

    memory_bytes: int
    time_s: float | None = None
    interval_s: tuple[float, float] | None = None


def prove(scenario: StepScenario, room_bytes: int, bar_s: float = math.inf) -> Proof | str:
    """Return the simulation of a strategy, or in one line why there is none.

    ``bar_s``: what takes longer than that is not worth an interval, which takes as long as the simulation.
    """
    try:
        plan = plan_of(scenario)
        peak_bytes = max(memory_use(program).peak_bytes for program in plan.programs)
        if peak_bytes > room_bytes:
            return Proof(peak_bytes)
        pricing = scenario.pricing()
        run = run_plan(scenario, plan, pricing)
    except REFUSALS as error:
        return one_line(error)
    if run.iteration_time_s > bar_s or not isinstance(pricing, ClusterPricing):
        return Proof(peak_bytes, run.iteration_time_s)
    bounds = step_time_interval(critical_path(run), errors_of(pricing)).bounds
    return Proof(peak_bytes, run.iteration_time_s, (bounds.low, bounds.high))
