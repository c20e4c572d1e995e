"""The token slices with the shortest pipeline step: TeraPipe's dynamic program (Li et al., ICML 2021).

With causal attention a stage can compute a slice once it has computed the tokens before it. K equal stages are then a
flow shop: slices of times t_1..t_n, forward plus backward, take

    T = t_1 + ... + t_n + (K-1) max t_i.

This is exact where the slice with the longest forward also has the longest backward. Otherwise it is a lower bound,
since the two phases fill and drain one after the other: sum t_i + (K-1)(max forward + max backward).

The dynamic program (section 3.3): for a limit on a slice's time, S(0) = 0 and S(i) = min over k of S(i-k) + t(k, i-k)
where t(k, i-k) <= limit. T is the least S(L) + (K-1) limit over all limits, and the limits are the slice times
themselves.

Times are functions (tokens, context) -> seconds; context: the tokens of the sequence before the slice.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

SliceTime = Callable[[int, int], float]
"""(tokens, context) -> seconds of one stage for a slice, forward and backward, messages included."""

Table = NDArray[np.float64]
"""Seconds by end and start of a slice, in units of the granularity; infinite where there is no such slice."""


class SliceTimeError(ValueError):
    """A slice time that is negative or not finite; the message names tokens and context."""


class SlicingError(ValueError):
    """An impossible number of tokens, slices or stages; the message names the number and the rule."""


class Slicing(Struct, frozen=True):
    """The slices of every sequence, and their time.

    ``slices``: tokens of each slice, in order.
    ``work_s``: the sum of one sequence's slice times on one stage.
    ``longest_s``: the longest slice time. ``num_sequences`` go through ``num_stages``, one after the other.
    """

    slices: tuple[int, ...]
    work_s: float
    longest_s: float
    num_stages: int
    num_sequences: int = 1

    @property
    def latency_s(self) -> float:
        """Return the step time in seconds: all work + (K-1) times the longest slice time."""
        return self.num_sequences * self.work_s + (self.num_stages - 1) * self.longest_s


def best_slices(
    time_s: SliceTime,
    num_tokens: int,
    num_stages: int,
    *,
    num_sequences: int = 1,
    granularity: int = 1,
    epsilon_s: float = 0.0,
) -> Slicing:
    """Return the best slices for sequences that go through the pipeline one after the other, all cut alike.

    A sequence may stand for several that always travel together.
    ``granularity``: slices are multiples of this many tokens (the paper's implementation: 8).
    ``epsilon_s``: 0 is exact. Otherwise every slice time has a tried limit at most epsilon above it, and the latency is
        at most (K-1) epsilon above the least. The authors' program instead skips slice times less than epsilon above
        the last one tried; that has no such bound, since the next limit may lie anywhere above.

    Limits rise until (K-1) limit + max(limit, least work) is no less than the best latency found; the paper stops at K
    limit. Each limit takes O(n) array operations with n = tokens / granularity; there are at most n(n+1)/2 limits.

    Raises SliceTimeError for a time that is negative or not finite, SlicingError for impossible numbers.
    """
    _check(num_sequences=num_sequences, num_tokens=num_tokens, num_stages=num_stages, granularity=granularity)
    if not (epsilon_s >= 0.0 and math.isfinite(epsilon_s)):
        raise SlicingError(f"epsilon is {epsilon_s} s; it must be finite and not negative")
    if num_tokens % granularity:
        raise SlicingError(f"{num_tokens} tokens are no multiple of the granularity {granularity}")
    search = _Search(_table(time_s, num_tokens, granularity), granularity, num_stages, num_sequences)
    best = search.solve(math.inf)
    if best is None:
        raise AssertionError("without a limit every slice is allowed")
    least_work_s = num_sequences * best.work_s
    values = np.unique(search.table[np.isfinite(search.table)]).tolist()
    feasible = bisect_left(values, True, key=lambda limit_s: search.solve(limit_s) is not None)
    for lowest_s, limit_s in _limits(values[feasible:], epsilon_s):
        if (num_stages - 1) * lowest_s + max(lowest_s, least_work_s) >= best.latency_s:
            break
        found = search.solve(limit_s)
        if found is not None and found.latency_s < best.latency_s:
            best = found
    return best


def _table(time_s: SliceTime, num_tokens: int, granularity: int) -> Table:
    units = num_tokens // granularity
    table = np.full((units + 1, units + 1), math.inf)
    for end in range(1, units + 1):
        for start in range(end):
            tokens, context = (end - start) * granularity, start * granularity
            table[end, start] = _checked(time_s(tokens, context), tokens, context)
    return table


def _limits(values: Sequence[float], epsilon_s: float) -> Iterator[tuple[float, float]]:
    """Yield limits that cover the rising ``values``, each within epsilon: the lowest value covered, and the limit."""
    first = 0
    while first < len(values):
        last = max(first, bisect_right(values, values[first] + epsilon_s) - 1)
        yield values[first], values[last]
        first = last + 1


class _Search(Struct, frozen=True):
    """The dynamic program under one limit."""

    table: Table
    granularity: int
    num_stages: int
    num_sequences: int

    def solve(self, limit_s: float) -> Slicing | None:
        """Return the slicing with the least work within the limit; None where there is none."""
        work_s, bounds = _least_work(self.table, limit_s)
        if math.isinf(work_s):
            return None
        slices = tuple((end - start) * self.granularity for start, end in bounds)
        longest_s = max(float(self.table[end, start]) for start, end in bounds)
        return Slicing(slices, work_s, longest_s, self.num_stages, self.num_sequences)


def _least_work(table: Table, limit_s: float) -> tuple[float, list[tuple[int, int]]]:
    """Return S(L), and the (start, end) of the slices in order; infinite and empty where the limit allows none."""
    units = len(table) - 1
    sums, starts = np.full(units + 1, math.inf), [0] * (units + 1)
    sums[0] = 0.0
    for end in range(1, units + 1):
        times = table[end, :end]
        candidates = np.where(times <= limit_s, sums[:end] + times, math.inf)
        starts[end] = int(candidates.argmin())
        sums[end] = candidates[starts[end]]
    bounds, end = [], units
    while end and math.isfinite(sums[units]):
        bounds.append((starts[end], end))
        end = starts[end]
    return float(sums[units]), bounds[::-1]


def _checked(time_s: float, tokens: int, context: int) -> float:
    if not (time_s >= 0.0 and math.isfinite(time_s)):
        raise SliceTimeError(
            f"a slice of {tokens} tokens after {context} takes {time_s} s; a time must be finite and not negative"
        )
    return float(time_s)


def _check(**numbers: int) -> None:
    for name, number in numbers.items():
        if number < 1:
            raise SlicingError(f"{name} is {number}; it must be 1 or more")
