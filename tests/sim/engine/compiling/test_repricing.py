"""A plan that is compiled once gives under other prices, to the last bit, what compiling it anew gives."""

from collections.abc import Collection
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from costmodels.software import Software
from sim.engine.compiling.repricing import structure_of
from sim.engine.findings.timeline import timeline
from sim.engine.folding.folding import fold, no_fold
from sim.engine.prices.activity import Activity
from sim.engine.prices.pricing import ClusterPricing
from sim.engine.prices.traffic import Wanted
from sim.engine.running.run import SimulatedRun
from sim.engine.running.simulate import Simulation, simulate
from sim.plan.words.op import Compute, Op, Send
from sim.plan.words.program import Plan, Program, Task
from tests.examples import examples
from tests.sim.engine.test_engine_random_programs import plans
from tests.sim.engine.uncertainty.erring import Erring, drawn_factor, model_errors
from tests.sim.jobs import dense_plan, pricing_on
from tests.sim.strategies import aiao_keys, dense_keys
from tests.sim.topology_strategies import clusters

SETTINGS = settings(max_examples=examples(8), deadline=None, suppress_health_check=list(HealthCheck))
ERRORS = model_errors(
    dict.fromkeys(("gemm", "attention", "elementwise", "optimizer", "network"), 0.5), common=0.3, step=0.0
)
LAUNCHES = Software(launch_s=3e-6, native_launch_s=1e-6, task_launch_s=5e-6, rank_skew_s=2e-6)


def assert_the_same(run: SimulatedRun, other: SimulatedRun) -> None:
    """Fail unless all nodes of two runs have the very same times."""
    assert run.loop.starts_s == other.loop.starts_s
    assert run.loop.ends_s == other.loop.ends_s
    assert (run.iteration_time_s, run.num_events) == (other.iteration_time_s, other.num_events)
    assert run.num_steps == other.num_steps


@SETTINGS
@given(data=st.data(), keys=dense_keys(8), coalesce=st.booleans(), folded=st.booleans())
def test_any_prices_of_any_job_give_what_a_fresh_run_gives(
    data: Any, keys: dict[str, Any], coalesce: bool, folded: bool
) -> None:
    """Other kernels, messages, launches and clusters, one after the other: the runs are those of ``simulate``."""
    plan, how = dense_plan(**keys), fold if folded else no_fold
    simulation, pricing = Simulation(plan, how, coalesce), data.draw(clusters(plan.mesh.size))
    for _ in range(3):
        match data.draw(st.sampled_from(["errors", "launches", "none", "cluster"])):
            case "errors":
                factor = drawn_factor(ERRORS, data.draw(st.integers(0, 2**20)))
                priced: Any = Erring(pricing, factor, alone=data.draw(st.booleans()))
            case "launches":
                priced = pricing.under(LAUNCHES)
            case "cluster":
                priced = pricing = data.draw(clusters(plan.mesh.size))
            case _:
                priced = pricing
        assert_the_same(simulation.run(priced), simulate(plan, priced, fold=how, coalesce=coalesce))


@settings(SETTINGS, max_examples=examples(2))
@given(data=st.data(), keys=aiao_keys())
def test_overlapping_steps_are_priced_anew(data: Any, keys: dict[str, Any]) -> None:
    """Where several steps are simulated in a row, as many are as the prices at hand take to become steady."""
    plan = dense_plan(**keys)
    simulation, pricing = Simulation(plan), data.draw(clusters(plan.mesh.size))
    for software in (Software(launch_s=1e-3), LAUNCHES):
        priced = pricing.under(software)
        assert_the_same(simulation.run(priced), simulate(plan, priced))


class Scaled:
    """Every op demands what its attributes say, times a factor; of some resources nothing."""

    def __init__(self, factor: float, without: str) -> None:
        """Take the factor and the resource that nobody uses."""
        self.factor, self.without = factor, without

    def price(self, plan: Plan, program: Program, op: Op, rank: int) -> Activity:
        """Return the stated latency and demands."""
        assert isinstance(op, Compute)
        demands = tuple((r, s * self.factor) for r, s in op.attributes["demands"] if s > 0 and r != self.without)
        return Activity(op.attributes["latency_s"] * self.factor, demands)

    def expect(self, plan: Plan, ranks: Collection[int], wanted: Wanted | None = None) -> None:
        """Do nothing: stated demands are not computed."""

    def launches_s(self, task: Task) -> tuple[float, ...]:
        """Return that launching takes no time."""
        return ()


@settings(SETTINGS, max_examples=examples(24))
@given(plan=plans(), coalesce=st.booleans(), data=st.data())
def test_made_up_programs_are_priced_anew(plan: Plan, coalesce: bool, data: Any) -> None:
    """Whatever hazards there are, and whoever stops using a resource, the run is the one of ``simulate``."""
    simulation = Simulation(plan, no_fold, coalesce)
    for _ in range(3):
        pricing: Any = Scaled(data.draw(st.sampled_from([1.0, 0.3, 7.0])), data.draw(st.sampled_from(["", "link"])))
        assert_the_same(simulation.run(pricing), simulate(plan, pricing, fold=no_fold, coalesce=coalesce))


def test_the_graph_stays_as_long_as_it_holds() -> None:
    """Other launches leave it as it is; where a message travels longer than others do, it is made anew."""
    plan = dense_plan(pp=2, m=4, dp=2)
    pricing = pricing_on("dgx-a100-80g", 4)
    simulation = Simulation(plan)
    first = simulation.run(pricing)
    assert simulation.run(pricing.under(LAUNCHES)).graph.successors is first.graph.successors
    other = pricing_on("dgx-a100-80g", 4, devices_per_node=2)
    assert simulation.run(other).graph.successors is not first.graph.successors


def test_prices_that_alternate_compile_each_structure_once() -> None:
    """Two clusters with other graphs, in turn: after one run of each, both graphs are found again."""
    plan = dense_plan(pp=2, m=4, dp=2)
    pricings = [pricing_on("dgx-a100-80g", 4), pricing_on("dgx-a100-80g", 4, devices_per_node=2)]
    simulation = Simulation(plan)
    compiled = [simulation.run(pricing).graph.successors for pricing in pricings]
    assert compiled[0] is not compiled[1]
    for _ in range(2):
        for successors, pricing in zip(compiled, pricings, strict=True):
            again = simulation.run(pricing)
            assert again.graph.successors is successors
            assert_the_same(again, simulate(plan, pricing))


@pytest.mark.parametrize("change", ["resource", "occupancy", "latency"])
def test_what_decides_on_the_graph_is_seen(change: str) -> None:
    """An op that no longer uses what it used, a send that no longer leaves at once, one that travels otherwise."""
    plan = dense_plan(pp=2, m=4)
    run = simulate(plan, pricing_on("dgx-a100-80g", 2), fold=no_fold)
    rank, name, place, activity = next(
        (rank, name, place, task.activities[place])
        for rank, tasks in run.priced.items() for name, task in tasks.items()
        for place, op in enumerate(run.programs[rank].tasks[name].ops)
        if isinstance(op, Send) is (change != "resource") and task.activities[place].demands
    )  # fmt: skip
    other = {
        "resource": replace(activity, demands=()),
        "occupancy": replace(activity, demands=tuple((r, 0.0) for r, _ in activity.demands)),
        "latency": replace(activity, latency_s=2.0 * activity.latency_s),
    }[change]
    task = run.priced[rank][name]
    activities = (*task.activities[:place], other, *task.activities[place + 1 :])
    changed = {**run.priced, rank: {**run.priced[rank], name: replace(task, activities=activities)}}
    stays = structure_of(run.programs, run.priced) == structure_of(run.programs, changed)
    assert stays is (change == "latency" and _is_only_send(run, rank))


def _is_only_send(run: SimulatedRun, rank: int) -> bool:
    ops = (op for task in run.programs[rank].tasks.values() for op in task.ops)
    return sum(isinstance(op, Send) for op in ops) == 1


def test_a_run_of_other_prices_shows_its_own_times() -> None:
    """The timeline of a run that was priced anew is that of a fresh one, row by row."""
    plan = dense_plan(tp=2, pp=2, m=3)
    pricing, simulation = pricing_on("dgx-a100-80g", 4), Simulation(plan)
    assert isinstance(pricing, ClusterPricing)
    simulation.run(pricing)
    found, expected = (timeline(run) for run in (simulation.run(pricing.under(LAUNCHES)),
                                                 simulate(plan, pricing.under(LAUNCHES))))  # fmt: skip
    assert found.start_s.tolist() == expected.start_s.tolist()
    assert found.end_s.tolist() == expected.end_s.tolist()
