"""Into which token slices TeraPipe cuts sequences, so that a pipeline step is shortest (Li et al., ICML 2021).

Causal attention lets a stage begin with a slice as soon as it has done the tokens before it. K equal stages then are a
flow shop: slices of times t_1..t_n, forward and backward measured together, take

    T = t_1 + ... + t_n + (K-1) max t_i.

That is exact where the slice that is longest forward is longest backward too; else it is a lower bound, since the two
phases fill and drain one after the other: sum t_i + (K-1)(max forward + max backward).

The dynamic program (section 3.3): for a limit on a slice's time, S(0) = 0 and S(i) = min over k of S(i-k) + t(k, i-k)
where t(k, i-k) <= limit; T is the least S(L) + (K-1) limit over all limits, which are the slice times themselves.

Times are functions (tokens, context) -> seconds; context: the tokens of the sequence before the slice. A function of
one's own, ``measured`` with a table, or ``fitted`` to measurements will do.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

SliceTime = Callable[[int, int], float]
"""(tokens, context) -> seconds that one stage needs for a slice, forward and backward, messages included."""

BatchSliceTime = Callable[[int, int, int], float]
"""(sequences, tokens, context) -> seconds that one stage needs for a slice of several sequences."""

Table = NDArray[np.float64]
"""Seconds by end and start of a slice, in units of the granularity; infinite where there is no slice."""


class SliceTimeError(ValueError):
    """A slice time that is missing, negative or not finite; names tokens and context."""


class SlicingError(ValueError):
    """Tokens, slices or stages that cannot be; names the number and the rule."""


class Group(NamedTuple):
    """Sequences that go through the pipeline together, slice by slice (tokens, in order)."""

    num_sequences: int
    slices: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Slicing:
    """How a batch is cut, and what it takes.

    ``work_s``: the sum of all slice times on one stage. ``longest_s``: the longest of them. ``num_copies``: how often
    the same batch goes through, one after the other.
    """

    groups: tuple[Group, ...]
    work_s: float
    longest_s: float
    num_stages: int
    num_copies: int = 1

    @property
    def latency_s(self) -> float:
        """Return the step's time in seconds: the copies' work + (K-1) longest."""
        return self.num_copies * self.work_s + (self.num_stages - 1) * self.longest_s

    @property
    def slices(self) -> tuple[int, ...]:
        """Return the tokens of all slices in the order in which they enter the pipeline."""
        return tuple(tokens for group in self.groups for tokens in group.slices)


def best_slices(
    time_s: SliceTime,
    num_tokens: int,
    num_stages: int,
    *,
    num_sequences: int = 1,
    granularity: int = 1,
    epsilon_s: float = 0.0,
) -> Slicing:
    """Return the best slices of sequences that go through the pipeline one after the other, all cut alike.

    As ``best_batch_slices``, for one sequence of these; a sequence may stand for several that always travel together.
    """
    _check(num_sequences=num_sequences, num_tokens=num_tokens, num_stages=num_stages, granularity=granularity)
    return _best([time_s], _Problem(num_tokens, granularity, num_stages, num_sequences), epsilon_s)


def best_batch_slices(
    time_s: BatchSliceTime,
    num_sequences: int,
    num_tokens: int,
    num_stages: int,
    *,
    granularity: int = 1,
    epsilon_s: float = 0.0,
) -> Slicing:
    """Return the best cut of a batch into groups of sequences, and of each group into slices of tokens.

    ``granularity``: slices are multiples of it (the paper's implementation: 8). Under each limit on slice times every
    group size b has its own S_b(L), and g(B) = min over b of g(B-b) + S_b(L) chooses the groups; so all groups share
    one fill and drain. (A knapsack over whole latencies T_b would charge one to each group, and is no optimum.)

    ``epsilon_s`` 0: exact. Else limits are tried that lie at most epsilon above any slice time, and the latency is
    at most (K-1) epsilon above the least. (Skipping slice times that are less than epsilon above the last one tried,
    as the authors' program does, has no such bound: the next limit tried may lie anywhere above.) Limits are
    tried in rising order, until (K-1) limit + max(limit, least work) is no less than what was found; the paper stops
    at K limit.

    Time O(n) array operations per limit and group size with n = tokens / granularity; at most Bn(n+1)/2 limits.
    Raises SliceTimeError for a time that is negative or not finite, SlicingError for numbers that cannot be.
    """
    _check(num_sequences=num_sequences, num_tokens=num_tokens, num_stages=num_stages, granularity=granularity)
    times = [partial(time_s, b) for b in range(1, num_sequences + 1)]
    return _best(times, _Problem(num_tokens, granularity, num_stages, 1), epsilon_s)


def uniform_slices(
    time_s: SliceTime, num_tokens: int, num_stages: int, num_slices: int, *, granularity: int = 1
) -> Slicing:
    """Return slices of one length, to compare with; where they do not come out even, the first ones are longer.

    Raises SlicingError where there are more slices than units of the granularity.
    """
    _check(num_tokens=num_tokens, num_stages=num_stages, num_slices=num_slices, granularity=granularity)
    units, rest = divmod(num_tokens, granularity)
    if rest or num_slices > units:
        raise SlicingError(f"{num_tokens} tokens do not make {num_slices} slices of multiples of {granularity}")
    length, longer = divmod(units, num_slices)
    slices = tuple((length + (i < longer)) * granularity for i in range(num_slices))
    return cut(time_s, slices, num_stages)


def cut(time_s: SliceTime, slices: Sequence[int], num_stages: int) -> Slicing:
    """Return what given slices (tokens, in order) of one sequence take; SlicingError for none, or an empty one."""
    if not slices:
        raise SlicingError("there are no slices")
    for i, tokens in enumerate(slices):
        if tokens < 1:
            raise SlicingError(f"slice {i} has {tokens} tokens; it must have 1 or more")
    contexts = [sum(slices[:i]) for i in range(len(slices))]
    times = [
        _checked(time_s(tokens, context), tokens, context) for tokens, context in zip(slices, contexts, strict=True)
    ]
    return Slicing((Group(1, tuple(slices)),), math.fsum(times), max(times), num_stages)


# --- slice times -------------------------------------------------------------------------------------------


def measured(table_s: Mapping[tuple[int, int], float]) -> SliceTime:
    """Return the time of a slice as a table (tokens, context) -> seconds has it; SliceTimeError where it has none."""

    def time_s(tokens: int, context: int) -> float:
        if (tokens, context) not in table_s:
            raise SliceTimeError(f"no time was measured for a slice of {tokens} tokens after {context}")
        return table_s[tokens, context]

    return time_s


def fitted(table_s: Mapping[tuple[int, int], float]) -> SliceTime:
    """Return the paper's model of slice times (section 3.3), fitted to a table (tokens, context) -> seconds.

    t(l, c) = t(l, 0) as measured + a_0 + a_1 l + a_2 c + a_3 l c for c > 0, the a's by least squares. The table needs
    t(l, 0) for each length used, and four or more other entries that tell the a's apart; SliceTimeError if not.
    """
    alone_s = {tokens: time_s for (tokens, context), time_s in table_s.items() if context == 0}
    rows = [(tokens, context, time_s) for (tokens, context), time_s in table_s.items() if context > 0]
    for tokens, _, _ in rows:
        if tokens not in alone_s:
            raise SliceTimeError(f"no time was measured for a slice of {tokens} tokens after 0")
    features = np.array([[1.0, tokens, context, tokens * context] for tokens, context, _ in rows]).reshape(-1, 4)
    if np.linalg.matrix_rank(features) < 4:
        raise SliceTimeError(f"{len(rows)} measured slices with context do not determine the 4 numbers of the model")
    extra_s = np.array([time_s - alone_s[tokens] for tokens, _, time_s in rows])
    a0, a1, a2, a3 = np.linalg.lstsq(features, extra_s, rcond=None)[0].tolist()

    def predicted_s(tokens: int, context: int) -> float:
        if tokens not in alone_s:
            raise SliceTimeError(f"no time was measured for a slice of {tokens} tokens after 0")
        return alone_s[tokens] + (a0 + a1 * tokens + a2 * context + a3 * tokens * context if context else 0.0)

    return predicted_s


# --- the dynamic program -----------------------------------------------------------------------------------


class _Problem(NamedTuple):
    """What is cut: ``num_copies`` times the same, one after the other, in multiples of ``granularity`` tokens."""

    num_tokens: int
    granularity: int
    num_stages: int
    num_copies: int


def _best(times_s: Sequence[SliceTime], problem: _Problem, epsilon_s: float) -> Slicing:
    """Return the best cut; ``times_s[b-1]``: of slices of b sequences."""
    num_tokens, granularity, num_stages, _ = problem
    if not (epsilon_s >= 0.0 and math.isfinite(epsilon_s)):
        raise SlicingError(f"epsilon is {epsilon_s} s; it must be finite and not negative")
    if num_tokens % granularity:
        raise SlicingError(f"{num_tokens} tokens are no multiple of the granularity {granularity}")
    tables = [_table(time_s, num_tokens, granularity) for time_s in times_s]
    search = _Search(tables, problem)
    values = np.unique(np.concatenate([table[np.isfinite(table)] for table in tables])).tolist()
    best = search.solve(math.inf)
    if best is None:
        raise AssertionError("without a limit every slice is allowed")
    least_work_s = best.num_copies * best.work_s
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
    """Yield limits that cover rising values, each within epsilon: the lowest value covered, and the limit."""
    first = 0
    while first < len(values):
        last = max(first, bisect_right(values, values[first] + epsilon_s) - 1)
        yield values[first], values[last]
        first = last + 1


@dataclass(frozen=True, slots=True)
class _Search:
    """The dynamic program under one limit. ``tables[b-1]``: the times of slices of b sequences."""

    tables: Sequence[Table]
    problem: _Problem

    def solve(self, limit_s: float) -> Slicing | None:
        """Return the cut with the least work whose slices keep the limit; None where there is none."""
        paths = [_least_work(table, limit_s) for table in self.tables]
        work_s, parts = [0.0], [0]
        for batch in range(1, len(paths) + 1):
            sums = [work_s[batch - b] + paths[b - 1][0] for b in range(1, batch + 1)]
            work_s.append(min(sums))
            parts.append(sums.index(work_s[batch]) + 1)
        if math.isinf(work_s[-1]):
            return None
        groups, longest_s, rest = [], 0.0, len(paths)
        while rest:
            size = parts[rest]
            bounds = paths[size - 1][1]
            slices = [(end - start) * self.problem.granularity for start, end in bounds]
            longest_s = max([longest_s, *(float(self.tables[size - 1][end, start]) for start, end in bounds)])
            groups.append(Group(size, tuple(slices)))
            rest -= size
        return Slicing(tuple(groups), work_s[-1], longest_s, self.problem.num_stages, self.problem.num_copies)


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
