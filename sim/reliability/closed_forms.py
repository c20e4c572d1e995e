"""Closed forms for checkpoints and exponential failures.

Symbols of the papers, all times in seconds: M: mean time between failures (``mtbf_s``). C: time for which training
stops per checkpoint (``stall_s``; delta in Daly). R: time to restart (``restart_s``). t: training time between two
checkpoints (``interval_s``; tau in Daly).

Two times are added here to Daly's complete model: B: background time after which a checkpoint is usable
(``background_s``). D: a wait after each failure during which nothing can fail (``wait_s``).
"""

import math
from collections.abc import Sequence

from msgspec import Struct


def young_interval_s(mtbf_s: float, stall_s: float) -> float:
    """Return sqrt(2 C M), the first-order best training time between checkpoints in seconds.

    Source: Young 1974, A first order approximation to the optimum checkpoint interval, CACM 17(9). Assumes C << M.
    """
    return math.sqrt(2.0 * stall_s * mtbf_s)


def daly_interval_s(mtbf_s: float, stall_s: float) -> float:
    """Return Daly's higher order estimate of the best training time between checkpoints in seconds.

    sqrt(2CM) (1 + sqrt(C/2M)/3 + (C/2M)/9) - C for C < 2M, else M. Source: Daly 2006, A higher order estimate of the
    optimum checkpoint interval for restart dumps, FGCS 22(3), equation 37.
    """
    if stall_s >= 2.0 * mtbf_s:
        return mtbf_s
    ratio = stall_s / (2.0 * mtbf_s)
    return young_interval_s(mtbf_s, stall_s) * (1.0 + math.sqrt(ratio) / 3.0 + ratio / 9.0) - stall_s


def best_interval_s(mtbf_s: float, stall_s: float) -> float:
    """Return the best training time between checkpoints in seconds, in the exact model.

    It is the zero of the derivative of (exp((t + C)/M) - 1)/t. With u = t/M that is -ln(1 - u) - u = C/M, which has one
    root between 0 and 1. R, B and D multiply the expected time by a constant, so they do not move the optimum.

    The root is found by Newton's method. The left side rises and is convex, so from above the root every step comes
    closer to it from above, until rounding stops it. Both sqrt(2 C/M) and 1 - e^(-1-C/M) are above the root, since the
    left side is at least u^2/2.
    """
    if not stall_s:
        return 0.0
    ratio = stall_s / mtbf_s
    if ratio > 30.0:  # the root is M (1 - e^(-1 - C/M)), equal to M to the last digit but one
        return mtbf_s
    u = min(math.sqrt(2.0 * ratio), -math.expm1(-1.0 - ratio))
    while (closer := u - _excess(u, ratio) * (1.0 - u) / u) < u:
        u = closer
    return mtbf_s * u


def _excess(u: float, ratio: float) -> float:
    """Return -ln(1 - u) - u - C/M, with u = t/M: negative below the optimum and positive above it."""
    if u < 1e-3:  # the series, since the difference of the logarithm and u would lose all digits
        return u * u * (1 / 2 + u * (1 / 3 + u * (1 / 4 + u * (1 / 5 + u / 6)))) - ratio
    return -math.log1p(-u) - u - ratio


class ExactModel(Struct, frozen=True, kw_only=True):
    """Expected values of a run with exponential failures and regular checkpoints.

    For B = D = 0 this is the complete model of Daly 2006; failures can happen while training, saving and restarting. B
    acts as a longer restart: work done while the last checkpoint was being written is done again. D is the downtime of
    Bougeret et al. 2011 (Checkpointing strategies for parallel jobs, SC11).
    """

    mtbf_s: float
    stall_s: float
    restart_s: float
    background_s: float = 0.0
    wait_s: float = 0.0

    def segment_s(self, interval_s: float) -> float:
        """Return the expected seconds from one usable checkpoint to the next, failures and restarts included.

        (M + D) e^((R + B)/M) (e^((t + C)/M) - 1); infinite if a double cannot hold it.
        """
        return self._segment_s(interval_s + self.stall_s, self.restart_s + self.background_s)

    def goodput(self, interval_s: float) -> float:
        """Return the goodput of a long run: the fraction of its time spent on training whose result is kept."""
        return interval_s / self.segment_s(interval_s)

    def run_s(self, intervals_s: Sequence[tuple[float, int]]) -> float:
        """Return the expected seconds of a run from its first step until its last checkpoint is usable.

        ``intervals_s``: the training times of the segments in order, each with its number of repetitions. The first
            segment begins without a checkpoint being written, so its checkpoint is usable B later than a later
            segment's: (M + D) e^(R/M) (e^((t + C + B)/M) - 1). The run begins without a restart.
        """
        (first_s, times), *rest = intervals_s
        total_s = self._segment_s(first_s + self.stall_s + self.background_s, self.restart_s)
        return total_s + sum(count * self.segment_s(t_s) for t_s, count in [(first_s, times - 1), *rest] if count)

    def _segment_s(self, exposed_s: float, restart_s: float) -> float:
        if (restart_s + exposed_s) / self.mtbf_s > 700.0:
            return math.inf
        grown = math.exp(restart_s / self.mtbf_s) * math.expm1(exposed_s / self.mtbf_s)
        return (self.mtbf_s + self.wait_s) * grown
