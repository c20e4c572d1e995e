"""How far the cost models of a profile may be off."""

from sim.engine.prices.pricing import ClusterPricing
from sim.engine.uncertainty.errors import ModelErrors


def errors_of(pricing: ClusterPricing, step: float | None = None) -> ModelErrors:
    """Return the errors of a profile's models, as it states them.

    ``step``: error of whole steps; None: the larger of the profile's and that of the framework's constants. Devices
    differ by the cluster's jitter for each family that it states, else by the jitter that the profile has measured.
    """
    profile, variation = pricing.profile, pricing.variation
    stated = {family: value for family, value in variation.sigma.items() if value > 0.0}
    return ModelErrors(
        spread=profile.spread,
        step=max(profile.step_spread, pricing.software.step_spread) if step is None else step,
        jitter={**profile.jitter, **stated},
        drawn=variation,
    )
