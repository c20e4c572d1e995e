"""How far the cost models of a profile may be off."""

from typing import Final

from sim.engine.pricing import ClusterPricing
from sim.engine.uncertainty.errors import NETWORK, ModelErrors

ASSUMED: Final = {"gemm": 0.05, "attention": 0.05, "elementwise": 0.1, "optimizer": 0.1, NETWORK: 0.1}
"""Deviations where a profile states none: of products and attention about what held-out kernels of A100, H100, H200 and
B200 show, of the network what the measured collectives of traces/published show; elementwise and optimizer: assumption.
"""
COMMON: Final = 0.5
"""Assumption: half of a family's variance is common to all of its calls, half is of each shape."""
STEP: Final = 0.015
"""Assumption: what no kernel's table shows moves a step by 1.5 %."""


def errors_of(pricing: ClusterPricing) -> ModelErrors:
    """Return the errors of a profile's models: those on rows that nothing was fitted to, else the assumed ones.

    Of whole steps it is what the framework's constants leave, where that is more than is assumed. Devices differ
    by what the cluster's jitter says, where it says something of a family, else by what its profile has measured.
    """
    step = max(STEP, pricing.software.step_spread)
    sigma, variation = {**ASSUMED, **pricing.profile.sigma}, pricing.variation
    stated = {family: value for family, value in variation.sigma.items() if value > 0.0}
    jitter = {**pricing.profile.jitter, **stated}
    return ModelErrors(sigma=sigma, common=COMMON, step=step, jitter=jitter, drawn=variation)
