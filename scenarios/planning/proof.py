"""The engine's word on a strategy. Runs in whatever process it is sent to."""

from dataclasses import dataclass

from scenarios.sweep.refusal import REFUSALS, one_line
from scenarios.workloads.steps.running import plan_of, simulate
from scenarios.workloads.steps.scenario import StepScenario
from sim.engine.running.memory import memory_use


@dataclass(frozen=True, slots=True)
class Proof:
    """A strategy that was laid out and, if it fits, simulated: bytes of the fullest rank, seconds per step.

    ``time_s``: None where it does not fit, and so was not simulated. ``interval_s``: None if not known.
    """

    memory_bytes: int
    time_s: float | None = None
    interval_s: tuple[float, float] | None = None


def prove(scenario: StepScenario, room_bytes: int) -> Proof | str:
    """Return the simulation of a strategy, or in one line why there is none."""
    try:
        plan = plan_of(scenario)
        peak_bytes = max(memory_use(program).peak_bytes for program in plan.programs)
        if peak_bytes > room_bytes:
            return Proof(peak_bytes)
        found = simulate(scenario, plan=plan).summary
    except REFUSALS as error:
        return one_line(error)
    return Proof(peak_bytes, found.iteration_time_s, found.iteration_time_interval_s)
