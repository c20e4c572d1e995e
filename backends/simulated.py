"""The simulated backend: cost models say how long each operation takes."""

from dataclasses import dataclass
from typing import Literal

from sim.engine.activity import Pricing
from sim.engine.folding import fold, no_fold
from sim.engine.run import SimulatedRun
from sim.engine.simulate import simulate
from sim.engine.timeline import timeline
from sim.plan.check import check
from sim.plan.program import Plan
from traces.timeline import Timeline


@dataclass(frozen=True, slots=True)
class SimulatedBackend:
    """Simulates plans with given prices. ``detail``: rows per op or per task; None: by the plan's size."""

    pricing: Pricing
    fold: bool = True
    detail: Literal["op", "task"] | None = None

    def simulate(self, plan: Plan) -> SimulatedRun:
        """Return the whole run: times, graph and counts. Raises CheckError for a plan that could not run."""
        check(plan)
        return simulate(plan, self.pricing, fold=fold if self.fold else no_fold)

    def run(self, plan: Plan) -> Timeline:
        """Return the timeline of one step of ``plan``."""
        return timeline(self.simulate(plan), self.detail)
