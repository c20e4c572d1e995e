"""First-order changes of a step time by errors of cost models: along its critical path.

A step is longer by what the ops on its critical path are. So the logarithm of its time moves by the sum over classes
of their share of the path times their own logarithm's error: by ``shares @ loadings`` times independent standard normal
sources, and by the whole step's error; its variance is the sum of the squares. First order leaves out that another path
may become the longest.
"""

import math
from collections import defaultdict
from collections.abc import Mapping

import numpy as np

from sim.engine.findings.critical_path import CriticalPath
from sim.engine.uncertainty.errors import IN_FLIGHT, ErrorClass, ErrorClasses
from sim.engine.uncertainty.loadings import Loadings
from sim.engine.uncertainty.longest_path import Floats


def path_shares(path: CriticalPath, classes: ErrorClasses) -> Mapping[ErrorClass, float]:
    """Return the part of a critical path's time that calls of every class take."""
    shares = defaultdict[ErrorClass, float](float)
    total_s = sum(spent.seconds for spent in path.spent)
    of_ranks = {rank: classes.of_distinct(program) for rank, program in path.run.programs.items()}
    for rank, op, place, seconds in path.spent:
        shares[IN_FLIGHT if op is None else of_ranks[rank][place]] += seconds / total_s
    return dict(shares)


def sensitivities(shares: Mapping[ErrorClass, float], loaded: Loadings) -> Floats:
    """Return by how much one standard deviation of every source moves the logarithm of a step time.

    Every class that has a share must have loadings.
    """
    of_class = np.zeros(len(loaded.classes))
    for found, share in shares.items():
        of_class[loaded.classes[found]] = share
    moved: Floats = of_class @ loaded.matrix
    return moved


def relative_deviation(moved: Floats, step: float) -> float:
    """Return the standard deviation of the logarithm of a step time; ``step``: of the whole step, beside all else."""
    return math.hypot(float(np.sqrt(moved @ moved)), step)
