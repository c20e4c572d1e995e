"""Intervals of step times: as wide as runs with drawn errors are spread."""

import math
from pathlib import Path
from statistics import NormalDist

import numpy as np
import pytest
from msgspec.structs import replace

from costmodels.software import Software
from costmodels.spread import Spread
from scenarios.workloads.loading import load_scenario
from scenarios.workloads.steps.intervals import errors_of
from scenarios.workloads.steps.running import plan_of
from sim.engine.findings.critical_path import CriticalPath, critical_path
from sim.engine.folding.folding import no_fold
from sim.engine.prices.activity import Activity
from sim.engine.prices.pricing import ClusterPricing
from sim.engine.prices.textbook import TextbookPricing
from sim.engine.running.simulate import Simulation, simulate
from sim.engine.uncertainty.errors import ErrorClasses, ModelErrors
from sim.engine.uncertainty.first_order import path_shares
from sim.engine.uncertainty.interval import Interval, Method, drawn_step_times_s, step_deviation, step_time_interval
from sim.plan.words.buffer import Buffer, Kind, Scope
from sim.plan.words.mesh import Mesh
from sim.plan.words.op import Compute, Op
from sim.plan.words.program import Call, Phase, Plan, Program, Task
from sim.training.steps.builder import build_dense_training
from sim.training.steps.delayed import build_delayed_training
from tests.sim.engine.uncertainty.erring import Erring, drawn_factor, model_errors
from tests.sim.engine.uncertainty.test_retiming import retimed
from tests.sim.jobs import GPT, LLAMA, dense_job, dense_plan, pricing_on
from tests.sim.topology_strategies import straggling

SCENARIOS = Path(__file__).parents[4] / "scenarios" / "library"
SIGMA = {"gemm": 0.08, "attention": 0.1, "elementwise": 0.2, "network": 0.3, "optimizer": 0.1}
Z_90 = 1.6448536269514722


def path_of(name: str) -> CriticalPath:
    """Return the critical path of a scenario's run."""
    scenario = load_scenario(SCENARIOS / name)
    return critical_path(simulate(plan_of(scenario), scenario.pricing()))


def spread(bounds: Interval, time_s: float) -> list[float]:
    """Return the logarithms of both bounds over a time."""
    return [math.log(bound / time_s) for bound in bounds]


# --- closed forms -----------------------------------------------------------------------------------------


class OneSecond(TextbookPricing, frozen=True):
    """Every op lasts a second."""

    def price(self, plan: Plan, program: Program, op: Op, rank: int) -> Activity:
        """Return the second."""
        return Activity(1.0)


def elementwise(streams: list[str]) -> Plan:
    """Return a step of elementwise kernels on streams, each on a shape of its own."""
    shapes = {f"b{i}": (i + 1,) for i in range(len(streams))}
    buffers = {n: Buffer(n, shape, "float32", Kind.ACTIVATION, Scope.STEP) for n, shape in shapes.items()}
    ops = tuple(Compute(f"op{i}", "gelu", (), (f"b{i}",), stream=stream) for i, stream in enumerate(streams))
    task = Task("step", Phase.OPTIMIZER, ops)
    return Plan("closed form", Mesh((("dp", 1),)), (Program({}, buffers, {"step": task}, (Call("step"),)),))


def drawn_of(plan: Plan, errors: ModelErrors, num_draws: int) -> np.ndarray:
    """Return drawn times of ops of a second."""
    return drawn_step_times_s(critical_path(simulate(plan, OneSecond())), errors, num_draws)


def test_a_chain_of_independent_ops_is_a_sum_of_lognormal_times() -> None:
    """Mean and variance are n exp(s^2/2) and n (exp(s^2) - 1) exp(s^2), within what 4,000 draws let them be known."""
    count, sigma = 9, 0.4
    errors = model_errors({"elementwise": sigma}, common=0.0, step=0.0)
    times = drawn_of(elementwise(["compute"] * count), errors, 4000)
    variance = math.expm1(sigma**2) * math.exp(sigma**2)
    assert times.mean() == pytest.approx(count * math.exp(sigma**2 / 2), abs=4 * math.sqrt(count * variance / 4000))
    assert times.var() == pytest.approx(count * variance, rel=0.15)


def test_of_two_equal_paths_the_longer_one_counts() -> None:
    """The larger of two normal logarithms has mean s / sqrt(pi) and variance s^2 (1 - 1/pi): slower than either."""
    sigma = 0.1
    errors = model_errors({"elementwise": sigma}, common=0.0, step=0.0)
    logs = np.log(drawn_of(elementwise(["compute", "dp"]), errors, 4000))
    assert logs.mean() == pytest.approx(sigma / math.sqrt(math.pi), abs=4 * sigma / math.sqrt(4000))
    assert logs.std() == pytest.approx(sigma * math.sqrt(1 - 1 / math.pi), rel=0.06)


def test_of_two_that_wait_for_each_other_the_median_is_that_of_the_slower() -> None:
    """P(both below x) = 1/2 where P(one below x) = 1/sqrt(2); of one alone it is the predicted time."""
    errors = model_errors({"elementwise": 0.1}, common=0.0, step=0.0)
    one, two = (
        step_time_interval(critical_path(simulate(elementwise(streams), OneSecond())), errors).median_s
        for streams in (["compute"], ["compute", "dp"])
    )
    assert one == pytest.approx(1.0, abs=1e-3)
    assert math.log(two) == pytest.approx(0.1 * NormalDist().inv_cdf(math.sqrt(0.5)), abs=0.02)


def test_one_kernel_errs_by_exactly_its_quantiles() -> None:
    """Where a single error decides, few draws give the quantiles of its normal distribution."""
    errors = model_errors({"elementwise": 0.1}, common=0.5, step=0.03)
    found = step_time_interval(critical_path(simulate(elementwise(["compute"]), OneSecond())), errors)
    deviation = math.hypot(0.1, 0.03)
    assert found.method is Method.SAMPLED
    assert spread(found.bounds, 1.0) == pytest.approx([-Z_90 * deviation, Z_90 * deviation], rel=0.01)


# --- against runs of the engine ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["tiny-gpt-2x2.yaml", "llama-2-13b-fsdp-64-a100.yaml"])
def test_contention_may_be_held_as_it_was(name: str) -> None:
    """Run by run, full runs with drawn errors differ from retimed ones by a small part of their own deviation."""
    scenario = load_scenario(SCENARIOS / name)
    plan, pricing = plan_of(scenario), scenario.pricing()
    again, run = Simulation(plan), simulate(plan, pricing)
    errors = model_errors(SIGMA, common=0.5, step=0.0)
    factors = [drawn_factor(errors, seed) for seed in range(8)]
    full = np.log([again.run(Erring(pricing, f)).iteration_time_s / run.iteration_time_s for f in factors])
    assert np.sqrt(np.mean((np.log(retimed(run, factors)) - full) ** 2)) < 0.08 * full.std()


def test_runs_with_drawn_errors_are_spread_as_the_interval_says() -> None:
    """Mean and deviation of 60 runs' logarithms are those of the drawn times; 90 % of the runs lie inside."""
    scenario = load_scenario(SCENARIOS / "tiny-gpt-2x2.yaml")
    plan, pricing = plan_of(scenario), scenario.pricing()
    errors = model_errors(SIGMA, common=0.5, step=0.0)
    path = critical_path(simulate(plan, pricing))
    low_s, high_s = step_time_interval(path, errors).bounds
    again = Simulation(plan)
    full = np.array([again.run(Erring(pricing, drawn_factor(errors, seed))).makespan_s for seed in range(60)])
    ours = drawn_step_times_s(path, errors, 512)
    assert np.log(full).std() == pytest.approx(np.log(ours).std(), rel=0.25)
    assert np.log(full).mean() == pytest.approx(np.log(ours).mean(), abs=0.3 * np.log(ours).std())
    assert np.mean((full > low_s) & (full < high_s)) == pytest.approx(0.9, abs=0.08)


@pytest.mark.parametrize(("keys", "excess"), [({"dp": 6}, 0.0), ({"tp": 4}, 0.0), ({"pp": 2, "dp": 3, "m": 2}, 0.02)])
def test_a_folded_run_waits_for_the_slowest_of_each_class(keys: dict[str, int], excess: float) -> None:
    """Without folding, devices with factors of their own take as long; of several pipelines no longer than folded.

    That holds for full runs of the engine, and for an unfolded run that is retimed.
    """
    plan = dense_plan(**keys, overlap_gradient_sync=False)
    pricing = pricing_on("dgx-a100-80g", plan.mesh.size)
    errors = model_errors({}, common=0.5, step=0.0, jitter={"gemm": 0.05, "elementwise": 0.05})
    path = critical_path(simulate(plan, pricing))
    assert len(path.run.programs) < plan.mesh.size
    folded = drawn_step_times_s(path, errors, 512) / path.run.iteration_time_s
    again = Simulation(plan, no_fold)
    runs_s = [again.run(Erring(pricing, drawn_factor(errors, seed))).makespan_s for seed in range(24)]
    full = np.array(runs_s) / path.run.iteration_time_s
    error = full.std() / math.sqrt(24)
    assert -3 * error < folded.mean() - full.mean() < excess + 3 * error
    whole = drawn_step_times_s(critical_path(again.run(pricing)), errors, 512) / path.run.iteration_time_s
    assert whole.mean() == pytest.approx(full.mean(), abs=3 * error)


# --- laws -------------------------------------------------------------------------------------------------


def test_without_errors_the_interval_is_the_step() -> None:
    """Nothing errs: both bounds are the predicted time."""
    path = path_of("quickstart.yaml")
    found = step_time_interval(path, model_errors({}, common=0.5, step=0.0))
    assert (*found.bounds, found.median_s) == pytest.approx([path.run.iteration_time_s] * 3, rel=1e-12)


@pytest.mark.parametrize("more", ["gemm", "elementwise", "network", "step"])
def test_more_variance_never_narrows(more: str) -> None:
    """Twice the deviation of anything, with the same random numbers, gives a wider interval."""
    path = path_of("llama-2-13b-fsdp-64-a100.yaml")
    errors = model_errors(SIGMA, common=0.5, step=0.02)
    wider = (
        model_errors(SIGMA, step=0.04) if more == "step" else model_errors({**SIGMA, more: 2 * SIGMA[more]}, step=0.02)
    )
    one, other = (spread(step_time_interval(path, e).bounds, 1.0) for e in (errors, wider))
    assert other[1] - other[0] > one[1] - one[0]


def test_what_errs_as_a_whole_widens_every_step_alike() -> None:
    """Without kernels' errors the interval is that of a normal logarithm with the step's deviation."""
    found = step_time_interval(path_of("textbook-1f1b.yaml"), model_errors(SIGMA, common=0.5, step=0.02))
    assert found.bounds == pytest.approx((33 * math.exp(-0.0329), 33 * math.exp(0.0329)), rel=3e-4)


def test_draws_are_the_same_again() -> None:
    """Two runs of one scenario have one interval, to the last digit; another seed has another."""
    one, same = (path_of("tiny-gpt-2x2.yaml") for _ in range(2))
    errors = model_errors(SIGMA, common=0.5, step=0.02)
    assert step_time_interval(one, errors) == step_time_interval(same, errors)
    same.run.plan = replace(same.run.plan, seed=1)
    assert step_time_interval(one, errors) != step_time_interval(same, errors)


@pytest.mark.parametrize(
    ("node", "per_node", "keys", "software"),
    [
        ("dgx-a100-80g", 8, {"pp": 2, "dp": 2, "tp": 2, "m": 2}, Software()),
        ("cloud-a100-100g", 2, {"dp": 2, "tp": 2}, Software()),
        ("longhorn", 2, {"pp": 2, "dp": 2, "m": 2}, Software(launch_s=3e-6, task_launch_s=5e-5)),
    ],
)
@pytest.mark.parametrize("network", [((1.0, 0.3),), ((1e-6, 0.01), (1e-3, 0.8))])
def test_folding_does_not_change_the_interval(
    node: str, per_node: int, keys: dict[str, int], software: Software, network: tuple[tuple[float, float], ...]
) -> None:
    """Ranks that cannot differ err alike: every rank by itself gives the interval of one for each class.

    So it is where those that one stands for share links: each errs as it does alone, and waits for its own launch.
    """
    plan = dense_plan(**keys)
    pricing = pricing_on(node, plan.mesh.size, devices_per_node=per_node).under(software)
    errors = model_errors(SIGMA, common=0.5, step=0.02)
    errors = replace(errors, spread={**errors.spread, "network": Spread(deviation=network, common=0.5)})
    runs = simulate(plan, pricing), simulate(plan, pricing, fold=no_fold)
    assert len(runs[0].programs) < len(runs[1].programs)
    folded, unfolded = (step_time_interval(critical_path(run), errors) for run in runs)
    assert folded.bounds == pytest.approx(unfolded.bounds, rel=1e-9)
    assert folded.median_s == pytest.approx(unfolded.median_s, rel=1e-9)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_a_folded_run_takes_the_same_of_two_equally_long_paths(precision: str) -> None:
    """Both directions of chimera end together, with the same ops but other messages: rounding chooses neither.

    Draws are even along the path, so another path has other draws.
    """
    model = GPT | {"num_layers": 3}
    plan = dense_plan(pp=2, m=16, schedule="chimera", layers_per_stage=(1, 2), precision=precision, model=model)
    pricing = straggling("dgx-2", 2, 1, {"link": "node 1 nic 0 in", "slowdown": 2.0})
    run, whole = simulate(plan, pricing), simulate(plan, pricing, repeat=False)
    assert run.repeated is not None
    errors = model_errors(SIGMA, common=0.5, step=0.02)
    times_s, whole_s = (drawn_step_times_s(critical_path(found), errors, 16) for found in (run, whole))
    assert times_s == pytest.approx(whole_s, rel=1e-9)


def test_stated_jitter_widens_the_interval() -> None:
    """Devices that differ may differ otherwise than drawn: the interval says so, and holds the predicted time."""
    scenario = load_scenario(SCENARIOS / "tiny-gpt-2x2.yaml", ["cluster.jitter={gemm: 0.3, elementwise: 0.3}"])
    pricing = scenario.pricing()
    assert isinstance(pricing, ClusterPricing)
    path = critical_path(simulate(plan_of(scenario), pricing))
    errors = errors_of(pricing)
    assert errors.jitter["gemm"] == 0.3
    low_s, high_s = step_time_interval(path, errors).bounds
    one, other = step_time_interval(path, replace(errors, jitter={})).bounds
    assert low_s < path.run.iteration_time_s < high_s
    assert math.log(high_s / low_s) > math.log(other / one)


def test_what_devices_have_drawn_already_is_taken_away_of_each_family() -> None:
    """A run whose devices differ, timed again with next to no differences drawn, takes as long as with equal devices.

    That holds for attention's backward, too, in which devices differ by a draw of its own.
    """
    sizes = "num_layers: 2, hidden_size: 64, num_heads: 2, ffn_hidden_size: 128, sequence_length: 2048, vocab_size: 64"
    model = f"model={{family: llama, {sizes}}}"
    alike, unlike = (
        load_scenario(SCENARIOS / "tiny-gpt-2x2.yaml", [model, *more]).pricing()
        for more in ([], ["cluster.jitter={attention: 0.5}"])
    )
    plan = plan_of(load_scenario(SCENARIOS / "tiny-gpt-2x2.yaml", [model]))
    assert isinstance(unlike, ClusterPricing)
    path = critical_path(simulate(plan, unlike))
    narrow = {"attention": 1e-9, "attention_backward": 1e-9}
    errors = replace(errors_of(unlike), spread={}, step=0.0, jitter=narrow)
    found = drawn_step_times_s(path, errors, 8)
    assert found == pytest.approx([simulate(plan, alike).iteration_time_s] * 8, rel=0.01)


def test_measured_jitter_counts_where_the_scenario_states_none() -> None:
    """A profile's jitter is taken without simulating every rank; what a cluster states of a family takes its place."""
    cluster = ["cluster.node=dgx-a100-80g", "cluster.jitter={elementwise: 0.3}"]
    pricing = load_scenario(SCENARIOS / "tiny-gpt-2x2.yaml", cluster).pricing()
    assert isinstance(pricing, ClusterPricing)
    measured = replace(pricing, profile=replace(pricing.profile, jitter={"gemm": 0.1, "elementwise": 0.1}))
    found = errors_of(measured)
    assert found.jitter == {"gemm": 0.1, "elementwise": 0.3}
    assert found.drawn.slowdown("gemm", 0) == 1.0 != found.drawn.slowdown("elementwise", 0)


# --- first order ------------------------------------------------------------------------------------------


def test_one_family_errs_as_a_whole_or_shape_by_shape() -> None:
    """All in common the deviations of a family add up; all apart they add in squares, which is less."""
    path = path_of("quickstart.yaml")
    share = path.seconds["gemm"] / path.run.makespan_s
    whole = step_deviation(path, model_errors({"gemm": 0.1}, common=1.0, step=0.0))
    apart = step_deviation(path, model_errors({"gemm": 0.1}, common=0.0, step=0.0))
    assert whole == pytest.approx(0.1 * share)
    assert apart < 0.6 * whole


@pytest.mark.parametrize("schedule", ["1f1b", "aiao", "pipedream_2bw"])
def test_an_error_that_all_ops_share_is_the_steps(schedule: str) -> None:
    """Where every op is off by one factor so is the step, also one of several that overlap."""
    keys = {"virtual_stages": 2, "deferred_sync": 0.5} if schedule == "aiao" else {}
    job = dense_job(pp=2, m=4, model=LLAMA, schedule=schedule, **keys)
    plan = build_delayed_training(job, "test") if schedule == "pipedream_2bw" else build_dense_training(job, "test")
    path = critical_path(simulate(plan, pricing_on("dgx-a100-80g", 2)))
    shares = path_shares(path, ErrorClasses())
    assert sum(shares.values()) == pytest.approx(1.0)


def test_runs_too_large_to_sample_say_so() -> None:
    """Past the limit the interval is that of the critical path, named so, and near that of drawn runs."""
    path, errors = path_of("quickstart.yaml"), model_errors(SIGMA, common=0.5, step=0.02)
    found, drawn = step_time_interval(path, errors, most_nodes=1000), step_time_interval(path, errors)
    assert (found.method, drawn.method) == (Method.FIRST_ORDER, Method.SAMPLED)
    spread_of = Z_90 * step_deviation(path, errors)
    assert spread(found.bounds, path.run.iteration_time_s) == pytest.approx([-spread_of, spread_of])
    assert spread(drawn.bounds, path.run.iteration_time_s) == pytest.approx([-spread_of, spread_of], abs=0.02)
