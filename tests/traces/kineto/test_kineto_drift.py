"""Clocks that drift from each other are brought back, where the ends of collectives prove it, and nowhere else."""

import random
from collections.abc import Sequence
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from scenarios.recorded.trace_summary import summarise
from tests.examples import examples
from tests.traces.kineto_traces import Event, activity, all_reduce, document, launch, texts_of, write
from traces.kineto.drift import find_drift, theil_sen
from traces.kineto.ends import Ends
from traces.kineto.trace import KinetoTrace, load

PERIOD_US = 1e6
SLOPES = st.floats(-100e-6, 100e-6)


def record(
    folder: Path,
    clocks: Sequence[tuple[float, float]],
    *,
    num_steps: int = 24,
    noise_us: float = 0.0,
    late: float = 0.0,
) -> KinetoTrace:
    """Write and load a profile of ranks whose clocks are ``a + (1 + b) t`` (us), a collective a second.

    Ends lie up to ``noise_us`` apart, and the part ``late`` of them by up to a millisecond more.
    """
    folder.mkdir(exist_ok=True)
    chance = random.Random(5)
    everyone = list(range(len(clocks)))
    for rank, (ahead_us, drift) in enumerate(clocks):
        events: list[Event] = []
        for step in range(num_steps):
            begin = 1000.0 + PERIOD_US * step
            lag = noise_us * chance.random() + (1000.0 * chance.random() if chance.random() < late else 0.0)
            arrival = begin + 100.0 + 50.0 * chance.random()
            events += [launch(step + 1, begin), activity("gemm", begin + 5, 80, correlation=step + 1)]
            events.append(all_reduce(arrival, begin + 300.0 + lag - arrival, ranks=everyone, Seq=step))
        for event in events:
            begin, end = (ahead_us + (1 + drift) * us for us in (event["ts"], event["ts"] + event["dur"]))
            event |= {"ts": begin, "dur": end - begin}
        write(folder / f"rank{rank}.json", document(events, rank=rank, world_size=len(clocks)))
    return load(folder)


def starts_us(trace: KinetoTrace) -> list[np.ndarray]:
    """Return when each rank's activities begin on the common clock, in microseconds from the first end of rank 0."""
    shifts_s = trace.alignment.shift_s.tolist()
    zero_s = float(trace.ranks[0].rows.end_s[1]) + shifts_s[0]
    return [1e6 * (rank.rows.start_s + shift_s - zero_s) for rank, shift_s in zip(trace.ranks, shifts_s, strict=True)]


@settings(max_examples=examples(10), deadline=None)
@given(
    clocks=st.lists(st.tuples(st.floats(-1e7, 1e7), SLOPES), min_size=2, max_size=4),
    noise_us=st.sampled_from((0.0, 5.0)),
)
def test_any_drifting_clocks_come_back_to_what_they_showed(
    tmp_path_factory: pytest.TempPathFactory, clocks: list[tuple[float, float]], noise_us: float
) -> None:
    """Ranks on clocks ``a + (1 + b) t`` are aligned as on one clock, but for the median clock's own speed; what is left
    is the noise, or too little to be told from it.
    """
    folder = tmp_path_factory.mktemp("drift")
    plain = record(folder / "plain", [(0.0, 0.0)] * len(clocks), noise_us=noise_us)
    moved = record(folder / "moved", clocks, noise_us=noise_us)
    pace = 1 + float(np.median([drift for _, drift in clocks]))
    assert moved.alignment.drift == pytest.approx([(1 + b) / pace - 1 for _, b in clocks], abs=5e-7)
    for ours, theirs in zip(starts_us(moved), starts_us(plain), strict=True):
        assert ours / pace == pytest.approx(theirs, abs=2 * noise_us + 4.0)


@settings(max_examples=examples(8), deadline=None)
@given(noise_us=st.floats(0.0, 50.0), late=st.sampled_from((0.0, 0.1)), offset_us=st.floats(-1e6, 1e6))
def test_clocks_of_one_speed_are_left_as_they_are(
    tmp_path_factory: pytest.TempPathFactory, noise_us: float, late: float, offset_us: float
) -> None:
    """Without drift no time of any rank is rescaled, whatever the noise: the drift is 0, exactly."""
    trace = record(tmp_path_factory.mktemp("same"), [(0.0, 0.0), (offset_us, 0.0)], noise_us=noise_us, late=late)
    assert trace.alignment.drift.tolist() == [0.0, 0.0]
    assert trace.alignment.offset_s[1] * 1e6 == pytest.approx(-offset_us, abs=noise_us + 1.0)


def test_late_ends_hide_no_drift(tmp_path: Path) -> None:
    """With a tenth of the ends up to a millisecond late, a clock 20 ppm fast is still found, to a part of a ppm."""
    trace = record(tmp_path, [(0.0, 0.0), (0.0, 0.0), (3e6, 20e-6)], num_steps=60, noise_us=3.0, late=0.1)
    assert 1e6 * trace.alignment.drift == pytest.approx([0.0, 0.0, 20.0], abs=0.3)
    assert (trace.alignment.residual_s < 4e-6).all()
    assert not texts_of(trace.warnings)


def test_the_order_of_ranks_does_not_matter() -> None:
    """However ranks are numbered, each clock has the same drift."""
    generator = np.random.default_rng(3)
    end_s = np.sort(generator.uniform(0, 30, 40))[:, None] + generator.exponential(2e-6, (40, 4))
    drift = np.array([0.0, 0.0, 15e-6, -40e-6])
    found = []
    for order in permutations(range(4)):
        column = (end_s * (1 + drift))[:, order].ravel()
        ends = Ends(np.repeat(np.arange(40), 4), np.tile(np.arange(4), 40), column - 1e-3, column, 40)
        found.append(find_drift(ends, 4).known[np.argsort(order)])
    assert np.ptp(found, axis=0) == pytest.approx(np.zeros(4), abs=1e-7)
    assert found[0] == pytest.approx(drift, abs=1e-7)


def test_drift_reaches_ranks_through_others() -> None:
    """Ranks 0 and 2 share no collective, but both share some with rank 1: the drift between them is the sum."""
    time_s = np.arange(40.0)
    pair = np.repeat(time_s < 20, 2)
    rank = np.where(pair, np.tile([0, 1], 40), np.tile([1, 2], 40))
    end_s = np.repeat(np.where(time_s < 20, time_s, time_s - 20), 2) * (1 + 1e-5 * np.array([0, 1, 3])[rank])
    ends = Ends(np.repeat(np.arange(40), 2), rank, end_s - 1e-3, end_s, 40)
    assert 1e6 * find_drift(ends, 3).known == pytest.approx([-10.0, 0.0, 20.0], rel=1e-4, abs=1e-6)


@given(
    st.lists(st.tuples(st.floats(0, 100), st.floats(-1, 1)), min_size=8, max_size=40, unique_by=lambda point: point[0])
)
def test_lines_are_those_of_scipy(points: list[tuple[float, float]]) -> None:
    """Slope and confidence interval are scipy's, where no two points have one height (it then narrows the interval)."""
    x, y = np.array(points).T
    y = y + 1e-3 * np.sin(np.arange(len(y)))
    if len(np.unique(y)) < len(y) or np.diff(np.sort(x)).min() < 1e-6:
        return
    line, expected = theil_sen(x, y), scipy.stats.theilslopes(y, x, alpha=0.99)
    assert [line.slope, line.low, line.high] == pytest.approx([expected[0], expected[2], expected[3]])


def test_a_line_that_breaks_cause_and_effect_is_no_drift() -> None:
    """Ends of long collectives on a line, with short ones between them that a drift would end before they begin: only
    without the short ones is it a drift.
    """
    time_s = np.arange(40.0)
    short = time_s % 4 == 0
    apart_s = np.where(short, 0.0, 2e-5 * (time_s - 20.0))
    end_s = np.stack([time_s, time_s + apart_s], axis=1)
    start_s = time_s[:, None] - np.where(short, 10e-6, 2e-3)[:, None]
    for kept, drifts in ((np.full(40, True), False), (~short, True)):
        rows = np.repeat(np.arange(kept.sum()), 2), np.tile([0, 1], kept.sum())
        ends = Ends(*rows, np.repeat(start_s[kept], 2), end_s[kept].ravel(), int(kept.sum()))
        assert find_drift(ends, 2).known.any() == drifts


def test_collectives_in_reverse_order_are_no_drift(tmp_path: Path) -> None:
    """A clock that would have to run backwards is left as it is, and said to be none."""
    for rank, sign in enumerate((1, -3)):
        events = [all_reduce(1e5 + sign * 1e3 * k, 50.0, Seq=k) for k in range(20)]
        write(tmp_path / f"rank{rank}.json", document(events, rank=rank, world_size=2))
    trace = load(tmp_path)
    assert trace.alignment.drift.tolist() == [0.0, 0.0]
    said = [text for text in texts_of(trace.warnings) if "than a real clock can" in text]
    assert len(said) == 1
    assert said[0].endswith("rank 0 +100 %, rank 1 -100 %")


def test_what_is_lost_in_the_noise_is_not_corrected(tmp_path: Path) -> None:
    """A drift that moves ends by less than they scatter is left alone."""
    trace = record(tmp_path, [(0.0, 0.0), (0.0, 1e-6)], noise_us=60.0)
    assert trace.alignment.drift.tolist() == [0.0, 0.0]


def test_collectives_that_end_before_they_begin_elsewhere_are_counted(tmp_path: Path) -> None:
    """A clock that jumps in the midst fits no line: what it breaks is counted, with how far."""
    for rank in range(2):
        moments = (1e4 * k + (600.0 if rank and k > 5 else 0.0) for k in range(9))
        events = [all_reduce(moment, 100.0, Seq=k) for k, moment in enumerate(moments)]
        write(tmp_path / f"rank{rank}.json", document(events, rank=rank, world_size=2))
    said = "3 collectives end on one rank before they have begun on all (by up to 500 us)"
    assert any(warning.startswith(said) for warning in texts_of(load(tmp_path).warnings))


def test_the_summary_says_the_drift(tmp_path: Path) -> None:
    """Parts per million that were taken out, by rank, beside offset and residual."""
    trace = record(tmp_path, [(0.0, 0.0), (0.0, 0.0), (0.0, 20e-6)])
    summary = summarise(tmp_path, "all", trace)
    assert [rank.clock_drift_ppm for rank in summary.ranks] == pytest.approx([0.0, 0.0, 20.0], abs=1e-3)
    residuals_s = [rank.worst_residual_s for rank in summary.ranks]
    assert all(residual_s is not None and residual_s < 1e-6 for residual_s in residuals_s)
    assert summary.warnings == ()
