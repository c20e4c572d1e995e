"""Devices of one type that differ at random, where one simulated rank stands for many.

Members of a class do the same and wait for each other, at the latest where the step ends. Who waits for all of them
waits for the slowest: so the simulated rank is given, in every draw, the factors of that member whose kernels take
longest in all. Let a member's kernels of family f take t_f seconds and differ by sigma_f from device to device. To
first order they take t sigma . z longer, with t sigma the vector of t_f sigma_f and z standard normal: in units of the
length of that vector a standard normal variable, whose largest of n has the distribution function Phi^n. Given that
value m, z is m along t sigma and standard normal across it.

This is exact to first order where all members meet at the end alone, or where one family differs. Where they meet in
every layer a little is missing, as another member may be the slowest in each part of it. It is an upper bound where
members belong to different pipelines, of which the slowest counts: here the slowest of each stage are in one.
"""

import math
from collections import defaultdict
from collections.abc import Mapping

import numpy as np

from sim.engine.findings.critical_path import kind_of
from sim.engine.running.run import SimulatedRun
from sim.engine.uncertainty import generators
from sim.engine.uncertainty.errors import ModelErrors
from sim.engine.uncertainty.longest_path import Floats
from sim.engine.uncertainty.normal import even_probabilities, normal_quantiles


def jitter_logarithms(run: SimulatedRun, errors: ModelErrors, num_draws: int) -> Mapping[tuple[int, str], Floats]:
    """Return the logarithm of how many times as long as predicted kernels take, by simulated rank and family, per draw.

    A device's factor has mean 1; what the run has drawn of it already is taken away.
    """
    families = [family for family, sigma in errors.jitter.items() if sigma > 0.0]
    sigma = np.array([errors.jitter[family] for family in families])
    found: dict[tuple[int, str], Floats] = {}
    for rank in run.programs if families else ():
        spent = _spent_s(run, rank)
        moved = np.array([spent.get(family, 0.0) for family in families]) * sigma
        random = generators.generator(run.plan.seed, ("jitter", rank))
        normal = _of_slowest(moved, run.folding.multiplicity[rank], random, num_draws)
        for family, deviation, row in zip(families, sigma.tolist(), normal, strict=True):
            already = math.log(errors.drawn.slowdown(family, rank))
            found[rank, family] = deviation * row - deviation**2 / 2 - already
    return found


def _of_slowest(moved: Floats, count: int, random: "np.random.Generator", num_draws: int) -> Floats:
    """Return standard normal variables, x draws, of that of ``count`` members whose sum with ``moved`` is largest."""
    normal = random.standard_normal((len(moved), num_draws))
    length = float(np.sqrt(moved @ moved))
    if length == 0.0:
        return normal
    along = moved / length
    above = -np.expm1(np.log(random.permutation(even_probabilities(num_draws))) / count)
    largest = -normal_quantiles(above)
    slowest: Floats = normal + along[:, None] * (largest - along @ normal)
    return slowest


def _spent_s(run: SimulatedRun, rank: int) -> Mapping[str, float]:
    """Return the seconds that a rank's kernels take in a step, by family."""
    program, spent = run.programs[rank], defaultdict[str, float](float)
    for name, count in run.num_calls(rank).items():
        for op, seconds in zip(program.tasks[name].ops, run.priced[rank][name].durations_s, strict=True):
            spent[kind_of(op)] += count * seconds
    return spent
