"""Prices that are off by drawn factors: what full runs of the engine are made with that intervals are held against."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from msgspec.structs import replace

from costmodels.spread import Spread
from sim.engine.prices.activity import Activity, Pricing
from sim.engine.uncertainty.errors import ErrorClass, ErrorClasses, ModelErrors
from sim.engine.uncertainty.generators import generator
from sim.engine.uncertainty.loadings import loadings
from sim.plan.words.op import Op
from sim.plan.words.program import Phase, Plan, Program, Task

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
        alone = replace(program, tasks={"op": Task("op", Phase.FORWARD, (op,))})
        factor = self.factor(ErrorClasses().of_distinct(alone)[0], rank)
        if self.alone:
            return Activity(activity.duration_s * factor)
        demands = tuple((resource, seconds * factor) for resource, seconds in activity.demands)
        return Activity(activity.latency_s * factor, demands, activity.single_s * factor)

    def __getattr__(self, name: str) -> Any:
        """Leave everything else to the other pricing."""
        return getattr(self.pricing, name)


def model_errors(
    sigma: Mapping[str, float], common: float = 0.5, step: float = 0.0, jitter: Mapping[str, float] | None = None
) -> ModelErrors:
    """Return errors with one deviation per family, whatever calls take, and nothing that neighbours share."""
    spread = {family: Spread(deviation=((1.0, value),), common=common) for family, value in sigma.items()}
    return ModelErrors(spread=spread, step=step, jitter=jitter or {})


def drawn_factor(errors: ModelErrors, seed: int) -> Factor:
    """Return factors as the errors say, one set of them; of what neighbours share nothing."""

    @cache
    def normal(source: object) -> float:
        return float(generator(seed, ("test", source)).standard_normal())

    def factor(found: ErrorClass, rank: int) -> float:
        loaded = loadings([found], {}, errors)
        logarithm = sum(value * normal(of) for of, value in zip(loaded.sources, loaded.matrix[0], strict=True))
        jitter = errors.jitter.get(found.kernels, 0.0)
        if jitter:
            logarithm += jitter * normal((found.kernels, rank)) - jitter**2 / 2
        return math.exp(logarithm)

    return factor
