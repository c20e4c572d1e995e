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
    times = TaskTimes(TASK, np.arange(size), np.arange(size), starts_s, ends_s, wired=False)
    return TimesOfRanks.of(NUM_CALLS, times)


def test_ranks_have_their_own_rows() -> None:
    """Each rank has as many calls as it makes, one rank's after the other's."""
    found = dict(together().of_each())
    assert {rank: times.calls.tolist() for rank, times in found.items()} == {3: [0, 1], 5: [2, 3, 4, 5], 8: [6]}


@pytest.mark.parametrize("places", [[0, 1, 2], [2, 0], [1]])
def test_some_ranks_have_the_rows_that_they_have_among_all(places: list[int]) -> None:
    """The times of some ranks are those that each has among all."""
    every, some = dict(together().of_each()), dict(together().of_some(places).of_each())
    assert list(some) == [list(NUM_CALLS)[place] for place in places]
    for rank, times in some.items():
        assert times.calls.tolist() == every[rank].calls.tolist()
        assert times.ends_s.tolist() == every[rank].ends_s.tolist()


def test_seconds_are_those_of_each_rank_in_every_part() -> None:
    """An op takes of a part what it has in common with it, as often as the part happens."""
    parts = (Part(0.0, 2.0), Part(2.0, 3.0, 5), Part(5.0, 6.0))
    found = together().seconds_in(parts)
    for place, (_, times) in enumerate(together().of_each()):
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


def test_calls_count_as_often_as_is_said() -> None:
    """Each op of a rank takes what its calls take, so many times each."""
    counts = np.arange(sum(NUM_CALLS.values()))
    found = together().seconds(counts)
    for place, (_, times) in enumerate(together().of_each()):
        assert found[place] == pytest.approx(counts[times.calls] @ (times.ends_s - times.starts_s), rel=1e-12)


def test_a_part_of_all_time_has_all_that_ops_last() -> None:
    """In one part that holds the whole run, ops take what their calls last."""
    times = together().times
    assert together().seconds_in((Part(0.0, 99.0),)).sum() == pytest.approx((times.ends_s - times.starts_s).sum())


def test_a_rank_without_calls_has_no_times() -> None:
    """A plan may have a rank that does nothing."""
    plan = dense_plan(pp=1, dp=2, m=1)
    idle = replace(plan.programs[0], calls=[])
    alone: Plan = replace(plan, programs=(idle,))
    assert simulate(alone, pricing_on("hgx-h100", 2)).task_times(0) == []
