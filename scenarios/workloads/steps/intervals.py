"""How far the cost models of a profile may be off."""

from sim.engine.prices.pricing import ClusterPricing
from sim.engine.uncertainty.errors import ModelErrors


def errors_of(pricing: ClusterPricing, step: float | None = None) -> ModelErrors:
    """Return the errors of a profile's models, as it states them.

    ``step``: of whole steps; None: as the profile says, or what the framework's constants leave, where that is more.
    Devices differ by what the cluster's jitter says, where it says something of a family, else by what its profile has
    measured.
    """
    profile, variation = pricing.profile, pricing.variation
    stated = {family: value for family, value in variation.sigma.items() if value > 0.0}
    return ModelErrors(
        spread=profile.spread,
        step=max(profile.step_spread, pricing.software.step_spread) if step is None else step,
        jitter={**profile.jitter, **stated},
        drawn=variation,
    )
