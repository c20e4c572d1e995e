"""Times of ranks that share a task."""

import numpy as np
import pytest
from msgspec.structs import replace

from sim.engine.running.period import Part
from sim.engine.running.simulate import simulate
from sim.engine.running.task_times import TaskTimes, TimesOfRanks
from sim.plan.words.op import Compute
from sim.plan.words.program import Phase, Plan, Task
from tests.sim.jobs import dense_plan, pricing_on

TASK = Task("forward.0", Phase.FORWARD, (Compute("a", "delay", (), ("x",)), Compute("b", "delay", ("x",), ("y",))))
NUM_CALLS = {3: 2, 5: 4, 8: 1}


def together() -> TimesOfRanks:
    """Return the times of three ranks whose calls follow each other, each op at random."""
    random = np.random.default_rng(7)
    size = sum(NUM_CALLS.values())
    starts_s = np.sort(random.uniform(0.0, 9.0, (size, len(TASK.ops))), axis=1)
    ends_s = starts_s + random.uniform(0.0, 1.0, starts_s.shape)
    own = np.arange(size)
    times = TaskTimes(TASK, own, own, np.zeros(size), own, starts_s, ends_s, wired=False)
    return TimesOfRanks.of(NUM_CALLS, times)


def test_ranks_have_their_own_rows() -> None:
    """Each rank has as many calls as it makes, one rank's after the other's."""
    found = dict(together().of_each())
    assert {rank: times.calls.tolist() for rank, times in found.items()} == {3: [0, 1], 5: [2, 3, 4, 5], 8: [6]}


def in_few_courses() -> TimesOfRanks:
    """Return the same ranks' times where most calls take one course, and two have one of their own."""
    begin_after_s = np.array([[0.0, 0.7], [2.5, 3.0], [6.0, 6.1]])
    course_of = np.array([0, 0, 1, 0, 0, 2, 0])
    from_s = np.where(course_of, 0.0, [0.5, 3.5, 0.0, 4.0, 5.5, 0.0, 8.0])
    own, end_after_s = np.arange(len(course_of)), begin_after_s + np.array([0.6, 0.5])
    times = TaskTimes(TASK, own, own, from_s, course_of, begin_after_s, end_after_s, wired=False)
    return TimesOfRanks.of(NUM_CALLS, times)


def test_calls_begin_their_ops_as_their_courses_say() -> None:
    """Courses count from moments of the calls; of some ops, calls or ranks it is the same."""
    times = in_few_courses().times
    assert times.starts_s[:4] == pytest.approx(np.array([[0.5, 1.2], [3.5, 4.2], [2.5, 3.0], [4.0, 4.7]]))
    assert times.ends_s - times.starts_s == pytest.approx(np.tile([0.6, 0.5], (7, 1)))
    assert times.starts_of([1]).tolist() == times.starts_s[:, [1]].tolist()
    assert times.ends_of([0]).tolist() == times.ends_s[:, [0]].tolist()
    for _, some in in_few_courses().of_each():  # of fewer calls than courses, and of more
        assert some.first_s.tolist() == some.starts_s.min(axis=1).tolist()
        assert some.last_s.tolist() == some.ends_s.max(axis=1).tolist()


def test_times_are_counted_from_a_moment() -> None:
    """Calls are then counted from the first of each rank."""
    found, before = in_few_courses().counted_from({3: 0, 5: 2, 8: 6}, 0.25), in_few_courses().times
    assert found.times.calls.tolist() == [0, 1, 0, 1, 2, 3, 0]
    assert found.times.starts_s == pytest.approx(before.starts_s - 0.25)
    assert found.times.ends_s == pytest.approx(before.ends_s - 0.25)


@pytest.mark.parametrize("places", [[0, 1, 2], [2, 0], [1]])
def test_some_ranks_have_the_rows_that_they_have_among_all(places: list[int]) -> None:
    """The times of some ranks are those that each has among all."""
    every, some = dict(together().of_each()), dict(together().of_some(places).of_each())
    assert list(some) == [list(NUM_CALLS)[place] for place in places]
    for rank, times in some.items():
        assert times.calls.tolist() == every[rank].calls.tolist()
        assert times.ends_s.tolist() == every[rank].ends_s.tolist()


@pytest.mark.parametrize("ranks", [together(), in_few_courses()])
@pytest.mark.parametrize("begin_s", [0.0, 1.0])
def test_seconds_are_those_of_each_rank_in_every_part(ranks: TimesOfRanks, begin_s: float) -> None:
    """An op takes of a part what it has in common with it, as often as the part happens."""
    parts = (Part(begin_s, 2.0 - begin_s), Part(2.0, 3.0, 5), Part(5.0, 3.3))
    found = ranks.seconds_in(parts)
    for place, (_, times) in enumerate(ranks.of_each()):
        for op in range(len(TASK.ops)):
            spans = zip(times.starts_s[:, op].tolist(), times.ends_s[:, op].tolist(), strict=True)
            common = [
                part.times * max(min(end_s, part.end_s) - max(start_s, part.begin_s), 0.0)
                for start_s, end_s in spans for part in parts
            ]  # fmt: skip
            assert found[place, op] == pytest.approx(sum(common), rel=1e-12)


def test_ranks_keep_the_calls_that_are_asked_for() -> None:
    """Of each rank those within its own calls; ranks that have none, or are not asked for, are left out."""
    found = dict(together().within({3: range(1, 9), 5: range(3, 5), 8: range(6)}).of_each())
    assert {rank: times.calls.tolist() for rank, times in found.items()} == {3: [1], 5: [3, 4]}
    every = dict(together().of_each())
    assert found[5].starts_s.tolist() == every[5].starts_s[1:3].tolist()
    assert list(dict(together().within({5: range(9)}).of_each())) == [5]


def test_ranks_begin_with_their_first_op_and_end_with_their_last() -> None:
    """Whichever call or op that is of."""
    assert together().begins_s.tolist() == [times.starts_s.min() for _, times in together().of_each()]
    assert together().ends_s.tolist() == [times.ends_s.max() for _, times in together().of_each()]


@pytest.mark.parametrize("ranks", [together(), in_few_courses()])
def test_calls_count_as_often_as_is_said(ranks: TimesOfRanks) -> None:
    """Each op of a rank takes what its calls take, so many times each."""
    counts = np.arange(sum(NUM_CALLS.values()))
    found = ranks.seconds(counts)
    for place, (_, times) in enumerate(ranks.of_each()):
        assert found[place] == pytest.approx(counts[times.calls] @ (times.ends_s - times.starts_s), rel=1e-12)


def test_a_part_of_all_time_has_all_that_ops_last() -> None:
    """In one part that holds the whole run, ops take what their calls last."""
    times = together().times
    assert together().seconds_in((Part(0.0, 99.0),)).sum() == pytest.approx((times.ends_s - times.starts_s).sum())


def test_calls_of_one_pattern_take_one_course() -> None:
    """The times of a pipeline's computing are kept once per pattern, not once per op of every call."""
    run = simulate(dense_plan(pp=2, dp=1, m=32), pricing_on("hgx-h100", 2), repeat=False)
    computing = [found.times for found in run.times_together() if found.times.task.phase is Phase.FORWARD]
    assert len(computing) == 2
    for times in computing:
        assert len(times.calls) == 32
        assert len(times.begin_after_s) == 1


def test_a_rank_without_calls_has_no_times() -> None:
    """A plan may have a rank that does nothing."""
    plan = dense_plan(pp=1, dp=2, m=1)
    idle = replace(plan.programs[0], calls=[])
    alone: Plan = replace(plan, programs=(idle,))
    assert simulate(alone, pricing_on("hgx-h100", 2)).task_times(0) == []
