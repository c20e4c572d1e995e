"""FlexMoE's estimate of a layer's step time, from profiled rates (Nie et al. 2023, eq. 5 to 9).

Only the policy believes it: time in a simulation comes from the engine.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sim.moe.balancing.assignment import Floats, Placement, assigned
from sim.moe.routing import Counts

_EXCHANGES = 4  # dispatch and combine, forward and backward


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Profiled rates of a layer with experts.

    ``tokens_per_s``: through an expert, forward and backward. ``token_bytes``: of a row of an exchange.
    ``link_bytes_per_s``: between two ranks. ``reduce_bytes_per_s``: of an all_reduce of ``gradient_bytes``, which an
    expert's gradients have.
    """

    tokens_per_s: float
    token_bytes: float
    link_bytes_per_s: float
    reduce_bytes_per_s: float
    gradient_bytes: float


@dataclass(frozen=True, slots=True)
class Estimate:
    """Seconds of every rank, and the tokens that it computes."""

    compute_s: Floats
    exchange_s: Floats
    sync_s: Floats
    load: Floats

    @property
    def time_s(self) -> float:
        """Return the time of the slowest rank."""
        return float((self.compute_s + self.exchange_s + self.sync_s).max())

    @property
    def balance_ratio(self) -> float:
        """Return the largest load over the mean one."""
        return float(self.load.max() / self.load.mean())


def estimate(counts: Counts, placement: Placement, rates: Rates) -> Estimate:
    """Return the estimate for choices [source, expert] and vExperts [rank, expert]."""
    between: NDArray[np.float64] = assigned(counts, placement).sum(1)  # [source, rank]
    load = between.sum(0)
    np.fill_diagonal(between, 0.0)
    busiest = np.maximum(between.sum(1), between.sum(0))
    holds = placement > 0
    replicas = holds.sum(0)
    of_expert = 2.0 * (replicas - 1) / replicas * rates.gradient_bytes / rates.reduce_bytes_per_s
    return Estimate(
        compute_s=load / rates.tokens_per_s,
        exchange_s=_EXCHANGES * busiest * rates.token_bytes / rates.link_bytes_per_s,
        sync_s=holds @ of_expert,
        load=load,
    )
