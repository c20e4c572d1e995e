"""How errors of the cost models change a step time to first order: along its critical path.

A step is longer by what the ops on its critical path are. So the logarithm of its time moves by

    step z + sum over families share_f sqrt(common) sigma_f z_f + sum over classes share_c sqrt(1 - common) sigma_c z_c

with shares of the path and independent standard normal z; its variance is the sum of the squares. First order leaves
out that another path may become the longest.
"""

import math
from collections import defaultdict
from collections.abc import Mapping
from typing import Final

from sim.engine.critical_path import CriticalPath
from sim.engine.uncertainty.errors import IN_FLIGHT, ErrorClass, ErrorClasses, ModelErrors

STEP: Final = "whole step"
Source = str | ErrorClass
"""What errs independently of all else: the whole step, a family in common, a class on its own."""


def sensitivities(path: CriticalPath, errors: ModelErrors, classes: ErrorClasses) -> dict[Source, float]:
    """Return by how much one standard deviation of every source of errors moves the logarithm of a step time."""
    shares = defaultdict[ErrorClass, float](float)
    for step in path.steps:
        found = IN_FLIGHT if step.op is None else classes.of(path.run.programs[step.rank], step.op)
        shares[found] += step.duration_s / path.run.makespan_s
    result: dict[Source, float] = defaultdict(float, {STEP: errors.step})
    for found, share in shares.items():
        sigma = errors.of(found.kind)
        result[found.kind] += math.sqrt(errors.common) * sigma * share
        result[found] += math.sqrt(1.0 - errors.common) * sigma * share
    return dict(result)


def relative_deviation(moved: Mapping[Source, float]) -> float:
    """Return the standard deviation of the logarithm of a step time that sources of errors move so much."""
    return math.sqrt(math.fsum(value**2 for value in moved.values()))
