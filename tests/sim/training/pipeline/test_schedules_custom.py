"""Schedules as text, and schedules that a user writes."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.engine.prices.textbook import TextbookPricing
from sim.engine.running.simulate import simulate
from sim.plan.checking.check import check
from sim.training.errors import SpecError
from sim.training.pipeline.actions import Action, ActionError, format_orders, parse_orders
from sim.training.pipeline.evaluate import end_times
from sim.training.pipeline.rules import custom_placement
from sim.training.pipeline.schedules import SCHEDULES
from sim.training.steps.textbook import build_textbook
from tests.examples import examples
from tests.sim.jobs import run_textbook, textbook_job

SHAPES = [
    ("1f1b", 4, 6, 1),
    ("interleaved_1f1b", 2, 4, 2),
    ("zb_h2", 3, 6, 1),
    ("zb_v", 3, 6, 2),
    ("dualpipe_v", 3, 7, 2),
]
GOOD = "0F0,0B0,0F1,0B1\n1F0,1B0,1F1,1B1\n"


def actions_of(text: str) -> tuple[tuple[Action, ...], ...]:
    """Return what a CSV says, as a specification takes it."""
    return tuple(tuple(order) for order in parse_orders(text))


@pytest.mark.parametrize(("schedule", "p", "m", "v"), SHAPES)
def test_text_gives_the_orders_back(schedule: str, p: int, m: int, v: int) -> None:
    """Writing and reading a schedule changes nothing, overlapping actions included."""
    orders = SCHEDULES[schedule](p, m, v)
    assert parse_orders(format_orders(orders)) == orders


@pytest.mark.parametrize(("schedule", "p", "m", "v"), SHAPES)
def test_torch_reads_what_is_written(tmp_path: Any, schedule: str, p: int, m: int, v: int) -> None:
    """torch's own parser takes every cell and writes it the same."""
    action = pytest.importorskip("torch.distributed.pipelining.schedules", reason="torch is not installed")._Action
    for cell in format_orders(SCHEDULES[schedule](p, m, v)).replace("\n", ",").split(","):
        assert str(action.from_str(cell) or "") == cell


@pytest.mark.parametrize(("schedule", "p", "m", "v"), SHAPES)
def test_custom_schedule_runs_as_the_one_it_copies(schedule: str, p: int, m: int, v: int) -> None:
    """A schedule written out and read in again takes the same time, with and without hop lag."""
    actions = actions_of(format_orders(SCHEDULES[schedule](p, m, v)))
    for hop_s in (0.0, 0.25):
        copied = run_textbook("custom", p, m, v, hop_s=hop_s, actions=actions)
        assert copied.makespan_s == run_textbook(schedule, p, m, v, hop_s=hop_s).makespan_s


def test_custom_placement_may_be_any() -> None:
    """Stages may lie anywhere: here the first two on the second rank; empty cells mean nothing."""
    run = run_textbook("custom", 2, 1, 2, actions=actions_of(",2F0,3F0,3B0,,2B0\n0F0,1F0,,1B0,0B0\n"), hop_s=0.25)
    assert run.makespan_s == 4 * 0.5 + 4 * 1.0 + 2 * 0.25


@pytest.mark.parametrize(
    "text", ["F0", "0F", "0X0", "0F0 0B0", "(0F0;1B0)", "(0F0;1F0)OVERLAP_F_B", "(0F0)OVERLAP_F_B", "-1F0", "0SEND_F0"]
)
def test_what_is_no_action_is_refused(text: str) -> None:
    """The error names the row and the cell."""
    with pytest.raises(ActionError, match="is no action") as refused:
        parse_orders(f"0F0\n{text}\n")
    assert refused.value.row == 2


@pytest.mark.parametrize(
    ("text", "v", "key", "rule", "remedy"),
    [
        ("0F0,0B0,0F1,0B1\n", 1, "actions", "1 rows of actions for 2 pipeline ranks", "one row per rank"),
        (GOOD, 2, "virtual_stages", "2 stages, where 2 ranks x 2 virtual stages", "virtual_stages: 1"),
        (GOOD.replace("1F0", "0F0"), 1, "actions", "stage 0 runs on rank 0 and on rank 1", "on one rank"),
        (GOOD.replace("\n1", "\n2").replace(",1", ",2"), 1, "actions", "no rank runs stage 1", "without gaps"),
        (GOOD.replace("0B1", "0B2"), 1, "actions", "rank 0 runs micro-batch 2, and there are 2", "from 0"),
        (
            GOOD.replace(",0B1", ""),
            1,
            "actions",
            "rank 0 runs of stage 0 and micro-batch 1: 1 x 0F1",
            "0F1 and later 0B1",
        ),
        (GOOD.replace("0F0,0B0", "0B0,0F0"), 1, "actions", "micro-batch 0 in the order B, F", "later 0B0"),
        (GOOD.replace("1B0", "1I0"), 1, "actions", "1 x 1F0, 1 x 1I0", "1F0, 1I0 and 1W0"),
        (GOOD.replace("1F0,1B0", "1F0,1B0,1B0"), 1, "actions", "2 x 1B0", "1F0 and later 1B0"),
        (
            GOOD.replace("1F0,1B0,1F1,1B1", "1F1,1B1,1F0,1B0"),
            1,
            "actions",
            "stuck: rank 0 at 0B0, rank 1 at 1F1",
            "move",
        ),
        ("", 1, "actions", "none is named", "actions: FILE.csv"),
    ],
)
def test_custom_schedules_that_are_not_whole_are_refused(text: str, v: int, key: str, rule: str, remedy: str) -> None:
    """Missing, doubled or misplaced actions are refused, and orders that would get stuck."""
    with pytest.raises(SpecError) as refused:
        textbook_job("custom", 2, 2, v, actions=actions_of(text))
    assert refused.value.key == f"parallel.pipeline.{key}"
    assert rule in refused.value.rule
    assert remedy in refused.value.remedy


# --- any schedule ------------------------------------------------------------------------------------------


@st.composite
def any_schedule(draw: st.DrawFn) -> tuple[int, int, int, tuple[tuple[Action, ...], ...]]:
    """Return ranks, micro-batches, stages per rank and actions: stages anywhere, actions in any order that can run."""
    p, v, m = draw(st.integers(1, 4)), draw(st.integers(1, 3)), draw(st.integers(1, 4))
    ranks = draw(st.permutations([rank for rank in range(p) for _ in range(v)]))
    splits = draw(st.lists(st.booleans(), min_size=p * v, max_size=p * v))
    orders: list[list[Action]] = [[] for _ in range(p)]
    ready = [Action("F", 0, i) for i in range(m)]
    while ready:
        action = ready.pop(draw(st.integers(0, len(ready) - 1)))
        kind, stage, i, _ = action
        orders[ranks[stage]].append(action)
        if kind == "F" and stage + 1 < p * v:
            ready.append(Action("F", stage + 1, i))
        elif kind == "F":
            ready.append(Action("I" if splits[stage] else "B", stage, i))
        elif kind in "BI" and stage:
            ready.append(Action("I" if splits[stage - 1] else "B", stage - 1, i))
        if kind == "I":
            ready.append(Action("W", stage, i))
    return p, m, v, tuple(map(tuple, orders))


@settings(max_examples=examples(32), deadline=None)
@given(
    schedule=any_schedule(), hop=st.integers(0, 8), times=st.tuples(*[st.integers(1, 8)] * 3), coalesce=st.booleans()
)
def test_any_schedule_takes_what_the_recurrence_says(
    *, schedule: tuple[int, int, int, Any], hop: int, times: tuple[int, int, int], coalesce: bool
) -> None:
    """Wherever stages lie and however actions are ordered, the plan is sound and every step ends when it should."""
    p, m, v, actions = schedule
    keys = dict(zip(("forward_s", "input_s", "weight_s"), (float(n * v) for n in times), strict=True))
    job = textbook_job("custom", p, m, v, actions=actions, hop_s=hop / 4, **keys)
    plan = build_textbook(job, "any")
    check(plan)
    ends = end_times(actions, custom_placement(actions), job.times)
    run = simulate(plan, TextbookPricing(hop / 4), coalesce=coalesce)
    assert run.makespan_s == max(ends.values())
