"""Drawn errors of the cost models: factors by which calls take longer than predicted.

Every source of errors has a generator of its own, so runs that share a kernel's shape and a seed share its errors, and
nothing depends on what else is drawn. In the one direction in which the step time moves to first order, the draws are
replaced by as many equally likely parts of a normal distribution, in the same order: where nothing else decides, their
quantiles are those of first order, however few they are.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sim.engine.run import SimulatedRun
from sim.engine.uncertainty.errors import ErrorClass, ModelErrors
from sim.engine.uncertainty.first_order import STEP, Source, relative_deviation
from sim.engine.uncertainty.jitter import jitter_logarithms
from sim.engine.uncertainty.longest_path import Floats
from sim.engine.uncertainty.normal import even_probabilities, generator, normal_quantiles

Erring = tuple[ErrorClass, int | None]
"""A class of calls, on one simulated rank where devices differ at random."""


@dataclass(frozen=True, slots=True)
class Draws:
    """``factors``: of what errs x draws; ``step``: of the whole step, beside these, by draw."""

    factors: Floats
    step: Floats


def drawn(
    erring: Sequence[Erring], errors: ModelErrors, moved: Mapping[Source, float], run: SimulatedRun, num_draws: int
) -> Draws:
    """Return drawn factors of what errs, in that order. ``moved``: what moves the step time, to first order."""
    normal = _normals(erring, moved, run.plan.seed, num_draws)
    common, own = math.sqrt(errors.common), math.sqrt(1.0 - errors.common)
    jitter = jitter_logarithms(run, errors, num_draws)
    factors = np.empty((len(erring), num_draws))
    for row, (found, rank) in enumerate(erring):
        factors[row] = errors.of(found.kind) * (common * normal[found.kind] + own * normal[found])
        if rank is not None:
            factors[row] += jitter[rank, found.kind]
    return Draws(np.exp(factors), np.exp(errors.step * normal[STEP]))


def _normals(
    erring: Sequence[Erring], moved: Mapping[Source, float], seed: int, num_draws: int
) -> Mapping[Source, Floats]:
    """Return standard normal draws of every source of errors, even along the direction that ``moved`` is."""
    drawn_of = {source: _of_source(source, seed, num_draws) for source in moved}
    for found, _ in erring:
        for source in (found.kind, found):
            if source not in drawn_of:
                drawn_of[source] = _of_source(source, seed, num_draws)
    deviation = relative_deviation(moved)
    if deviation > 0.0:
        along = sum((value / deviation * drawn_of[source] for source, value in moved.items()), np.zeros(num_draws))
        order = np.argsort(np.argsort(along, kind="stable"), kind="stable")
        missing = normal_quantiles(even_probabilities(num_draws))[order] - along
        for source, value in moved.items():
            drawn_of[source] += value / deviation * missing
    return drawn_of


def _of_source(source: Source, seed: int, num_draws: int) -> Floats:
    return generator(seed, source).standard_normal(num_draws)
