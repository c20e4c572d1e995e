"""Prices that ops state themselves."""

from collections.abc import Collection
from dataclasses import dataclass

from sim.engine.prices.activity import Activity
from sim.engine.prices.traffic import Wanted
from sim.plan.words.op import Compute, Op
from sim.plan.words.program import Plan, Program, Task


@dataclass(frozen=True)
class StatedPricing:
    """Every op demands what its attributes say."""

    def price(self, plan: Plan, program: Program, op: Op, rank: int) -> Activity:
        """Return the stated latency and demands."""
        assert isinstance(op, Compute)
        return Activity(op.attributes["latency_s"], tuple(d for d in op.attributes["demands"] if d[1] > 0))

    def expect(self, plan: Plan, ranks: Collection[int], wanted: Wanted | None = None) -> None:
        """Do nothing: stated demands are not computed."""

    def launches_s(self, task: Task) -> tuple[float, ...]:
        """Return that launching takes no time."""
        return ()
