"""How sure a predicted step time is: errors of the cost models, along the critical path, as an interval.

A model's error is the logarithm of measured over predicted time. One part of it is the same for all calls of a family
(a clock, a library's version), one for all calls of one kernel on one shape, wherever they run, and one for the whole
step (what no kernel's table shows). All are taken as normal and independent of each other. To first order the step is
longer by what the ops of its critical path are, so the relative variance of the step is

    step^2 + sum over families (share_f common_f)^2 + sum over kernels and shapes (share_k own_k)^2

with shares of the path. First order leaves out that another path may become the longest; ``test_uncertainty.py``
holds the interval against runs with drawn errors.
"""

import math
from collections import defaultdict
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from sim.engine.critical_path import COPY, MESSAGE, CriticalPath, Step, kind_of
from sim.plan.description import collective_bytes, payload_bytes
from sim.plan.op import Collective, CollectiveKind, Compute

NETWORK: Final = "network"
COLLECTIVES: Final = frozenset(map(str, CollectiveKind))
NORMAL_90: Final = 1.6448536269514722
"""Standard deviations to both sides that hold 90 % of a normal distribution."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelErrors:
    """Standard deviations of the logarithm of measured over predicted.

    ``sigma``: by kernel family, and of NETWORK, all errors of one call together; ``common`` is the part of that
    variance which all calls of a family share, from 0 to 1; ``step``: of the whole step, beside all of these.
    """

    sigma: Mapping[str, float]
    common: float
    step: float

    def of(self, kind: str) -> float:
        """Return a kind's standard deviation; of what moves bytes the network's, of stated times 0."""
        network = kind in {MESSAGE, COPY} or kind in COLLECTIVES
        return self.sigma.get(NETWORK if network else kind, 0.0)


class Interval(NamedTuple):
    """From low to high."""

    low: float
    high: float


def step_time_interval(path: CriticalPath, errors: ModelErrors) -> Interval:
    """Return the interval that holds the step time, in seconds, in 90 % of cases."""
    spread = NORMAL_90 * relative_deviation(path, errors)
    time_s = path.run.iteration_time_s
    return Interval(time_s * math.exp(-spread), time_s * math.exp(spread))


def relative_deviation(path: CriticalPath, errors: ModelErrors) -> float:
    """Return the standard deviation of the logarithm of a step time."""
    families: dict[str, float] = defaultdict(float)
    calls: dict[Hashable, float] = defaultdict(float)
    time_s = path.run.makespan_s
    for step in path.steps:
        kind = kind_of(step.op)
        share = step.duration_s / time_s * errors.of(kind)
        families[kind] += share
        calls[kind, shape_of(path, step)] += share
    common = errors.common * sum(value**2 for value in families.values())
    own = (1.0 - errors.common) * sum(value**2 for value in calls.values())
    return math.sqrt(errors.step**2 + common + own)


def shape_of(path: CriticalPath, step: Step) -> Hashable:
    """Return what tells calls of one kind apart that err differently: kernel and shapes, or bytes and group."""
    op = step.op
    if op is None:
        return None
    program = path.run.programs[step.rank]
    if isinstance(op, Compute):
        buffers = (program.buffers[name] for name in (*op.reads, *op.writes))
        return (op.kernel, *((buffer.shape, buffer.dtype) for buffer in buffers))
    if isinstance(op, Collective):
        return (collective_bytes(program, op), op.axes)
    return payload_bytes(program, (*op.reads, *op.writes))
