"""Token slices: the dynamic program against every possible cut, and orders over slices through the engine."""

import math
from collections.abc import Callable, Iterator
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.engine.running.memory import peak_live_chunks
from sim.training.pipeline.actions import Action, Order
from sim.training.pipeline.schedules import one_forward_one_backward
from sim.training.pipeline.terapipe import SliceTimeError, Slicing, SlicingError, best_slices
from sim.training.pipeline.token_slices import seq_1f1b, terapipe
from tests.examples import examples
from tests.sim.jobs import run_textbook

SIXTEENTHS = st.integers(0, 64).map(lambda n: n / 16)
"""Times whose sums are exact."""


def affine(tokens: int, context: int) -> float:
    """Return the slice time of the reference cases."""
    return 2 + tokens + tokens * context / 16


def compositions(total: int) -> Iterator[tuple[int, ...]]:
    """Yield every way to write a number as an ordered sum."""
    if total == 0:
        yield ()
    for first in range(1, total + 1):
        for rest in compositions(total - first):
            yield (first, *rest)


def slice_times(time_s: Callable[[int, int], float], slices: tuple[int, ...]) -> list[float]:
    """Return the times of consecutive slices."""
    return [time_s(tokens, sum(slices[:i])) for i, tokens in enumerate(slices)]


def latency_s(times: list[float], num_stages: int) -> float:
    """Return when the last of equal stages ends, stage by stage and slice by slice."""
    ends = [0.0] * len(times)
    for _ in range(num_stages):
        free_s = 0.0
        for i, time_s in enumerate(times):
            ends[i] = free_s = max(free_s, ends[i]) + time_s
    return ends[-1]


def brute_force_s(time_s: Callable[[int, int], float], num_tokens: int, num_stages: int) -> float:
    """Return the least latency of all cuts of one sequence."""
    return min(latency_s(slice_times(time_s, slices), num_stages) for slices in compositions(num_tokens))


@st.composite
def random_times(draw: st.DrawFn, num_tokens: int) -> dict[tuple[int, int], float]:
    """Return times by tokens and context: any, or such as rise with tokens and context."""
    keys = [(n, c) for n in range(1, num_tokens + 1) for c in range(num_tokens - n + 1)]
    table = dict(zip(keys, draw(st.lists(SIXTEENTHS, min_size=len(keys), max_size=len(keys))), strict=True))
    if draw(st.booleans()):
        for n, c in keys:
            table[n, c] = max([table[n, c], *(table[key] for key in ((n - 1, c), (n, c - 1)) if key in table)])
    return table


def measured(table_s: dict[tuple[int, int], float]) -> Callable[[int, int], float]:
    """Return the slice time that a table has."""
    return lambda tokens, context: table_s[tokens, context]


# --- the dynamic program -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("num_tokens", "num_stages", "latency", "slices"),
    [
        (8, 4, Fraction(127, 4), (2, 2, 2, 2)),
        (16, 4, Fraction(855, 16), (5, 3, 3, 3, 2)),
        (16, 8, Fraction(1233, 16), (3, 3, 2, 2, 2, 2, 2)),
        (16, 48, Fraction(3849, 16), (1,) * 16),
    ],
)
def test_reference_cases(num_tokens: int, num_stages: int, latency: Fraction, slices: tuple[int, ...]) -> None:
    """t = 2 + l + l c / 16: the known latencies and slices."""
    best = best_slices(affine, num_tokens, num_stages)
    assert best.latency_s == latency
    assert best.latency_s == latency_s(slice_times(affine, slices), num_stages)
    assert latency_s(slice_times(affine, best.slices), num_stages) == latency
    assert best.slices == slices


@settings(max_examples=examples(60))
@given(data=st.data(), num_tokens=st.integers(1, 7), num_stages=st.integers(1, 9))
def test_no_cut_is_better(data: st.DataObject, num_tokens: int, num_stages: int) -> None:
    """For random times, rising or not, the latency is the least of all cuts, and is that of the slices returned."""
    table = data.draw(random_times(num_tokens))
    time_s = measured(table)
    best = best_slices(time_s, num_tokens, num_stages)
    assert best.latency_s == brute_force_s(time_s, num_tokens, num_stages)
    assert best == Slicing(best.slices, best.work_s, best.longest_s, num_stages)
    assert latency_s(slice_times(time_s, best.slices), num_stages) == best.latency_s


@settings(max_examples=examples(40))
@given(data=st.data(), num_tokens=st.integers(1, 6), num_stages=st.integers(1, 9), epsilon=st.integers(0, 40))
def test_epsilon_bounds_the_loss(data: st.DataObject, num_tokens: int, num_stages: int, epsilon: int) -> None:
    """With limits epsilon apart the latency is at most (K-1) epsilon above the least."""
    table, epsilon_s = data.draw(random_times(num_tokens)), epsilon / 16
    time_s = measured(table)
    rough_s = best_slices(time_s, num_tokens, num_stages, epsilon_s=epsilon_s).latency_s
    least_s = brute_force_s(time_s, num_tokens, num_stages)
    assert least_s <= rough_s <= least_s + (num_stages - 1) * epsilon_s


def test_epsilon_never_skips_a_good_limit() -> None:
    """A limit just above one that was tried is covered, although the next one up costs far more than epsilon."""
    table = {(n, c): 100.0 for n in range(1, 5) for c in range(5 - n)}
    table |= {(1, c): 1.0 for c in range(4)} | {(2, 0): 1.0625, (2, 2): 1.0625, (4, 0): 2.0}
    time_s = measured(table)
    assert [latency_s(slice_times(time_s, slices), 3) for slices in ((1, 1, 1, 1), (2, 2), (4,))] == [6.0, 4.25, 6.0]
    assert best_slices(time_s, 4, 3, epsilon_s=0.5).latency_s == 4.25


def test_granularity_counts_in_units() -> None:
    """Slices are multiples of the granularity, and the times are asked for in tokens."""
    best = best_slices(lambda n, c: affine(n // 8, c // 8), 128, 8, granularity=8)
    assert best.latency_s == Fraction(1233, 16)
    assert best.slices == tuple(8 * units for units in (3, 3, 2, 2, 2, 2, 2))


@pytest.mark.parametrize("time_s", [-1.0, math.nan, math.inf])
def test_impossible_times_are_refused(time_s: float) -> None:
    """A negative or infinite time names its slice."""
    with pytest.raises(SliceTimeError, match="a slice of 1 tokens after 1 takes"):
        best_slices(lambda n, c: time_s if c else 1.0, 2, 2)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: best_slices(affine, 0, 2), "num_tokens is 0"),
        (lambda: best_slices(affine, 4, 0), "num_stages is 0"),
        (lambda: best_slices(affine, 12, 2, granularity=8), "12 tokens are no multiple of the granularity 8"),
        (lambda: best_slices(affine, 4, 2, epsilon_s=-1.0), "epsilon is -1"),
        (lambda: best_slices(affine, 4, 2, num_sequences=0), "num_sequences is 0"),
    ],
)
def test_impossible_numbers_are_refused(call: Callable[[], Slicing], words: str) -> None:
    """Numbers that cannot be are named."""
    with pytest.raises(SlicingError, match=words):
        call()


# --- orders over slices ------------------------------------------------------------------------------------


@settings(max_examples=examples(16))
@given(
    p=st.integers(2, 6), m=st.integers(1, 4), q=st.sampled_from([1, 2, 4]), forward=st.integers(1, 48),
    backward=st.integers(2, 48), order=st.sampled_from([terapipe, seq_1f1b]),
)  # fmt: skip
def test_uniform_slices_follow_their_closed_forms(
    p: int, m: int, q: int, forward: int, backward: int, order: Callable[[int, int, int], list[Order]]
) -> None:
    """The engine's makespan is (m + (P-1)/q)(tF+tB); TeraPipe keeps mq slices, Seq1F1B min(P-1-r+q, mq) on rank r."""
    actions = tuple(tuple(actions) for actions in order(p, m, q))
    half_s = backward / 32
    run = run_textbook("custom", p, m * q, forward_s=forward / 16, input_s=half_s, weight_s=half_s, actions=actions)
    assert run.makespan_s == (m * q + p - 1) * (forward + backward) / 16
    peaks = [peak_live_chunks(program) for program in run.plan.programs]
    assert peaks == [m * q if order is terapipe else min(p - 1 - r + q, m * q) for r in range(p)]


@settings(max_examples=examples(16))
@given(
    p=st.integers(1, 4), m=st.integers(1, 3), q=st.integers(1, 4), order=st.sampled_from([terapipe, seq_1f1b]),
)  # fmt: skip
def test_slices_keep_their_sequence_in_order(
    p: int, m: int, q: int, order: Callable[[int, int, int], list[Order]]
) -> None:
    """On every rank a sequence's slices run forward from first to last, and backward from last to first, once each."""
    for rank, actions in enumerate(order(p, m, q)):
        assert sorted(actions) == sorted(Action(kind, rank, k) for kind in "FB" for k in range(m * q))
        for i in range(m):
            own = [action for action in actions if action.microbatch // q == i]
            assert [a.microbatch % q for a in own if a.kind == "F"] == list(range(q))
            assert [a.microbatch % q for a in own if a.kind == "B"] == list(reversed(range(q)))


def test_one_slice_per_sequence_is_1f1b() -> None:
    """Seq1F1B of whole sequences is 1F1B."""
    assert seq_1f1b(4, 6, 1) == one_forward_one_backward(4, 6)


@settings(max_examples=examples(24))
@given(times=st.lists(st.tuples(SIXTEENTHS, SIXTEENTHS), min_size=1, max_size=6), num_stages=st.integers(1, 5))
def test_two_phases_drain_one_after_the_other(times: list[tuple[float, float]], num_stages: int) -> None:
    """TeraPipe lasts sum + (K-1)(longest forward + longest backward), no less than the sum's formula for both."""
    forwards, backwards = [f for f, _ in times], [b for _, b in times]
    free_s, ends = [0.0] * num_stages, {}
    for kind, durations in (("F", forwards), ("B", backwards[::-1])):
        stages = range(num_stages) if kind == "F" else reversed(range(num_stages))
        arrivals = [0.0] * len(times)
        for stage in stages:
            for i, duration_s in enumerate(durations):
                arrivals[i] = free_s[stage] = max(free_s[stage], arrivals[i]) + duration_s
        ends[kind] = arrivals[-1]
    work_s = sum(forwards) + sum(backwards)
    assert ends["B"] == work_s + (num_stages - 1) * (max(forwards) + max(backwards))
    assert ends["B"] >= work_s + (num_stages - 1) * max(f + b for f, b in times)
