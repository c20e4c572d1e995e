"""A folded timeline, written out, is that of the run whose micro-batches are all simulated."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from scenarios.report.charts.gantt import Bars, Gantt, choose_bars
from scenarios.report.charts.op_kinds import longest_kinds
from scenarios.report.pages.role_charts import memory_lines
from sim.engine.findings.timeline import folded_timeline, timeline
from sim.engine.prices.textbook import TextbookPricing
from sim.engine.running.simulate import simulate
from sim.plan.words.program import Plan
from tests.sim.engine.compiling.test_teams import slow_devices
from tests.sim.engine.running.test_repeated import LAW, TIMES, VIRTUAL_STAGES
from tests.sim.jobs import dense_plan, pricing_on, textbook_plan
from tests.sim.strategies import NODES, dense_keys
from traces.comparison.compare import compare
from traces.comparison.critical_path import critical_path_s
from traces.timeline import Detail, Timeline
from traces.unrolling import num_unrolled, unrolled, with_passes

DETAILS = st.sampled_from(["op", "task"])


@st.composite
def long_keys(draw: Any, most: int = 96) -> dict[str, Any]:
    """Draw the keys of a job with up to ``most`` micro-batches, of any schedule that suits the degrees."""
    keys: dict[str, Any] = draw(dense_keys())
    pp = keys["pp"]
    return keys | {"m": pp * draw(st.integers(24 // pp, most // pp))}


def in_order(table: Timeline) -> NDArray[np.int64]:
    """Return the rows by rank, stream, name and micro-batch, then by time: an order that rounding leaves as it is."""
    words = [np.array(column.values or [""])[column.codes] for column in (table.stream, table.name)]
    order: NDArray[np.int64] = np.lexsort((table.start_s, table.microbatch, table.stage, *words, table.rank))
    return order


def assert_same(found: Timeline, expected: Timeline) -> None:
    """Fail unless two timelines have the same rows, to 1e-9 of the step, the same messages and the same memory."""
    assert len(found) == len(expected)
    orders = in_order(found), in_order(expected)
    for column in ("rank", "microbatch", "stage", "bytes", "flop"):
        assert np.array_equal(getattr(found, column)[orders[0]], getattr(expected, column)[orders[1]]), column
    for column in ("stream", "name", "kind", "group"):
        words, others = getattr(found, column), getattr(expected, column)
        assert [words.at(row) for row in orders[0]] == [others.at(row) for row in orders[1]], column
    slack_s = 1e-9 * expected.duration_s
    for column in ("start_s", "end_s"):
        times_s, other_s = getattr(found, column)[orders[0]], getattr(expected, column)[orders[1]]
        assert np.abs(times_s - other_s).max() <= slack_s, column
    assert together(found, orders[0]) == together(expected, orders[1])
    assert np.array_equal(found.memory.rank, expected.memory.rank)
    assert np.array_equal(found.memory.bytes, expected.memory.bytes)
    assert np.abs(found.memory.time_s - expected.memory.time_s).max(initial=0.0) <= slack_s


def together(table: Timeline, order: NDArray[np.int64]) -> Counter[tuple[int, ...]]:
    """Return which rows are one message or collective, by their place in an order."""
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    found = table.messages
    groups: dict[int, list[int]] = {}
    for row, number in zip(found.member.tolist(), found.collective.tolist(), strict=True):
        groups.setdefault(number, []).append(int(place[row]))
    pairs = [(-1, int(place[a]), int(place[b])) for a, b in zip(found.send, found.recv, strict=True)]
    return Counter([*pairs, *(tuple(sorted(members)) for members in groups.values())])


@LAW
@given(keys=long_keys(), node=st.sampled_from(NODES), per_node=st.sampled_from([1, 2, 4, 8]), detail=DETAILS)
def test_written_out_it_is_the_timeline_of_the_whole_run(
    keys: dict[str, Any], node: str, per_node: int, detail: Detail
) -> None:
    """On random plans all rows, messages, collectives and memory are those of the run that is not folded, to 1e-9."""
    plan = dense_plan(**keys)
    pricing = pricing_on(node, plan.mesh.size, devices_per_node=per_node)
    run, whole = simulate(plan, pricing), simulate(plan, pricing, repeat=False)
    assert_same(timeline(run, detail), timeline(whole, detail))


@LAW
@given(
    schedule=st.sampled_from(["1f1b", "interleaved", "zb_h2", "zb_v", "zb_auto", "dualpipe_v"]), p=st.integers(2, 4),
    rounds=st.integers(20, 50), times_s=st.tuples(TIMES, TIMES, TIMES), hop_s=st.sampled_from([0.0, 0.1, 0.45, 3.0]),
    detail=DETAILS,
)  # fmt: skip
def test_stated_times_are_written_out_as_simulated(
    schedule: str, p: int, rounds: int, times_s: tuple[float, float, float], hop_s: float, detail: Detail
) -> None:
    """So they are with stated times, where messages may take longer than a period, or none."""
    forward_s, input_s, weight_s = sorted(times_s, reverse=True)
    plan = textbook_plan(
        schedule, p, p * rounds, VIRTUAL_STAGES.get(schedule, 1),
        forward_s=forward_s, input_s=input_s, weight_s=weight_s, hop_s=hop_s,
    )  # fmt: skip
    runs = (simulate(plan, TextbookPricing(), repeat=repeat) for repeat in (True, False))
    assert_same(*(timeline(run, detail) for run in runs))


def test_a_straggler_is_written_out_as_simulated() -> None:
    """With a slow device, collectives of ranks that arrive apart are found again in every pass."""
    plan = dense_plan(tp=2, pp=2, m=80, schedule="zb_h1")
    run, whole = (simulate(plan, slow_devices(1, 3), repeat=repeat) for repeat in (True, False))
    assert run.repeated is not None
    assert len(timeline(whole, "op").messages.member) > 0
    assert_same(timeline(run, "op"), timeline(whole, "op"))


@LAW
@given(keys=long_keys(), node=st.sampled_from(NODES), detail=DETAILS)
def test_reports_draw_and_count_the_same(keys: dict[str, Any], node: str, detail: Detail) -> None:
    """Bars, kinds of op, busy times and memory over time are the same from both."""
    plan = dense_plan(**keys)
    pricing = pricing_on(node, plan.mesh.size)
    folded = folded_timeline(simulate(plan, pricing), detail)
    whole = timeline(simulate(plan, pricing, repeat=False), detail)
    assert folded.duration_s == pytest.approx(whole.duration_s, rel=1e-9)
    assert num_unrolled(folded) == len(whole)
    assert folded.busy_s() == pytest.approx(whole.busy_s(), rel=1e-9, abs=1e-12)
    kinds, others = ({(k.name, k.phase, k.stream): k for k in longest_kinds(t, 1000)} for t in (folded, whole))
    assert kinds.keys() == others.keys()
    for key, kind in kinds.items():
        assert (kind.num_ops, kind.time_s, kind.flop) == pytest.approx(
            (others[key].num_ops, others[key].time_s, others[key].flop), rel=1e-9
        )
    lines, expected = (memory_lines("memory", t, None) for t in (folded, whole))
    for line, other in zip(lines.curves, expected.curves, strict=True):
        assert line.words == other.words
        assert np.allclose(line.xs, other.xs, rtol=1e-9)
        assert line.ys == other.ys
    assert_same_bars(choose_bars(folded, max_bars=None), choose_bars(whole, max_bars=None), whole.duration_s)


def assert_same_bars(found: Gantt, expected: Gantt, step_s: float) -> None:
    """Fail unless two pictures have the same bars, to 1e-9 of the step."""
    assert (found.ranks, found.left_out) == (expected.ranks, expected.left_out)
    for window, other in zip(found.windows, expected.windows, strict=True):
        bars, others = by_call(window.bars), by_call(other.bars)
        for column in ("lane", "phase", "microbatch", "chunk", "task"):
            assert np.array_equal(getattr(bars, column), getattr(others, column)), column
        for column in ("start_s", "end_s"):
            assert np.abs(getattr(bars, column) - getattr(others, column)).max() <= 1e-9 * step_s, column


def by_call(bars: Bars) -> Bars:
    """Return bars by rank, task and micro-batch: an order that rounding leaves as it is."""
    return bars.take(np.lexsort((bars.start_s, bars.microbatch, np.array(bars.task), bars.phase, bars.lane)))


def folded_and_whole(plan: Plan) -> tuple[Timeline, Timeline]:
    """Return the folded timeline of a plan, and that of its whole run."""
    pricing = pricing_on("dgx-a100-80g", plan.mesh.size)
    whole = timeline(simulate(plan, pricing, repeat=False), "op")
    return folded_timeline(simulate(plan, pricing), "op"), whole


def test_a_comparison_writes_both_sides_out() -> None:
    """Folded against whole: the same work, no difference; against another run: the same numbers from both kinds."""
    folded, whole = folded_and_whole(dense_plan(pp=2, m=60))
    assert folded.period is not None
    assert len(folded) < len(whole) / 3
    same = compare(folded, whole)
    assert same.same_work
    assert abs(same.makespan_error) < 1e-9
    other = folded_and_whole(dense_plan(pp=2, m=60, recompute="full"))[0]
    found, expected = compare(folded, other), compare(whole, unrolled(other))
    assert found.mismatches == expected.mismatches
    assert found.critical_paths_s[0] == pytest.approx(expected.critical_paths_s[0], rel=1e-9)
    for mine, theirs in zip(found.by_kind, expected.by_kind, strict=True):
        assert (mine.key, mine.num_first, mine.num_second) == (theirs.key, theirs.num_first, theirs.num_second)
        assert (mine.first_s, mine.second_s) == pytest.approx((theirs.first_s, theirs.second_s), rel=1e-9)


def test_some_passes_are_those_of_all() -> None:
    """A picture's passes have the rows of the whole step, and the messages whose ends are both drawn."""
    folded, _ = folded_and_whole(dense_plan(pp=2, m=60))
    assert folded.period is not None
    chosen = [0, 1, 5, folded.period.count - 1]
    every, some = unrolled(folded), with_passes(folded, chosen)
    keys = [key_of(every, row) for row in range(len(every))]
    assert len(set(keys)) == len(keys)
    kept = {key_of(some, row) for row in range(len(some))}
    assert len(kept) == len(some) < len(every)
    assert kept < set(keys)
    pairs = [
        {(key_of(t, a), key_of(t, b)) for a, b in zip(t.messages.send, t.messages.recv, strict=True)}
        for t in (some, every)
    ]
    assert pairs[0] == {(send, receive) for send, receive in pairs[1] if {send, receive} <= kept}


def key_of(table: Timeline, row: int) -> tuple[Any, ...]:
    """Return what tells a row from all others."""
    words = table.stream.at(row), table.name.at(row)
    return (int(table.rank[row]), *words, int(table.microbatch[row]), round(float(table.start_s[row]), 12))


@pytest.mark.parametrize("keys", [{"pp": 2}, {"pp": 4, "tp": 2, "schedule": "zb_h1"}, {"dp": 4, "zero_stage": 3}])
def test_the_critical_path_goes_through_few_passes(keys: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Its seconds are those through the whole step, read off a step with a part of the passes."""
    folded, whole = folded_and_whole(dense_plan(m=140, **keys))
    walked: list[int] = []

    def noted(table: Timeline) -> Timeline:
        walked.append(num_unrolled(table))
        return unrolled(table)

    monkeypatch.setattr("traces.comparison.critical_path.unrolled", noted)
    found = critical_path_s(folded)
    assert max(walked) < len(whole) / 2
    assert found == pytest.approx(critical_path_s(whole), rel=1e-9)
    assert sum(found.values()) == pytest.approx(whole.duration_s, rel=1e-9)


@LAW
@given(keys=long_keys(most=40), node=st.sampled_from(NODES), detail=DETAILS)
def test_critical_paths_are_those_of_the_whole_run(keys: dict[str, Any], node: str, detail: Detail) -> None:
    """On random plans the path is divided among kinds of op as in the timeline of all micro-batches."""
    plan = dense_plan(**keys)
    pricing = pricing_on(node, plan.mesh.size)
    folded = folded_timeline(simulate(plan, pricing), detail)
    whole = timeline(simulate(plan, pricing, repeat=False), detail)
    found, expected = critical_path_s(folded), critical_path_s(whole)
    assert found == pytest.approx(expected, rel=1e-9, abs=1e-9 * whole.duration_s)
