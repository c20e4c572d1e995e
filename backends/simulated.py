"""The simulated backend: cost models say how long each operation takes."""

from dataclasses import dataclass
from typing import Literal

from sim.engine.findings.timeline import timeline
from sim.engine.folding.folding import fold, no_fold
from sim.engine.prices.activity import Pricing
from sim.engine.running.run import SimulatedRun
from sim.engine.running.simulate import simulate
from sim.plan.checking.check import check
from sim.plan.words.program import Plan
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
