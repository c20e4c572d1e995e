"""Prices of a textbook workload: stated durations, and a stated lag per hop between ranks."""

from dataclasses import dataclass

from sim.engine.activity import Activity
from sim.plan.op import Compute, Op, Recv, Send
from sim.plan.program import Plan, Program


@dataclass(frozen=True, slots=True)
class TextbookPricing:
    """Every ``delay`` lasts as it says; a message takes ``hop_s`` and occupies nothing."""

    hop_s: float = 0.0

    def price(self, plan: Plan, program: Program, op: Op, rank: int, *, folded: bool) -> Activity:
        """Return the stated duration; ValueError for an op that states none."""
        if isinstance(op, Compute) and op.kernel == "delay":
            return Activity(latency_s=float(op.attributes["duration_s"]))
        if isinstance(op, Send):
            return Activity(latency_s=self.hop_s)
        if isinstance(op, Recv):
            return Activity()
        raise ValueError(f"{plan.name}, {program.role_name}: {op.name} states no duration")
