"""The critical path: it lasts as long as the run, and says by how much the run changes with its ops."""

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sim.engine.findings import path_walk
from sim.engine.findings.critical_path import Step, critical_path
from sim.engine.folding.folding import fold, no_fold
from sim.engine.prices.activity import Activity, Pricing
from sim.engine.prices.pricing import ClusterPricing
from sim.engine.running.period import EQUAL
from sim.engine.running.run import SimulatedRun
from sim.engine.running.simulate import simulate
from sim.plan.words.op import Collective, Compute, Op, Recv
from sim.plan.words.program import Plan, Program
from tests.examples import examples
from tests.sim.engine.reference import Key, ReferenceEngine
from tests.sim.jobs import OpTimes, dense_plan, op_times
from tests.sim.strategies import aiao_keys, bare_ended_plans, dense_keys, dense_plans
from tests.sim.topology_strategies import clusters, extreme_clusters, slow_adapters

SETTINGS = settings(max_examples=examples(16), deadline=None, suppress_health_check=list(HealthCheck))


@dataclass(frozen=True)
class Slower:
    """Another pricing's times with nothing shared, and ops of one kernel or kind of collective longer."""

    pricing: Pricing
    what: str
    factor: float

    def price(self, plan: Plan, program: Program, op: Op, rank: int) -> Activity:
        """Return how long the op lasts, longer where it is meant."""
        alone_s = self.pricing.price(plan, program, op, rank).duration_s
        return Activity(alone_s * (self.factor if named(op) == self.what else 1.0))

    def __getattr__(self, name: str) -> Any:
        """Leave everything else to the other pricing."""
        return getattr(self.pricing, name)


def named(op: Op | None) -> str:
    """Return the kernel or the kind of collective; empty for anything else."""
    if isinstance(op, Compute):
        return op.kernel
    return str(op.kind) if isinstance(op, Collective) else ""


@st.composite
def pricings(draw: Any, num_ranks: int) -> ClusterPricing:
    """Draw the prices on any cluster, also on one whose messages take years."""
    return draw(clusters(num_ranks) | extreme_clusters(num_ranks))


def waits_for(dependencies: ReferenceEngine, key: Key) -> set[Key]:
    """Return the ops that an op waits for, and with it the other members of its collective, and its message."""
    members = dependencies.work_of[key].members
    found = {other for member in members for other in dependencies.waits[member]}
    return found | ({dependencies.sender[key]} if key in dependencies.sender else set())


def follows(dependencies: ReferenceEngine, times: OpTimes, key: Key, before: Key) -> bool:
    """Return whether an op waits for another, directly or through receives and ops that the clock does not resolve."""
    resolved_s = 4 * np.spacing(max(end_s for _, end_s in times.values()))
    wanted, seen, left = set(dependencies.work_of[before].members), {key}, [key]
    while left:
        for other in waits_for(dependencies, left.pop()):
            if other in wanted:
                return True
            start_s, end_s = times[other]
            if other not in seen and (end_s - start_s <= resolved_s or isinstance(dependencies.ops[other], Recv)):
                left.append(other)
            seen.add(other)
    return False


def key_of(run: SimulatedRun, step: Step) -> Key:
    """Return the op of a step by rank, call and place in its task."""
    program = run.programs[step.rank]
    ops = program.tasks[program.calls[step.call].task].ops
    return step.rank, step.call, next(place for place, op in enumerate(ops) if op is step.op)


PLANS = dense_plans(16) | aiao_keys().map(lambda keys: dense_plan(**keys)) | bare_ended_plans()


@SETTINGS
@given(data=st.data(), plan=PLANS, coalesce=st.booleans(), folded=st.booleans())
def test_the_path_leads_from_the_beginning_to_the_end(data: Any, plan: Plan, coalesce: bool, folded: bool) -> None:
    """Every step begins where the one before ended, the first at 0, the last ends with the run, and they add up to it.

    Of steps without a barrier the path is a period long.
    """
    pricing = data.draw(pricings(plan.mesh.size))
    run = simulate(plan, pricing, coalesce=coalesce, fold=fold if folded else no_fold)
    steps = critical_path(run).steps
    assert steps[0].start_s == 0.0
    assert all(after.start_s == before.end_s for before, after in pairwise(steps))
    assert all(step.duration_s > 0.0 for step in steps)
    if run.is_steady:
        assert steps[-1].end_s == run.iteration_time_s
    assert math.fsum(step.duration_s for step in steps) == pytest.approx(steps[-1].end_s, rel=1e-12)


@settings(SETTINGS, max_examples=examples(10))
@given(data=st.data(), keys=dense_keys(8), coalesce=st.booleans())
def test_every_step_of_the_path_waited_for_the_one_before(data: Any, keys: dict[str, Any], coalesce: bool) -> None:
    """Stream order, hazards, collectives and messages, found op by op, lead from step to step at the ops' times."""
    plan = dense_plan(**keys)
    pricing = data.draw(pricings(plan.mesh.size))
    run = simulate(plan, pricing, coalesce=coalesce)
    dependencies, times = ReferenceEngine(plan, pricing, run.folding), op_times(run)
    dependencies.connect()
    steps = [(key_of(run, step), step) for step in critical_path(run).steps if step.op is not None]
    for key, step in steps:
        if not isinstance(step.op, Recv):
            assert (step.start_s, step.end_s) == pytest.approx(times[key], rel=1e-12, abs=EQUAL * run.makespan_s)
    assert all(follows(dependencies, times, after, before) for (before, _), (after, _) in pairwise(steps))


@SETTINGS
@given(data=st.data(), plan=PLANS, coalesce=st.booleans(), seed=st.integers(0, 99))
def test_rounding_does_not_choose_among_equally_long_paths(data: Any, plan: Plan, coalesce: bool, seed: int) -> None:
    """The path stays with each op as long as before where all moments are off in their last digits.

    And steps begin with the same nodes.
    """
    pricing = data.draw(pricings(plan.mesh.size))
    run = simulate(plan, pricing, coalesce=coalesce, repeat=False)
    expected_s, begins = spent_s(run), run.first_nodes
    shake(run, np.random.default_rng(seed))
    shaken = SimulatedRun(plan, run.folding, run.programs, run.priced, run.graph, run.loop, run.num_steps)
    found_s = spent_s(shaken)
    assert shaken.first_nodes == begins
    off_s = [abs(found_s.get(op, 0.0) - expected_s.get(op, 0.0)) for op in found_s.keys() | expected_s.keys()]
    assert max(off_s) <= 1e-9 * run.makespan_s


def spent_s(run: SimulatedRun) -> dict[tuple[int, int], float]:
    """Return how long a run's path stays with each op of each rank."""
    return {(spent.rank, id(spent.op)): spent.seconds for spent in critical_path(run).spent}


def shake(run: SimulatedRun, random: np.random.Generator) -> None:
    """Move all moments of a run by some units of their last digits."""
    loop = run.loop
    for moments_s in (loop.starts_s, loop.ends_s, *(block.released_s for block in run.graph.blocks.values())):
        moments_s[:] = (np.array(moments_s) * (1.0 + 1e-14 * random.uniform(-1.0, 1.0, len(moments_s)))).tolist()
    del loop.times_s


@pytest.mark.parametrize("keys", [{"schedule": "zb_h1", "m": 9}, {"m": 24, "tp": 2}], ids=["one by one", "repeated"])
def test_ops_of_a_call_that_follow_each_other_are_one_part(
    keys: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps, and what is spent with each op, are those of a walk op by op; parts are far fewer."""
    plan = dense_plan(pp=2, **keys)
    run = simulate(plan, slow_adapters(plan.mesh.size), coalesce="tp" in keys)
    path = critical_path(run)
    monkeypatch.setattr(path_walk, "FEWEST", math.inf)
    single = critical_path(run)
    assert 4 * len(path.parts) < len(single.parts)
    assert path.steps == single.steps
    assert [found[:3] for found in path.spent] == [found[:3] for found in single.spent]
    assert sum(found.seconds for found in path.spent) == pytest.approx(sum(step.duration_s for step in path.steps))
    assert all(found.op is run.programs[found.rank].distinct_ops.ops[found.place] for found in path.spent if found.op)
    assert [found.seconds for found in path.spent] == pytest.approx([found.seconds for found in single.spent])


@pytest.mark.parametrize("schedule", ["1f1b", "zb_h2"])
def test_the_path_ends_where_a_step_takes_a_day(schedule: str) -> None:
    """Ranks of a tensor-parallel group that are not alike, over links so slow that a kernel is no part of the step."""
    plan = dense_plan(tp=2, m=2, schedule=schedule, sequence_parallel=True)
    run = simulate(plan, slow_adapters(plan.mesh.size))
    assert run.graph.team_calls
    assert run.makespan_s > 86_400
    path = critical_path(run)
    assert path.steps[-1].end_s == run.makespan_s
    compute_s = sum(s.duration_s for s in path.steps if isinstance(s.op, Compute))
    assert 0 < compute_s < 1e-8 * run.makespan_s


@SETTINGS
@given(data=st.data(), keys=dense_keys(8))
def test_the_run_is_longer_by_at_least_what_the_path_is(data: Any, keys: dict[str, Any]) -> None:
    """Longest paths are convex in the ops' times: ops longer by a part of themselves add that part of it or more."""
    plan = dense_plan(**keys)
    pricing = data.draw(clusters(plan.mesh.size))
    run = simulate(plan, Slower(pricing, "", 1.0))
    path = critical_path(run)
    what = data.draw(st.sampled_from(sorted({named(step.op) for step in path.steps} - {""})))
    on_path_s = sum(step.duration_s for step in path.steps if named(step.op) == what)
    longer_s = simulate(plan, Slower(pricing, what, 1.0 + 1e-3)).makespan_s - run.makespan_s
    assert longer_s >= 1e-3 * on_path_s * (1 - 1e-6)
    assert simulate(plan, Slower(pricing, what, 1.0 - 1e-7)).makespan_s <= run.makespan_s
