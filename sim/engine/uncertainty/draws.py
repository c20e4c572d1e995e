"""Drawn errors of the cost models: factors by which calls take longer than predicted.

Every source of errors has a generator of its own, so what a source draws depends on nothing else that is drawn. In the
one direction in which the step time moves to first order, the draws are replaced by as many equally likely parts of a
normal distribution, in the same order: where nothing else decides, their quantiles are those of first order, however
few they are.
"""

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from sim.engine.running.run import SimulatedRun
from sim.engine.uncertainty import generators
from sim.engine.uncertainty.errors import ErrorClass, ModelErrors
from sim.engine.uncertainty.first_order import relative_deviation
from sim.engine.uncertainty.jitter import jitter_logarithms
from sim.engine.uncertainty.loadings import STEP, Loadings, Source
from sim.engine.uncertainty.longest_path import Floats
from sim.engine.uncertainty.normal import even_probabilities, normal_quantiles

Erring = tuple[ErrorClass, int | None]
"""A class of calls, on one simulated rank where devices differ at random."""


class Draws(Struct, frozen=True):
    """``factors``: error factors, classes x draws. ``step``: a further factor of the whole step, per draw."""

    factors: Floats
    step: Floats


def drawn(
    erring: Sequence[Erring], errors: ModelErrors, loaded: Loadings, moved: Floats, run: SimulatedRun, num_draws: int
) -> Draws:
    """Return drawn error factors of the classes, in their order. ``moved``: change of the step time per source."""
    normal = _normals((*loaded.sources, STEP), np.append(moved, errors.step), run.plan.seed, num_draws)
    of_class = loaded.matrix @ normal[:-1]
    logarithms = of_class[[loaded.classes[found] for found, _ in erring]]
    jitter = jitter_logarithms(run, errors, num_draws)
    for row, (found, rank) in enumerate(erring):
        if rank is not None:
            logarithms[row] += jitter[rank, found.kernels]
    return Draws(np.exp(logarithms), np.exp(errors.step * normal[-1]))


def _normals(sources: Sequence[Source], moved: Floats, seed: int, num_draws: int) -> Floats:
    """Return standard normal draws, sources x draws, even along the direction that ``moved`` is."""
    normal = np.array([generators.generator(seed, source).standard_normal(num_draws) for source in sources])
    deviation = relative_deviation(moved, 0.0)
    if deviation > 0.0:
        direction = moved / deviation
        along = direction @ normal
        order = np.argsort(np.argsort(along, kind="stable"), kind="stable")
        normal += direction[:, None] * (normal_quantiles(even_probabilities(num_draws))[order] - along)
    return normal
