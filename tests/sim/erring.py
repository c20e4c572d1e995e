"""Prices that are off by drawn factors: what full runs of the engine are made with that intervals are held against."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from sim.engine.activity import Activity, Pricing
from sim.engine.uncertainty.errors import ErrorClass, ModelErrors, error_class
from sim.engine.uncertainty.normal import generator
from sim.plan.op import Op
from sim.plan.program import Plan, Program

Factor = Callable[[ErrorClass, int], float]
"""How many times as long calls of a class take on a rank."""


@dataclass(frozen=True)
class Erring:
    """Another pricing's demands times a factor; ``alone``: as durations, with nothing shared."""

    pricing: Pricing
    factor: Factor
    alone: bool = False

    def price(self, plan: Plan, program: Program, op: Op, rank: int) -> Activity:
        """Return the op's demands, all of them times its factor."""
        activity = self.pricing.price(plan, program, op, rank)
        factor = self.factor(error_class(program, op), rank)
        if self.alone:
            return Activity(activity.duration_s * factor)
        demands = tuple((resource, seconds * factor) for resource, seconds in activity.demands)
        return Activity(activity.latency_s * factor, demands, activity.single_s * factor)

    def __getattr__(self, name: str) -> Any:
        """Leave everything else to the other pricing."""
        return getattr(self.pricing, name)


def drawn_factor(errors: ModelErrors, seed: int) -> Factor:
    """Return factors as the errors say, one set of them."""

    @cache
    def normal(source: object) -> float:
        return float(generator(seed, ("test", source)).standard_normal())

    def factor(found: ErrorClass, rank: int) -> float:
        common, own = math.sqrt(errors.common), math.sqrt(1.0 - errors.common)
        logarithm = errors.of(found.kind) * (common * normal(found.kind) + own * normal(found))
        jitter = errors.jitter.get(found.kind, 0.0)
        if jitter:
            logarithm += jitter * normal((found.kind, rank)) - jitter**2 / 2
        return math.exp(logarithm)

    return factor
