"""Remembered step times: those of the engine, found again by content."""

from copy import deepcopy
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from costmodels.software import Software
from sim.engine.folding.folding import no_fold
from sim.engine.prices.pricing import ClusterPricing
from sim.engine.prices.textbook import TextbookPricing
from sim.engine.running.simulate import simulate
from sim.engine.step_times import StepTimes
from sim.plan.facts.content import content_digest, plan_digest
from sim.plan.words.op import Compute
from sim.plan.words.program import Plan
from tests.examples import examples
from tests.sim.jobs import dense_plan, pricing_on, textbook_plan
from tests.sim.strategies import dense_keys

SETTINGS = settings(max_examples=examples(6), deadline=None, suppress_health_check=list(HealthCheck))
LAUNCHES = Software(launch_s=3e-6, task_launch_s=5e-6)


def cluster(num_ranks: int = 8, per_node: int = 4) -> ClusterPricing:
    """Return prices on nodes of which some devices are used."""
    return pricing_on("dgx-a100-80g", num_ranks, devices_per_node=per_node)


@SETTINGS
@given(data=st.data(), jobs=st.lists(dense_keys(8), min_size=2, max_size=3))
def test_times_are_the_engines(data: Any, jobs: list[dict[str, Any]]) -> None:
    """Plans and prices in any order, built anew for every question: each answer is what ``simulate`` returns."""
    times, known = StepTimes(), dict[tuple[int, int], float]()
    for job, prices in data.draw(st.lists(st.tuples(st.integers(0, len(jobs) - 1), st.integers(0, 2)), max_size=8)):
        plan = dense_plan(**jobs[job])
        pricing = [cluster(), cluster().under(LAUNCHES), cluster(per_node=8)][prices]
        if (job, prices) not in known:
            known[job, prices] = simulate(plan, pricing).iteration_time_s
        assert times.step_time_s(plan, pricing) == known[job, prices]


def test_equal_content_is_asked_for_once() -> None:
    """A plan and prices that are built anew, or are called otherwise, are found again; the engine runs once."""
    times = StepTimes()
    for name in ("one", "other"):
        times.step_time_s(replace(dense_plan(pp=2, m=4), name=name, seed=len(name)), cluster(2))
    assert (times.num_misses, times.num_hits, len(times)) == (1, 1, 1)


@pytest.mark.parametrize(
    "other",
    [
        cluster().under(LAUNCHES),
        cluster(per_node=8),
        replace(cluster(), algorithms={"all_reduce": "ring"}),
        replace(cluster(), profile=replace(cluster().profile, jitter={"gemm": 0.1})),
    ],
    ids=["software", "placement", "algorithm", "profile"],
)
def test_other_prices_are_other_entries(other: ClusterPricing) -> None:
    """Another framework, placement, algorithm or profile is never answered from the memory of the first."""
    plan, times = dense_plan(pp=2, dp=2, m=2), StepTimes()
    for pricing in (cluster(), other):
        assert times.step_time_s(plan, pricing) == simulate(plan, pricing).iteration_time_s
    assert (times.num_misses, times.num_hits, len(times)) == (2, 0, 2)


def test_used_prices_have_the_digest_of_fresh_ones() -> None:
    """What prices keep for themselves while a plan is priced is no part of their content."""
    pricing = cluster()
    simulate(dense_plan(pp=2, dp=2, m=2), pricing)
    assert content_digest(pricing) == content_digest(cluster())


def test_memory_is_bounded() -> None:
    """The entry that has not been asked for longest goes first, and is simulated again when it comes back."""
    plan, times = textbook_plan("1f1b", 2, 3), StepTimes(most=2, fold=no_fold)
    for hop_s in (0.0, 1.0, 0.0, 2.0, 0.0, 1.0):
        times.step_time_s(plan, TextbookPricing(hop_s))
        assert len(times) <= 2
    assert (times.num_misses, times.num_hits) == (4, 2)
    with pytest.raises(ValueError, match="at least one"):
        StepTimes(most=0)


def changed_plans(plan: Plan) -> list[Plan]:
    """Return plans with one thing changed each: mesh, an attribute, an order, a buffer, the number of calls, a flag."""
    program = plan.programs[0]
    task = next(task for task in program.tasks.values() if isinstance(task.ops[0], Compute))
    longer = replace(task.ops[0], attributes={"duration_s": 9.0})
    buffer = next(iter(program.buffers.values()))
    return [
        replace(plan, mesh=replace(plan.mesh, axes=(*plan.mesh.axes, ("dp", 2)))),
        replace(plan, programs=(replace(program, tasks={**program.tasks, task.name: replace(task, ops=(longer,))}),)),
        replace(plan, programs=(replace(program, calls=program.calls[::-1]),)),
        replace(plan, programs=(replace(program, buffers={**program.buffers, "x": replace(buffer, name="x")}),)),
        replace(plan, programs=(replace(program, calls=program.calls[:-1]),)),
        replace(plan, barrier=not plan.barrier),
    ]


def test_every_part_of_a_plan_counts() -> None:
    """Plans that differ in one thing have different digests; a deep copy has the same."""
    plan = textbook_plan("1f1b", 1, 3)
    digests = [plan_digest(each) for each in (plan, *changed_plans(plan))]
    assert len(set(digests)) == len(digests) == 7
    assert plan_digest(deepcopy(plan)) == digests[0]


def test_numbers_of_other_types_are_other_content() -> None:
    """1, 1.0 and True are equal to Python, and are not the same content; nor are a text and its parts."""
    values: list[object] = [1, 1.0, True, "1", (1,), [1], {1}, {1: 1}, ("1", "1"), "11"]
    assert len({content_digest(value) for value in values}) == len(values)


def test_unknown_content_is_refused() -> None:
    """An object that is no plain data has no digest: two of them might differ in what cannot be seen."""
    with pytest.raises(TypeError, match="its content is not known"):
        content_digest({"price": object()})
