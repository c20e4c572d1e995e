"""The engine's word on a strategy. Runs in whatever process it is sent to."""

import math
from typing import Annotated, Final

from msgspec import Meta, Struct
from msgspec.structs import replace

from scenarios.summaries.steps.step import HostMemory
from scenarios.sweep.refusal import REFUSALS, one_line
from scenarios.workloads.steps.findings.energy import energy_j
from scenarios.workloads.steps.intervals import errors_of
from scenarios.workloads.steps.results import on_node
from scenarios.workloads.steps.running import plan_of, run_plan
from scenarios.workloads.steps.scenario import StepScenario
from sim.engine.findings.critical_path import critical_path
from sim.engine.prices.pricing import ClusterPricing
from sim.engine.running.memory import memory_use
from sim.engine.uncertainty.interval import step_time_interval
from sim.plan.words.buffer import Tier
from sim.training.spec.precision import PRECISIONS

_NO_HOST: Final = HostMemory(peak_bytes=0, capacity_bytes=0, fits=True)


class Proof(Struct, frozen=True, forbid_unknown_fields=True):
    """A strategy that was laid out and, if it fits, simulated: bytes of the fullest rank, seconds and joules per step.

    ``time_s``: None where it does not fit, and so was not simulated. ``interval_s``: None where nobody asked.
    ``energy_j``: of all devices; None where the power of one is not known. ``host_bytes``: of a node's own memory;
    ``host_is_short``: it has less.
    """

    memory_bytes: Annotated[int, Meta(gt=0)]
    time_s: Annotated[float, Meta(gt=0.0)] | None = None
    interval_s: tuple[float, float] | None = None
    energy_j: Annotated[float, Meta(ge=0.0)] | None = None
    host_bytes: Annotated[int, Meta(ge=0)] = 0
    host_is_short: bool = False


def prove(scenario: StepScenario, room_bytes: int, bar_s: float = math.inf) -> Proof | str:
    """Return the simulation of a strategy, or in one line why there is none.

    ``bar_s``: what takes longer than that is not worth an interval, which takes as long as the simulation.
    """
    try:
        scenario = scenario.decided()
        plan = plan_of(scenario)
        peak_bytes = max(memory_use(program).peak_bytes for program in plan.programs)
        most_bytes = max(memory_use(program, Tier.HOST).peak_bytes for program in plan.programs)
        host = on_node(scenario, most_bytes, plan, Tier.HOST) or _NO_HOST
        if peak_bytes > room_bytes or not host.fits:
            return Proof(peak_bytes, host_bytes=host.peak_bytes, host_is_short=not host.fits)
        pricing = scenario.pricing()
        run = run_plan(scenario, plan, pricing)
    except REFUSALS as error:
        return one_line(error)
    job = scenario.dense_job
    assert job is not None  # a search is of training
    energy = energy_j(run, scenario.devices, PRECISIONS[job.training.precision].product)
    proof = Proof(peak_bytes, run.iteration_time_s, energy_j=energy, host_bytes=host.peak_bytes)
    if run.iteration_time_s > bar_s or not isinstance(pricing, ClusterPricing):
        return proof
    bounds = step_time_interval(critical_path(run), errors_of(pricing)).bounds
    return replace(proof, interval_s=(bounds.low, bounds.high))
