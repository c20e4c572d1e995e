"""The 90 % interval of a step time, from the known errors of cost models."""

import math
from enum import StrEnum
from typing import Final, NamedTuple

from msgspec import Struct

from costmodels.spread import NORMAL_90
from sim.engine.findings.critical_path import CriticalPath
from sim.engine.uncertainty.draws import Erring, drawn
from sim.engine.uncertainty.errors import ErrorClass, ErrorClasses, ModelErrors
from sim.engine.uncertainty.first_order import path_shares, relative_deviation, sensitivities
from sim.engine.uncertainty.loadings import loadings
from sim.engine.uncertainty.longest_path import Floats
from sim.engine.uncertainty.normal import quantiles
from sim.engine.uncertainty.retiming import MOST_NODES, num_whole_nodes, retiming

NUM_DRAWS: Final = 128


class Interval(NamedTuple):
    """From low to high."""

    low: float
    high: float


class Method(StrEnum):
    """The method of an interval: drawn runs, or first-order errors along the critical path."""

    SAMPLED = "sampled"
    FIRST_ORDER = "first_order"


class StepInterval(Struct, frozen=True):
    """What holds the step time, in seconds, in 90 % of cases, and what as many lie below as above.

    The median is above the time of a run without errors: of several ranks that wait for each other, one was slower.
    """

    bounds: Interval
    median_s: float
    method: Method


def step_time_interval(path: CriticalPath, errors: ModelErrors, most_nodes: int = MOST_NODES) -> StepInterval:
    """Return the interval of a run's step time: the 5 and 95 % quantiles of drawn runs, and their median.

    Of a run whose retiming takes more than ``most_nodes`` it is what errors of the critical path make of it, without
    jitter.
    """
    time_s = path.run.iteration_time_s
    if num_whole_nodes(path.run) > most_nodes:
        spread = NORMAL_90 * step_deviation(path, errors)
        bounds = Interval(time_s * math.exp(-spread), time_s * math.exp(spread))
        return StepInterval(bounds, time_s, Method.FIRST_ORDER)
    times_s = drawn_step_times_s(path, errors, NUM_DRAWS, most_nodes)
    low_s, median_s, high_s = quantiles(times_s, (0.05, 0.5, 0.95)).tolist()
    return StepInterval(Interval(low_s, high_s), median_s, Method.SAMPLED)


def step_deviation(path: CriticalPath, errors: ModelErrors) -> float:
    """Return the standard deviation of the logarithm of a run's step time to first order, without jitter."""
    classes = ErrorClasses()
    shares = path_shares(path, classes)
    loaded = loadings(list(shares), classes.predicted_s(path.run), errors)
    return relative_deviation(sensitivities(shares, loaded), errors.step)


def drawn_step_times_s(path: CriticalPath, errors: ModelErrors, num_draws: int, most_nodes: int = MOST_NODES) -> Floats:
    """Return step times with so many drawn sets of errors, in seconds."""
    classes, erring = ErrorClasses(), dict[Erring, int]()
    alike = not any(sigma > 0.0 for sigma in errors.jitter.values())

    def factor_row(found: ErrorClass, rank: int) -> int:
        device = rank if errors.jitter.get(found.kernels, 0.0) > 0.0 else None
        return erring.setdefault((found, device), len(erring))

    run = path.run
    retimed = retiming(run, classes, factor_row, most_nodes, alike=alike)
    shares = path_shares(path, classes)
    found = list(dict.fromkeys([*shares, *(of for of, _ in erring)]))
    loaded = loadings(found, classes.predicted_s(run), errors)
    draws = drawn(list(erring), errors, loaded, sensitivities(shares, loaded), run, num_draws)
    times_s: Floats = run.iteration_time_s * retimed.relative_times(draws.factors) * draws.step
    return times_s
