"""Closed forms of the zero-bubble, breadth-first and bidirectional schedules, in the regions where they hold."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.engine.running.memory import peak_live_chunks
from sim.engine.running.run import SimulatedRun
from sim.training.errors import SpecError
from sim.training.pipeline.evaluate import end_times
from sim.training.pipeline.schedules import orders, placement
from tests.examples import examples
from tests.sim.jobs import op_times, run_textbook, textbook_job
from tests.sim.training.pipeline.test_textbook import DURATION, spans

RANKS = st.integers(2, 6)
SIXTEENTHS = st.integers(1, 48)


def peaks(run: SimulatedRun) -> list[int]:
    """Return every rank's most chunks in flight."""
    return [peak_live_chunks(program) for program in run.plan.programs]


@settings(max_examples=examples(16), deadline=None)
@given(
    p=RANKS, more=st.integers(0, 6), v=st.sampled_from([1, 2, 4]), schedule=st.sampled_from(["breadth_first", "aiao"]),
    forward_s=DURATION, input_s=DURATION, weight_s=DURATION, coalesce=st.booleans(),
)  # fmt: skip
def test_breadth_first_follows_its_closed_forms(
    *, p: int, more: int, v: int, schedule: str, forward_s: float, input_s: float, weight_s: float, coalesce: bool
) -> None:
    """With m >= P it lasts (m+(P-1)/v)(tF+tBW), and every rank keeps mv chunks."""
    m = p + more
    run = run_textbook(schedule, p, m, v, forward_s=forward_s, input_s=input_s, weight_s=weight_s, coalesce=coalesce)
    assert run.makespan_s == (m + (p - 1) / v) * (forward_s + input_s + weight_s)
    assert peaks(run) == [m * v] * p


@pytest.mark.parametrize(("m", "overhead_s"), [(4, 11.5), (5, 10), (6, 8.5), (7, 8), (8, 7.5)])
def test_breadth_first_needs_more_micro_batches_where_hops_take_time(m: int, overhead_s: float) -> None:
    """P=4, v=2, a hop as long as a chunk's forward: no stall between chunks from m = 2P on."""
    assert run_textbook("breadth_first", 4, m, 2, hop_s=0.5).makespan_s == 3 * m + overhead_s


@settings(max_examples=examples(16), deadline=None)
@given(
    p=RANKS, extra=st.integers(0, 4), groups=st.integers(1, 3), v=st.sampled_from([2, 4]),
    forward_s=DURATION, input_s=DURATION, weight_s=DURATION,
)  # fmt: skip
def test_grouped_interleaving_follows_its_closed_forms(
    *, p: int, extra: int, groups: int, v: int, forward_s: float, input_s: float, weight_s: float
) -> None:
    """Groups of N >= P do not change the makespan; rank r keeps min(2(P-1-r)+(v-1)N+1, mv) chunks."""
    size = p + extra
    m = size * groups
    times = {"forward_s": forward_s, "input_s": input_s, "weight_s": weight_s}
    run = run_textbook("interleaved", p, m, v, microbatch_group_size=size, **times)
    assert run.makespan_s == (m + (p - 1) / v) * (forward_s + input_s + weight_s)
    assert peaks(run) == [min(2 * (p - 1 - r) + (v - 1) * size + 1, m * v) for r in range(p)]


@settings(max_examples=examples(24), deadline=None)
@given(p=RANKS, more=st.integers(0, 8), forward=SIXTEENTHS, input_=SIXTEENTHS, part=st.floats(0, 1))
def test_zb_h1_follows_its_closed_forms(*, p: int, more: int, forward: int, input_: int, part: float) -> None:
    """With m >= P and tW <= min(tF, tB) its bubble is (P-1)(tF+tB-tW), and P micro-batches live."""
    m, weight_s = p + more, int(part * min(forward, input_)) / 16
    run = run_textbook("zb_h1", p, m, forward_s=forward / 16, input_s=input_ / 16, weight_s=weight_s)
    forward_s, input_s = forward / 16, input_ / 16
    assert run.makespan_s == m * (forward_s + input_s + weight_s) + (p - 1) * (forward_s + input_s - weight_s)
    assert peaks(run) == [p] * p


@settings(max_examples=examples(24), deadline=None)
@given(p=RANKS, more=st.integers(0, 8), forward=SIXTEENTHS, input_=SIXTEENTHS, part=st.floats(0, 1))
def test_zb_h2_follows_its_closed_forms(*, p: int, more: int, forward: int, input_: int, part: float) -> None:
    """With m >= 2P-1 and tW <= min(tF, tB) a rank waits at most (P-1)(tF+tB-2tW) from first to last op."""
    m, weight_s = 2 * p - 1 + more, int(part * min(forward, input_)) / 16
    forward_s, input_s = forward / 16, input_ / 16
    run = run_textbook("zb_h2", p, m, forward_s=forward_s, input_s=input_s, weight_s=weight_s)
    idle_s = (p - 1) * (forward_s + input_s - 2 * weight_s)
    assert max(spans(run)) == m * (forward_s + input_s + weight_s) + idle_s
    assert peaks(run) == [2 * p - 1] * p


@settings(max_examples=examples(16), deadline=None)
@given(p=RANKS, more=st.integers(0, 8), part_s=DURATION)
def test_zb_v_has_no_bubble(*, p: int, more: int, part_s: float) -> None:
    """With m >= 2P-1 and tF = tB = tW no rank waits from first to last op; 2P chunks live on every rank."""
    m = 2 * p - 1 + more
    run = run_textbook("zb_v", p, m, 2, forward_s=part_s, input_s=part_s, weight_s=part_s)
    assert max(spans(run)) == 3 * m * part_s
    assert run.makespan_s == 3 * m * part_s + (p - 1) * part_s / 2
    assert peaks(run) == [2 * p] * p


@settings(max_examples=examples(16), deadline=None)
@given(half=st.integers(1, 4), units=st.integers(1, 3), slot=SIXTEENTHS)
def test_chimera_follows_its_closed_forms(*, half: int, units: int, slot: int) -> None:
    """Where tF = tBW it lasts 2m+P-2 slots; from P/2+1 (outer ranks) to P (middle ranks) micro-batches live."""
    p = 2 * half
    m, slot_s = units * p, slot / 16
    run = run_textbook("chimera", p, m, forward_s=slot_s, input_s=slot_s / 2, weight_s=slot_s / 2)
    assert run.makespan_s == (2 * m + p - 2) * slot_s
    assert peaks(run) == [half + 1 + min(r, p - 1 - r) for r in range(p)]


@settings(max_examples=examples(16), deadline=None)
@given(half=st.integers(1, 4), more=st.integers(0, 4), forward=SIXTEENTHS, part=st.floats(0, 1))
def test_dualpipe_follows_its_closed_forms(*, half: int, more: int, forward: int, part: float) -> None:
    """Where tF = tB >= tW its bubble is (P/2-1)(tF + 2tBW - 3tW), overlapping nothing; P+1 micro-batches live."""
    p = 2 * half
    m, forward_s, weight_s = 2 * (p + more), forward / 16, int(part * forward) / 16
    run = run_textbook("dualpipe", p, m, forward_s=forward_s, input_s=forward_s, weight_s=weight_s)
    bubble_s = (half - 1) * (forward_s + 2 * (forward_s + weight_s) - 3 * weight_s)
    assert run.makespan_s == m * (2 * forward_s + weight_s) + bubble_s
    assert peaks(run) == [p + 1] * p


SHAPES = [
    ("breadth_first", 3, 5, 2), ("breadth_first", 1, 4, 3), ("interleaved", 3, 6, 2), ("zb_h1", 4, 6, 1),
    ("zb_h1", 3, 6, 2), ("zb_h2", 3, 7, 1), ("zb_v", 1, 3, 2), ("zb_v", 2, 5, 2), ("zb_v", 4, 5, 2),
    ("zb_auto", 4, 7, 1), ("chimera", 2, 4, 1), ("chimera", 4, 8, 1), ("dualpipe", 2, 6, 1), ("dualpipe", 6, 14, 1),
    ("dualpipe_v", 3, 8, 2),
]  # fmt: skip


@settings(max_examples=examples(32), deadline=None)
@given(
    shape=st.sampled_from(SHAPES), hop_s=st.floats(0, 3), forward_s=st.floats(0.1, 3), input_s=st.floats(0.1, 3),
    part=st.floats(0, 1), coalesce=st.booleans(),
)  # fmt: skip
def test_every_action_ends_when_the_recurrence_says(
    *, shape: tuple[str, int, int, int], hop_s: float, forward_s: float, input_s: float, part: float, coalesce: bool
) -> None:
    """With any times and any hop lag the engine agrees, action by action, with the plain recurrence."""
    schedule, p, m, v = shape
    times = {"forward_s": forward_s, "input_s": input_s, "weight_s": part * min(forward_s, input_s), "hop_s": hop_s}
    job = textbook_job(schedule, p, m, v, **times)
    expected = end_times(orders(job.pipeline, m, job.times), placement(job.pipeline), job.times)
    run = run_textbook(schedule, p, m, v, coalesce=coalesce, **times)
    results = {"forward": "F", "backward": "IW", "backward_input": "I", "backward_weight": "W"}
    found = {}
    for (rank, index, _), (_, end_s) in op_times(run).items():
        call = run.programs[rank].calls[index]
        kind, stage = call.task.split(".")
        found |= {(result, int(stage), call.microbatch or 0): end_s for result in results.get(kind, "")}
    overlapped = {
        ("F", a.stage, a.microbatch) for order in orders(job.pipeline, m, job.times) for a in order if a.overlaps
    }
    assert found.keys() == expected.keys()
    alone = [result for result in expected if result not in overlapped]
    assert [found[result] for result in alone] == pytest.approx([expected[result] for result in alone], rel=1e-12)
    assert run.makespan_s == pytest.approx(max(expected.values()), rel=1e-12)


def test_automatic_schedule_fills_the_pipeline_where_zb_h1_would_stall() -> None:
    """With weight parts longer than forwards zb_auto runs, keeps its limit, and is shorter than 1F1B."""
    run = run_textbook("zb_auto", 4, 12, weight_s=2.0, max_live_microbatches=4)
    assert max(peaks(run)) <= 4
    assert run.makespan_s < run_textbook("1f1b", 4, 12, weight_s=2.0).makespan_s


@pytest.mark.parametrize("barrier", [True, False])
@settings(max_examples=examples(6), deadline=None)
@given(p=RANKS, more=st.integers(0, 6), weight=st.integers(1, 4), hop_s=st.sampled_from([0.0, 0.25]))
def test_automatic_steps_take_no_longer_than_those_laid_down(
    *, p: int, more: int, weight: int, hop_s: float, barrier: bool
) -> None:
    """In the engine, with the memory of ZB-H1 or of ZB-H2, zb_auto is no slower, with a barrier or without."""
    m, keys = 2 * p - 1 + more, {"weight_s": weight / 4, "hop_s": hop_s, "optimizer_barrier": barrier}
    for schedule, most in (("zb_h1", p), ("zb_h2", 2 * p - 1)):
        found = run_textbook("zb_auto", p, m, max_live_microbatches=most, **keys)
        assert found.iteration_time_s <= run_textbook(schedule, p, m, **keys).iteration_time_s * (1 + 1e-9)


def test_without_a_barrier_the_automatic_schedule_has_no_bubble() -> None:
    """P=4, m=8, tF=tB=tW: its last end is no earlier for it, but all 7 micro-batches in memory make spans 24."""
    with_barrier, without = (
        run_textbook("zb_auto", 4, 8, max_live_microbatches=7, optimizer_barrier=barrier).iteration_time_s
        for barrier in (True, False)
    )
    assert (with_barrier, without) == (27, 24)


# --- gradient synchronisation with replicas ----------------------------------------------------------------

SYNC = """\
4,8,2,3,36,31.5,30,30,30
4,8,2,6,39,34.5,31.5,31.5,31.5
4,8,2,12,45,40.5,36.5,34.5,34.5
4,8,2,18,51,46.5,42.5,38.5,37.5
4,8,2,24,57,52.5,48.5,44.5,40.5
4,8,2,48,81,76.5,72.5,68.5,64.5
4,8,4,3,36,29.25,27,27,27
4,8,4,6,39,32.25,27.75,27.75,27.75
4,8,4,12,45,38.25,32.25,29.25,29.25
4,8,4,18,51,44.25,38.25,32.25,30.75
4,8,4,24,57,50.25,44.25,38.25,32.25
4,8,4,48,81,74.25,68.25,62.25,56.25
""".splitlines()
"""P, m, v, A; then makespans: 1F1B blocking, interleaved blocking, interleaved, breadth-first, aiao with 1/3 deferred.

tF = 1, tBW = 2; A: time to synchronise all gradients of a rank. Source: as of the table of schedules.
"""


@pytest.mark.parametrize("coalesce", [True, False], ids=["coalesced", "step_by_step"])
@pytest.mark.parametrize("row", SYNC)
def test_gradient_synchronisation_equals_the_reference_table(row: str, coalesce: bool) -> None:
    """Every row comes out, blocking and overlapped; the deferred third only to rounding."""
    p, m, v = (int(cell) for cell in row.split(",")[:3])
    sync_s, *expected = (float(cell) for cell in row.split(",")[3:])
    variants: list[tuple[str, int, dict[str, Any]]] = [
        ("1f1b", 1, {"overlap_gradient_sync": False}),
        ("interleaved", v, {"overlap_gradient_sync": False}),
        ("interleaved", v, {}),
        ("breadth_first", v, {}),
    ]
    found = [
        run_textbook(s, p, m, n, sync_s=sync_s, coalesce=coalesce, **keys).iteration_time_s for s, n, keys in variants
    ]
    assert found == expected[:4]
    deferred = run_textbook("aiao", p, m, v, sync_s=sync_s, deferred_sync=1 / 3, coalesce=coalesce).iteration_time_s
    assert deferred == pytest.approx(expected[4], rel=1e-12)


@settings(max_examples=examples(24), deadline=None)
@given(
    p=RANKS, more=st.integers(1, 3), v=st.sampled_from([1, 2, 4]), forward_s=DURATION, backward_s=DURATION,
    sync=st.integers(1, 1024), deferred=st.sampled_from([0.0, 0.25, 0.5, 1.0]),
)  # fmt: skip
def test_synchronisation_follows_its_closed_forms(
    *, p: int, more: int, v: int, forward_s: float, backward_s: float, sync: int, deferred: float
) -> None:
    """What later backwards, and with aiao the next step's forwards, do not hide is exposed, as the closed forms say."""
    m, sync_s = p * (1 + more), sync / 4
    times = {"forward_s": forward_s, "input_s": backward_s / 2, "weight_s": backward_s / 2, "sync_s": sync_s}
    base_s, part_s, backward = (m + (p - 1) / v) * (forward_s + backward_s), sync_s / v, backward_s / v
    schedule = "interleaved" if v > 1 else "1f1b"
    assert run_textbook(schedule, p, m, v, overlap_gradient_sync=False, **times).iteration_time_s == base_s + sync_s
    assert run_textbook(schedule, p, m, v, **times).iteration_time_s == base_s + max(
        part_s, sync_s - (v - 1) * p * backward
    )
    bfs_s = run_textbook("breadth_first", p, m, v, **times).iteration_time_s
    assert bfs_s == base_s + max(part_s, sync_s - (v - 1) * m * backward)
    late_s = max(0.0, (1 - deferred) * part_s - m * backward) + max(0.0, deferred * part_s - m * forward_s / v)
    aiao_s = run_textbook("aiao", p, m, v, deferred_sync=deferred, **times).iteration_time_s
    assert aiao_s == pytest.approx(base_s + part_s + (v - 1) * late_s, rel=1e-12)


# --- refusals ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schedule", "shape", "keys", "key", "rule", "remedy"),
    [
        ("zb_v", (4, 8, 1), {}, "virtual_stages", "zb_v has 2 virtual stages per rank, got 1", "virtual_stages: 2"),
        ("zb_h2", (4, 8, 2), {}, "virtual_stages", "one virtual stage per rank, got 2", "virtual_stages: 1"),
        ("zb_h1", (4, 3, 1), {}, "schedule", "zb_h1 on 4 ranks needs 4 or more micro-batches, got 3", "4 or more"),
        ("zb_h1", (4, 13, 2), {}, "schedule", "a multiple of 3 micro-batches", "next valid number is 15"),
        ("zb_h2", (4, 6, 1), {}, "schedule", "needs 7 or more micro-batches, got 6", "7 or more"),
        ("zb_h1", (4, 8, 1), {"weight_s": 1.5}, "schedule", "stalls here", "schedule: zb_auto"),
        ("zb_h2", (4, 8, 1), {"weight_s": 1.5}, "schedule", "backward_weight (1.5 s)", "schedule: zb_auto"),
        ("chimera", (3, 6, 1), {}, "degree", "an even number of them, got 3", "degree: 4"),
        ("chimera", (4, 6, 1), {}, "schedule", "a multiple of 4 micro-batches", "next valid number is 8"),
        ("dualpipe", (4, 9, 1), {}, "schedule", "a multiple of 2 micro-batches", "next valid number is 10"),
        ("dualpipe", (4, 6, 1), {}, "schedule", "needs 8 or more micro-batches, got 6", "8 or more"),
        ("dualpipe_v", (4, 7, 2), {}, "schedule", "needs 8 or more micro-batches, got 7", "8 or more"),
        ("interleaved", (4, 8, 2), {"microbatch_group_size": 3}, "microbatch_group_size", "a group of 3",
         "from 4 to 8"),
        ("interleaved", (4, 10, 2), {"microbatch_group_size": 8}, "microbatch_group_size", "a last group of 2",
         "divisor of 10"),
        ("1f1b", (4, 8, 1), {"microbatch_group_size": 4}, "microbatch_group_size", "1f1b has no", "interleaved_1f1b"),
        ("1f1b", (4, 8, 1), {"max_live_microbatches": 4}, "max_live_microbatches", "1f1b has no", "schedule: zb_auto"),
        ("chimera", (4, 8, 1), {"sync_s": 1.0}, "model.gradient_sync", "its two copies", "another schedule"),
        ("1f1b", (4, 8, 1), {"deferred_sync": 0.5}, "parallel.data.deferred_sync", "only aiao", "schedule: aiao"),
    ],
)  # fmt: skip
def test_schedules_outside_their_regions_are_refused(
    schedule: str, shape: tuple[int, int, int], keys: dict[str, Any], key: str, rule: str, remedy: str
) -> None:
    """Where an order does not exist, or its promise does not hold, the refusal names key, rule and remedy."""
    with pytest.raises(SpecError) as refused:
        textbook_job(schedule, *shape, **keys)
    assert refused.value.key.endswith(key)
    assert rule in refused.value.rule
    assert remedy in refused.value.remedy
