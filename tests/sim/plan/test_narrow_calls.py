"""Calls in few bytes say what the same calls in 64 bits say, also where numbers are as large as their type holds."""

import tracemalloc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from sim.engine.running.simulate import simulate
from sim.integers import widened
from sim.plan.checking.check import check
from sim.plan.facts import sections
from sim.plan.facts.repetition import CodedCalls, repetitions, shortened
from sim.plan.words.calls import Calls
from sim.plan.words.program import Call, Plan, Program
from sim.plan.words.steps import repeated
from sim.training.pipeline.calls import pipeline_calls
from sim.training.pipeline.placement import loop
from sim.training.pipeline.schedules import SCHEDULES
from sim.training.pipeline.token_slices import slice_calls
from tests.sim.jobs import GPT, dense_plan, pricing_on

_LARGEST = [126, 127, 128, 32766, 32767, 32768, 2**31 - 1, 2**31]


def wide(plan: Plan) -> Plan:
    """Return a plan whose calls are held in 64 bits."""
    return replace(plan, programs=tuple(program.calling(_wide(program.calls)) for program in plan.programs))


def _wide(calls: Any) -> Calls:
    held = Calls.of(calls)
    return held.with_columns(*map(widened, held.columns))


def later(plan: Plan, largest: int) -> Plan:
    """Return a plan whose last micro-batch has this number."""
    by = largest - max(int(Calls.of(program.calls).microbatches.max()) for program in plan.programs)
    return replace(plan, programs=tuple(p.calling(Calls.of(p.calls).later(by)) for p in plan.programs))


def facts(plan: Plan) -> Iterator[object]:
    """Yield what is found about the calls of a plan."""
    coded = list(map(CodedCalls.of, plan.programs))
    for program, calls in zip(plan.programs, coded, strict=True):
        yield sorted((calls.tasks[rows[0]].tolist(), rows.tolist()) for rows in calls.by_sequence())
        yield [of_task.tolist() for of_task in calls.of_tasks]
        yield calls.outline, calls.candidates(), calls.distances(), Calls.of(program.calls).are_different
        yield calls.recurring(3, 1).tolist(), calls.recurring(3, 300).tolist()
        yield tuple(Calls.of(repeated(program, 3).calls)), hash(Calls.of(program.calls).key)
        yield [tuple(sliced) for sliced in slice_calls([Calls.of(program.calls)], 200)]
        for by in (1, 2, -1):
            yield [column.tolist() for column in sections._recurrences(calls, by)]
        yield [sections._until_aligned(calls.microbatches[at : at + 8]) for at in range(len(calls.tasks) - 8)]
    found = repetitions(coded)
    yield found
    yield [_calls(shortened(*pair, 2)) for pair in zip(plan.programs, found or (), strict=False)]
    parts = sections.sections(plan.programs, coded)
    yield parts
    cuts = [sections.without(*pair, 1) for pair in zip(plan.programs, parts or (), strict=False)]
    yield [None if cut is None else (_calls(cut.program), cut.sections, cut.is_moved) for cut in cuts]


def _calls(program: Program | None) -> object:
    return None if program is None else tuple(program.calls)


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "zb_h1"])
@pytest.mark.parametrize("largest", _LARGEST)
def test_facts_are_those_of_wide_calls(largest: int, schedule: str) -> None:
    """Sequences, recurrences, sections, shorter programs and later calls do not depend on how calls are held."""
    plan = later(dense_plan(pp=2, m=40, schedule=schedule), largest)
    assert all(Calls.of(program.calls).tasks.dtype == np.int8 for program in plan.programs)
    assert list(facts(plan)) == list(facts(wide(plan)))


@pytest.mark.parametrize("largest", _LARGEST)
def test_sequences_of_some_are_those_of_wide_calls(largest: int) -> None:
    """So are those of a program where one micro-batch leaves a call out."""
    plan = later(dense_plan(pp=2, m=40), largest)
    calls = Calls.of(plan.programs[0].calls)
    program = plan.programs[0].calling(calls.taken(np.arange(len(calls)) != 20))
    assert len([*CodedCalls.of(program).by_sequence()]) > 2
    plan = replace(plan, programs=(program,))
    assert list(facts(plan)) == list(facts(wide(plan)))


@pytest.mark.parametrize("schedule", ["1f1b", "zb_h1"])
@pytest.mark.parametrize("num_ranks", [31, 32, 33, 64, 65, 130])
@pytest.mark.parametrize("turned", [False, True])
def test_calls_are_written_from_narrow_orders(schedule: str, num_ranks: int, turned: bool) -> None:
    """Narrow actions have the calls of wide ones: kinds, stages and micro-batches are numbered together."""
    orders, place = SCHEDULES[schedule](num_ranks, 130, 1), loop(num_ranks, 1)
    orders[1:2] = [orders[1][::-1]] if turned else orders[1:2]  # its messages come in another order than it needs
    of_wide = [order.with_columns(*map(widened, order.columns[:3]), order.overlaps) for order in orders]
    for narrow, expected in zip(pipeline_calls(orders, place), pipeline_calls(of_wide, place), strict=True):
        assert set(narrow.counts().values()) == {130}
        assert narrow.names == expected.names
        assert all(map(np.array_equal, narrow.columns, expected.columns))


@pytest.mark.parametrize("m", [126, 127, 128, 129])
def test_a_step_takes_as_long(m: int) -> None:
    """A plan is checked and run alike, where micro-batches and the tasks of all ranks are more than a byte counts."""
    plan = dense_plan(pp=24, m=m, model=GPT | {"num_layers": 24})
    pricing = pricing_on("dgx-a100-80g", 24)
    check(plan)
    check(wide(plan))
    narrow_run, wide_run = simulate(plan, pricing), simulate(wide(plan), pricing)
    assert narrow_run.iteration_time_s == wide_run.iteration_time_s
    for rank in narrow_run.programs:
        narrow, of_wide = narrow_run.called(rank), wide_run.called(rank)
        assert narrow.keys() == of_wide.keys()
        assert all(np.array_equal(narrow[name].calls, of_wide[name].calls) for name in narrow)


def test_a_long_plan_and_its_check_take_few_bytes() -> None:
    """A call takes four bytes where tasks are few and micro-batches thousands, and a check some more at once."""
    plan = dense_plan(pp=4, m=4000, model=GPT | {"num_layers": 4})
    columns = [column for program in plan.programs for column in Calls.of(program.calls).columns]
    num_calls = sum(len(program.calls) for program in plan.programs)
    assert sum(column.nbytes for column in columns) == 4 * num_calls
    tracemalloc.start()
    try:
        check(plan)
        assert tracemalloc.get_traced_memory()[1] < 20 * num_calls
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("place", [126, 127, 128, 32767, 32768])
def test_places_in_many_names_fit_where_the_own_are_few(place: int) -> None:
    """A call's place in other names has a type that holds it, also where one of few own names is called no more."""
    names = tuple(f"task.{number}" for number in range(place + 1))
    calls = Calls.of([Call(names[-1], 0), Call("gone", 0)]).without(["gone"])
    assert calls.numbered(names).tolist() == [place]
