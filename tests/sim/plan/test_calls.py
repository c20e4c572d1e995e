"""Calls that are held as numbers are those that they were made of."""

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.engine.running.shorter import Shorter
from sim.engine.running.simulate import simulate
from sim.plan.checking.check import check
from sim.plan.facts.content import content_digest
from sim.plan.facts.namesakes import sharing_tasks
from sim.plan.facts.repetition import CodedCalls, KnownCalls
from sim.plan.words.calls import Calls, task_at
from sim.plan.words.program import Call
from sim.training.pipeline.schedules import SCHEDULES
from tests.examples import examples
from tests.sim.jobs import GPT, dense_plan, pricing_on

LAW = settings(max_examples=examples(40), deadline=None)
CALLS = st.lists(
    st.builds(Call, st.sampled_from("abcd"), st.none() | st.integers(0, 5), st.sampled_from([0, 1])), max_size=12
)


@LAW
@given(CALLS, st.integers(-13, 13), st.integers(-13, 13))
def test_they_read_as_a_tuple_does(calls: list[Call], first: int, stop: int) -> None:
    """Length, items, slices, equality, hash and a copy from another process are those of the tuple of calls."""
    held, plain = Calls.of(calls), tuple(calls)
    assert len(held) == len(plain)
    assert held == plain
    assert plain == held
    assert hash(held) == hash(plain)
    assert Calls.of(calls)[first:stop] == plain[first:stop]
    assert Calls.of(calls)[::-1] == plain[::-1]
    assert pickle.loads(pickle.dumps(held)) == plain
    for place in range(-len(plain), len(plain)):
        assert Calls.of(calls)[place] == plain[place]
        assert task_at(Calls.of(calls), place) == task_at(plain, place) == plain[place].task
    for place in (len(plain), -len(plain) - 1):
        with pytest.raises(IndexError):
            Calls.of(calls)[place]


@LAW
@given(CALLS, CALLS, st.permutations("abcd"), st.integers(0, 4))
def test_they_are_numbered_by_other_names(calls: list[Call], more: list[Call], names: list[str], size: int) -> None:
    """Of the tasks only those that are called need be among the names, also of calls that are a part of others."""
    held, known = Calls.of([*calls, *more])[: len(calls)], names[:size]
    if {call.task for call in calls} <= set(known):
        assert held.numbered(known).tolist() == [known.index(call.task) for call in calls]
    else:
        with pytest.raises(KeyError):
            held.numbered(known)


@LAW
@given(CALLS, CALLS, st.sets(st.sampled_from("abcd")), st.sets(st.integers(0, 11), max_size=3), st.integers(0, 9))
def test_they_are_joined_and_changed_one_by_one(
    calls: list[Call], more: list[Call], without: set[str], places: set[int], later: int
) -> None:
    """What is done to all calls at once is what would be done to each of them."""
    held = Calls.of(calls)
    moved = [call if call.microbatch is None else call._replace(microbatch=call.microbatch + later) for call in calls]
    assert Calls.joined(held, more, ()) == (*calls, *more)
    assert held.without(without) == [call for call in calls if call.task not in without]
    assert held.later(later) == moved
    assert list(held.counts().items()) == [
        (task, sum(call.task == task for call in calls)) for task in dict.fromkeys(call.task for call in calls)
    ]
    assert held.first_calls == {task: [call.task for call in calls].index(task) for task in held.counts()}
    places = {place for place in places if place < len(calls)}
    inserted = [call for at, own in enumerate(calls) for call in (*(more if at in places else ()), own)]
    assert held.with_inserted(dict.fromkeys(places, more)) == inserted


@st.composite
def alike(draw: Any) -> list[Call]:
    """Draw calls of micro-batches that go through one sequence of tasks, between calls of none."""
    tasks, number = draw(st.lists(st.sampled_from("abcd"), min_size=1, unique=True)), draw(st.integers(1, 4))
    turns = draw(st.permutations([*range(number)] * len(tasks)))
    left = {microbatch: iter(tasks) for microbatch in range(number)}
    calls = [Call(next(left[microbatch]), microbatch) for microbatch in turns]
    around = [[Call(task) for task in draw(st.lists(st.sampled_from("abcd"), max_size=2))] for _ in range(2)]
    return around[0] + calls + around[1]


@LAW
@given(st.one_of(CALLS, alike()))
def test_micro_batches_are_put_together_by_their_tasks(calls: list[Call]) -> None:
    """Each sequence of tasks comes once, with the calls of every micro-batch that goes through it."""
    held = CodedCalls(*Calls.of(calls).columns)
    found = {tuple(held.tasks[rows[0]].tolist()): sorted(rows.tolist()) for rows in held.by_sequence()}
    expected: dict[tuple[int, ...], list[list[int]]] = {}
    for microbatch in {call.microbatch for call in calls}:
        of = [place for place, call in enumerate(calls) if call.microbatch == microbatch]
        expected.setdefault(tuple(held.tasks[of].tolist()), []).append(of)
    assert found == {tasks: sorted(rows) for tasks, rows in expected.items()}


def test_a_key_is_that_of_all_calls() -> None:
    """Equal calls have equal keys, whatever objects they are; one call that differs makes another key."""
    calls = [Call("forward", microbatch) for microbatch in range(1000)]
    key = Calls.of(calls).key
    assert {key: 0}[Calls.of(calls).key] == 0
    for place in range(0, 1000, 7):
        changed = Calls.of([*calls[:place], Call("forward", 1000), *calls[place + 1 :]])
        assert changed.key != key
    assert Calls.of(calls[:-1]).key != key
    assert Calls.of([call._replace(task="backward") for call in calls]).key != key


def test_a_long_program_is_built_without_single_calls() -> None:
    """A plan of thousands of micro-batches is numbers from its schedule to its simulation."""
    plan = dense_plan(pp=2, m=2000)
    assert all(isinstance(program.calls, Calls) for program in plan.programs)
    check(plan)
    assert simulate(plan, pricing_on("dgx-a100-80g", 2)).repeated is not None
    assert not any("_made" in vars(program.calls) for program in plan.programs)
    assert content_digest(plan.programs[0].calls) == content_digest(dense_plan(pp=2, m=2000).programs[0].calls)
    assert content_digest(plan.programs[0].calls) != content_digest(dense_plan(pp=2, m=2002).programs[0].calls)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_orders_are_numbers(schedule: str) -> None:
    """Every schedule of the table lays its order down at once: no action of a long one is made by itself."""
    for order in SCHEDULES[schedule](4, 64, 2):
        assert "_made" not in vars(order)
        assert np.array_equal(order.microbatches, [action.microbatch for action in order])


@LAW
@given(CALLS, CALLS)
def test_a_key_tells_calls_apart(calls: list[Call], others: list[Call]) -> None:
    """Calls with the same key are equal, and equal calls that were made alike have the same key."""
    assert (Calls.of(calls).key == Calls.of(others).key) == (calls == others)


def test_equal_calls_are_looked_at_once() -> None:
    """Four stages that do the same have three records of calls with the first and the last stage, cut three times."""
    plan = sharing_tasks(dense_plan(pp=6, m=96, schedule="gpipe", model=GPT | {"num_layers": 6}))
    known, shorter = KnownCalls(), Shorter(plan)
    assert len({id(known.of(program)) for program in plan.programs}) == 3
    cuts = shorter.in_sections(shorter.section_forms(12)[0])
    assert cuts is not None
    assert len({id(cut.program.calls) for cut in cuts.values()}) == 3
    assert [cut.program.role for cut in cuts.values()] == [program.role for program in plan.programs]
