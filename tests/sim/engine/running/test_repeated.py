"""A run that passes through its period once says of every op and of the step what the whole run says.

8 or 12 random plans per law here, more by hand (MESHTWIN_EXAMPLES=100).
"""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from sim.engine.compiling import tables
from sim.engine.findings.bottleneck import bottlenecks
from sim.engine.findings.breakdown import breakdowns
from sim.engine.findings.computing import computing_seconds
from sim.engine.findings.critical_path import critical_path
from sim.engine.findings.link_use import LinkUse, link_use
from sim.engine.findings.sent import sent_bytes
from sim.engine.prices.pricing import ClusterPricing
from sim.engine.prices.textbook import TextbookPricing
from sim.engine.running import loop
from sim.engine.running.chains import Paces
from sim.engine.running.memory import peak_live_chunks
from sim.engine.running.paced import MULTIPLE
from sim.engine.running.run import SimulatedRun
from sim.engine.running.shorter import Shorter
from sim.engine.running.simulate import Simulation, simulate
from sim.engine.running.task_times import TaskTimes
from sim.engine.uncertainty.interval import drawn_step_times_s
from sim.engine.uncertainty.repeating import Repeating
from sim.engine.uncertainty.retiming import MOST_NODES
from sim.plan.facts.work_shares import work_shares
from sim.plan.words.program import Plan
from sim.training.data.axes import SAMPLE_AXES
from sim.training.spec.models.experts import ExpertsSpec
from tests.examples import examples
from tests.sim.engine.compiling.test_teams import slow_devices
from tests.sim.engine.uncertainty.erring import model_errors
from tests.sim.jobs import GPT, LLAMA, dense_plan, pricing_on, textbook_plan
from tests.sim.strategies import NODES, aiao_keys, dense_keys, expert_keys
from tests.sim.topology_strategies import straggling

LAW = settings(max_examples=examples(12), deadline=None, suppress_health_check=[HealthCheck.too_slow])
SIGMA = {"gemm": 0.08, "attention": 0.1, "elementwise": 0.2, "network": 0.3, "optimizer": 0.1}
STEADY = ("1f1b", "interleaved_1f1b", "zb_h1", "zb_v", "dualpipe_v")
"""Schedules that keep no more micro-batches the more there are."""


@st.composite
def long_plans(draw: Any) -> Plan:
    """Draw a plan with 24 to 64 micro-batches, of any schedule that suits the degrees, with or without experts.

    With a barrier.
    """
    keys: dict[str, Any] = draw(st.one_of(dense_keys(), dense_keys(), expert_keys(), aiao_keys()))
    pp = keys["pp"]
    keys |= {"m": 2 * pp * draw(st.integers(24 // (2 * pp), 64 // (2 * pp)))}
    if pp == 2 and keys.get("zero_stage", 3) < 2 and keys["schedule"] != "aiao" and draw(st.booleans()):
        keys |= {"schedule": draw(st.sampled_from(["chimera", "dualpipe"])), "virtual_stages": 1}
    note(f"keys of the plan: {keys}")
    return replace(dense_plan(**keys), barrier=True)


@st.composite
def steps_in_a_row(draw: Any) -> Plan:
    """Draw a plan of aiao, or of zb_h2 without a barrier: steps run into each other.

    With 60 to 84 micro-batches: most fold by sections.
    """
    m = 12 * draw(st.integers(5, 7))
    if draw(st.booleans()):
        keys: dict[str, Any] = draw(aiao_keys())
        return dense_plan(**(keys | {"tp": 1, "sequence_parallel": False, "m": m}))
    pp, dp, layers = draw(st.integers(2, 3)), draw(st.integers(1, 2)), draw(st.integers(1, 2))
    model = draw(st.sampled_from([GPT, LLAMA])) | {"num_layers": pp * layers}
    return dense_plan(pp=pp, dp=dp, m=m, schedule="zb_h2", optimizer_barrier=False, model=model)


@st.composite
def prices_for(draw: Any, plan: Plan) -> ClusterPricing:
    """Draw prices for a plan: of one kind of node, of nodes with slow devices, or of single devices with slow links."""
    num_ranks, kind = plan.mesh.size, draw(st.sampled_from(["sound", "slow devices", "slow links"]))
    if kind == "sound":
        return pricing_on(draw(st.sampled_from(NODES)), num_ranks, devices_per_node=draw(st.sampled_from([1, 2, 4, 8])))
    slow = sorted(draw(st.sets(st.integers(0, num_ranks - 1), min_size=1, max_size=2)))
    if kind == "slow devices":
        return slow_devices(-(-num_ranks // 8), *slow)
    links = ({"link": f"node {rank} nic 0 in", "slowdown": 2.0} for rank in slow)  # one node has none
    return straggling("dgx-2", num_ranks + 1, 1, *links)


def op_times(run: SimulatedRun) -> Iterator[tuple[int, str, Any, Any]]:
    """Yield rank, task, and start and end in seconds of all its ops in the whole step (calls x ops)."""
    for rank in run.programs:
        for times in run.task_times(rank):
            if run.paced is not None:
                yield rank, times.task.name, *_at_own_pace(run, rank, times)
                continue
            columns = [_unrolled(run, times.starts_s[:, j], times.ends_s[:, j]) for j in range(len(times.task.ops))]
            starts_s, ends_s = (np.stack(found, axis=1) for found in zip(*columns, strict=True))
            yield rank, times.task.name, starts_s, ends_s


def _at_own_pace(run: SimulatedRun, rank: int, times: TaskTimes) -> tuple[Any, Any]:
    """Return starts and ends of a task's ops in all calls: those of a period again, each as much later as its own."""
    assert run.paced is not None
    starts_s, ends_s = times.starts_s, times.ends_s
    for first, stop in reversed(run.paced.repeated[rank]):
        begin, end = np.searchsorted(times.calls, [first, stop])
        pace_s = times.ends_s[begin:end] - times.ends_s[2 * begin - end : begin]
        later_s = np.arange(1, run.paced.times + 1)[:, None, None] * pace_s
        starts_s, ends_s = (
            np.concatenate([found[:end], (found[begin:end] + later_s).reshape(-1, found.shape[1]), found[end:]])
            for found in (starts_s, ends_s)
        )
    return starts_s, ends_s


def _unrolled(run: SimulatedRun, starts_s: Any, ends_s: Any) -> tuple[Any, Any]:
    """Return starts and ends of one op in all calls: those of the period again and again, those after it later."""
    if run.repeated is None:
        return starts_s, ends_s
    slack_s = 1e-9 * run.repeated.length_s
    first, last = np.searchsorted(starts_s, [run.repeated.begin_s - slack_s, run.repeated.end_s - slack_s])
    later_s = run.repeated.length_s * np.arange(1, run.repeated.times + 1)

    def whole(times_s: Any) -> Any:
        again = (times_s[first:last] + later_s[:, None]).ravel()
        return np.concatenate([times_s[:last], again, times_s[last:] + run.repeated.later_s])

    return whole(starts_s), whole(ends_s)


@LAW
@given(data=st.data(), plan=long_plans())
def test_a_folded_run_says_what_the_whole_run_says(data: Any, plan: Plan) -> None:
    """On random plans every op's start and end, memory to the byte, and every finding are those of the whole run."""
    pricing = data.draw(prices_for(plan))
    run, whole = simulate(plan, pricing), simulate(plan, pricing, repeat=False)
    assert run.iteration_time_s == pytest.approx(whole.iteration_time_s, rel=1e-9)
    assert_same_ops(run, whole)
    assert_same_memory(run, whole)
    assert_same_findings(run, whole, pricing)


@settings(LAW, max_examples=examples(6))
@given(plan=steps_in_a_row(), node=st.sampled_from(NODES))
def test_steps_in_a_row_say_folded_what_they_say_whole(plan: Plan, node: str) -> None:
    """Without a barrier the step between two others has, folded, the ops, memory, findings and intervals of all."""
    pricing = pricing_on(node, plan.mesh.size, devices_per_node=1)
    run, whole = simulate(plan, pricing), simulate(plan, pricing, repeat=False)
    assert run.iteration_time_s == pytest.approx(whole.iteration_time_s, rel=1e-9)
    assert run.makespan_s == pytest.approx(whole.makespan_s, rel=1e-9)
    assert_same_ops(run, whole)
    assert_same_memory(run, whole)
    assert_same_findings(run, whole, pricing)
    assert_same_intervals(run, whole, jitter=0.0)


def assert_same_ops(run: SimulatedRun, whole: SimulatedRun) -> None:
    """Fail unless starts and ends of all ops are the same to 1e-9 of the step."""
    for (*name, starts_s, ends_s), (*other, whole_starts_s, whole_ends_s) in zip(
        op_times(run), op_times(whole), strict=True
    ):
        assert name == other
        assert np.abs(starts_s - whole_starts_s).max() <= 1e-9 * whole.makespan_s, name
        assert np.abs(ends_s - whole_ends_s).max() <= 1e-9 * whole.makespan_s, name


def assert_same_memory(run: SimulatedRun, whole: SimulatedRun) -> None:
    """Fail unless peaks of memory are the same to the byte."""
    for rank in run.programs:
        assert run.memory_of(rank).peak_bytes == whole.memory_of(rank).peak_bytes
        assert run.memory_of(rank).peak_by_kind_bytes == whole.memory_of(rank).peak_by_kind_bytes
        assert run.peak_live_chunks(rank) == peak_live_chunks(whole.programs[rank])


def assert_same_findings(run: SimulatedRun, whole: SimulatedRun, pricing: ClusterPricing) -> None:
    """Fail unless it says to 1e-9 where time goes, what is sent, how full links are and how long the path is."""

    def near(found: Any) -> Any:
        return pytest.approx(found, rel=1e-9, abs=1e-9 * whole.iteration_time_s)

    shares = dict(zip(map(id, run.plan.programs), work_shares(run.plan, SAMPLE_AXES), strict=True))
    found, expected = breakdowns(run), breakdowns(whole)
    for rank in run.programs:
        mine, other = found[rank], expected[rank]
        assert mine.busy_s == near(other.busy_s)
        assert mine.exposed_s == near(other.exposed_s)
        of_rank = shares[id(run.plan.program_of(rank))]
        assert computing_seconds(run, rank, of_rank) == near(computing_seconds(whole, rank, of_rank))
        assert run.num_calls(rank) == whole.num_calls(rank)
    assert run.max_rank_span_s == near(whole.max_rank_span_s)
    assert sent_bytes(run, pricing) == pytest.approx(sent_bytes(whole, pricing), rel=1e-9)
    assert (seconds := critical_path(run).seconds) == near(critical_path(whole).seconds)
    assert math.fsum(seconds.values()) == near(whole.iteration_time_s)
    links, of_whole = link_use(run, pricing), link_use(whole, pricing)
    assert_same_links(links, of_whole)
    num_ranks = run.plan.mesh.size
    for found, expected in zip(bottlenecks(links, num_ranks), bottlenecks(of_whole, num_ranks), strict=True):
        assert (found.stream, found.kind) == (expected.stream, expected.kind)
        assert (found.time_s, found.latency_s) == near((expected.time_s, expected.latency_s))
        assert found.bound_s == near(expected.bound_s)
        moving_s = expected.time_s - expected.latency_s
        full_s, expected_s = ({kind: part * moving_s for kind, part in of.fullest.items()} for of in (found, expected))
        assert full_s == near(expected_s)


@settings(LAW, max_examples=examples(8))
@given(data=st.data(), plan=long_plans(), jitter=st.sampled_from([0.0, 0.05]))
def test_intervals_are_those_of_the_whole_run(data: Any, plan: Plan, jitter: float) -> None:
    """Step times with drawn errors are the same, draw by draw, where devices differ at random too."""
    pricing = data.draw(prices_for(plan))
    assert_same_intervals(simulate(plan, pricing), simulate(plan, pricing, repeat=False), jitter)


@pytest.mark.parametrize(
    ("keys", "node", "per_node"),
    [
        ({"pp": 2, "dp": 2, "m": 24}, "hgx-h100", 8),
        ({"pp": 2, "dp": 2, "m": 25}, "hgx-h100", 8),
        ({"pp": 3, "m": 24}, "cloud-a100-100g", 2),
        ({"pp": 3, "m": 25}, "cloud-a100-100g", 2),
    ],
)
def test_two_periods_of_a_draw_may_take_turns(keys: dict[str, int], node: str, per_node: int) -> None:
    """With some drawn errors short and long periods of stages take turns: all draws are those of the whole run.

    Of three stages the first has its long period while the others have their short one.
    """
    plan = dense_plan(**keys, model=LLAMA)
    pricing = pricing_on(node, plan.mesh.size, devices_per_node=per_node)
    run, whole = simulate(plan, pricing), simulate(plan, pricing, repeat=False)
    assert run.repeated is not None
    assert run.repeated.times % 2 != keys["m"] % 2
    assert off_by(run, whole, 64).max() < 1e-9


@pytest.mark.parametrize(
    ("keys", "node", "per_node"),
    [
        ({"pp": 2, "m": 25, "schedule": "zb_h1"}, "hgx-h100", 8),
        ({"pp": 4, "m": 31, "schedule": "1f1b"}, "hgx-h100", 1),
        ({"pp": 4, "m": 48, "schedule": "zb_h1"}, "cloud-a100-100g", 2),
    ],
)
def test_draws_may_settle_later_than_the_predicted_times(keys: dict[str, Any], node: str, per_node: int) -> None:
    """Errors decide which of nearly equal stages is the slowest, and when the others follow it: all draws are exact.

    Of four stages periods take turns by fours, as long as a micro-batch takes to go through them.
    """
    plan = dense_plan(**keys, model=LLAMA | {"num_layers": 2 * keys["pp"]})
    pricing = pricing_on(node, plan.mesh.size, devices_per_node=per_node)
    run, whole = simulate(plan, pricing), simulate(plan, pricing, repeat=False)
    assert run.repeated is not None
    assert off_by(run, whole, 64).max() < 1e-9


def test_where_counterparts_are_not_known_the_whole_run_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run whose period cannot be passed again gives the draws of the whole run."""
    plan = dense_plan(pp=2, m=24, model=LLAMA)
    pricing = pricing_on("hgx-h100", plan.mesh.size)
    run, whole = simulate(plan, pricing), simulate(plan, pricing, repeat=False)
    assert run.repeated is not None
    monkeypatch.setattr(Repeating, "of", lambda *_: None)
    assert off_by(run, whole, 16).max() < 1e-9


@pytest.mark.parametrize(
    ("keys", "pricing"),
    [
        ({"pp": 3, "dp": 2, "m": 96}, slow_devices(1, 0)),
        ({"pp": 4, "dp": 2, "m": 64}, slow_devices(1, 0)),
        ({"pp": 2, "m": 40, "optimizer_barrier": False}, pricing_on("dgx-1-v100-32g", 2, devices_per_node=2)),
    ],
)
def test_draws_that_do_not_settle_into_paces_are_those_of_the_whole_run(
    keys: dict[str, Any], pricing: ClusterPricing
) -> None:
    """Of nearly equal stages periods take turns: what is left out is no multiple of the last. Other draws stay.

    Where the whole run is too large, the last pace is taken.
    """
    plan = dense_plan(**keys, schedule="1f1b", model=GPT | {"num_layers": keys["pp"]})
    run, whole = simulate(plan, pricing), simulate(plan, pricing, repeat=False)
    assert run.paced is not None
    errors = model_errors(SIGMA, common=0.5, step=0.01)
    exact = drawn_step_times_s(critical_path(whole), errors, 64)
    found, estimated = (drawn_step_times_s(critical_path(run), errors, 64, most) for most in (MOST_NODES, 0))
    assert found == pytest.approx(exact, rel=1e-9)
    is_off = np.abs(estimated / exact - 1.0) > 1e-9
    assert 0 < np.count_nonzero(is_off) < 32
    assert np.count_nonzero(found == estimated) >= 32


def test_draws_that_settle_into_paces_ask_for_no_whole_run() -> None:
    """Stages that nothing holds back keep their paces, whatever errs."""
    plan = dense_plan(pp=2, m=200, schedule="gpipe", model=GPT | {"num_layers": 4})
    run = simulate(plan, pricing_on("dgx-a100-80g", plan.mesh.size, devices_per_node=1))
    assert run.paced is not None
    drawn_step_times_s(critical_path(run), model_errors(SIGMA, common=0.5, step=0.01), 64)
    assert "whole" not in vars(run)


def assert_same_intervals(run: SimulatedRun, whole: SimulatedRun, jitter: float) -> None:
    """Fail unless all drawn step times are the same to 1e-9."""
    assert off_by(run, whole, 16, jitter).max() < 1e-9


def off_by(run: SimulatedRun, whole: SimulatedRun, num_draws: int, jitter: float = 0.0) -> Any:
    """Return by which part drawn step times differ from those of the whole run."""
    errors = model_errors(SIGMA, common=0.5, step=0.01, jitter={"gemm": jitter, "elementwise": jitter})
    drawn = [drawn_step_times_s(critical_path(found), errors, num_draws) for found in (run, whole)]
    return np.abs(drawn[0] / drawn[1] - 1.0)


TIMES = st.sampled_from([0.5, 0.7, 1.0, 1.3, 1.9])
VIRTUAL_STAGES = {"interleaved": 3, "breadth_first": 2, "zb_v": 2, "dualpipe_v": 2}


@LAW
@given(
    schedule=st.sampled_from(
        ["1f1b", "gpipe", "breadth_first", "interleaved", "zb_h2", "zb_v", "zb_auto", "dualpipe_v"]
    ),
    p=st.integers(2, 4),
    rounds=st.integers(30, 60), times_s=st.tuples(TIMES, TIMES, TIMES), hop_s=st.sampled_from([0.0, 0.1, 0.45, 3.0]),
)  # fmt: skip
def test_stated_times_repeat_as_measured_ones_do(
    schedule: str, p: int, rounds: int, times_s: tuple[float, float, float], hop_s: float
) -> None:
    """Whatever forwards, backwards and messages take, a schedule cut short ends when the whole one does."""
    forward_s, input_s, weight_s = sorted(times_s, reverse=True)
    plan = textbook_plan(
        schedule, p, p * rounds, VIRTUAL_STAGES.get(schedule, 1),
        forward_s=forward_s, input_s=input_s, weight_s=weight_s, hop_s=hop_s,
    )  # fmt: skip
    run, whole = simulate(plan, TextbookPricing()), simulate(plan, TextbookPricing(), repeat=False)
    assert run.iteration_time_s == pytest.approx(whole.iteration_time_s, rel=1e-9)
    assert math.fsum(critical_path(run).seconds.values()) == pytest.approx(whole.iteration_time_s, rel=1e-9)
    found, expected = breakdowns(run), breakdowns(whole)
    for rank in run.programs:
        assert found[rank].exposed_s == pytest.approx(expected[rank].exposed_s, rel=1e-9, abs=1e-6)


def assert_same_links(use: LinkUse, whole: LinkUse) -> None:
    """Fail unless links carry the same, in all and over time."""
    assert use.row_of.tolist() == whole.row_of.tolist()
    assert np.allclose(use.num_bytes, whole.num_bytes, rtol=1e-9)
    assert np.allclose(use.busy_s, whole.busy_s, rtol=1e-9)
    for row in range(len(use.example)):
        assert np.allclose(use.over_time(row, 7), whole.over_time(row, 7), atol=1e-6)


@pytest.mark.parametrize("schedule", STEADY)
def test_schedules_that_repeat_themselves_are_cut_short(schedule: str) -> None:
    """A hundred micro-batches take a fraction of the events, and none is left out of the counts."""
    v = 1 if schedule in {"1f1b", "zb_h1"} else 2
    plan = dense_plan(pp=2, m=100, schedule=schedule, virtual_stages=v, model=GPT | {"num_layers": 4})
    pricing = pricing_on("dgx-a100-80g", plan.mesh.size)
    run, whole = simulate(plan, pricing), simulate(plan, pricing, repeat=False)
    assert run.repeated is not None
    assert run.num_events < whole.num_events / 2
    assert run.num_calls(0) == whole.num_calls(0)


def test_a_step_may_do_more_by_itself_than_its_micro_batches_ask_for() -> None:
    """With many layers gathered and reduced once per step, calls that name no micro-batch are the most."""
    plan = dense_plan(dp=4, m=12, zero_stage=3, model=GPT | {"num_layers": 32})
    calls = [call.microbatch for program in plan.programs for call in program.calls]
    assert calls.count(None) > len(calls) / 2
    run = simulate(plan, pricing_on(NODES[0], plan.mesh.size))
    assert run.repeated is not None


@pytest.mark.parametrize(("schedule", "pp"), [("chimera", 4), ("dualpipe", 2), ("dualpipe", 4)])
def test_pipelines_that_go_both_ways_have_a_period(schedule: str, pp: int) -> None:
    """A period has micro-batches from both ends; those that enter at one end say how many periods there are."""
    plan = dense_plan(pp=pp, m=100, schedule=schedule, model=GPT | {"num_layers": 4})
    pricing = pricing_on("dgx-a100-80g", plan.mesh.size, devices_per_node=2)
    run, whole = simulate(plan, pricing), simulate(plan, pricing, repeat=False)
    assert run.repeated is not None
    assert run.num_events < whole.num_events / 2
    assert_same_ops(run, whole)
    assert_same_memory(run, whole)
    assert_same_findings(run, whole, pricing)


@pytest.mark.parametrize("schedule", ["gpipe", "breadth_first"])
def test_stages_may_have_paces_of_their_own(schedule: str) -> None:
    """Where nothing holds an early stage back, each stage repeats with its own period; ends are those of all runs."""
    v = 2 if schedule == "breadth_first" else 1
    plan = dense_plan(pp=2, m=200, schedule=schedule, virtual_stages=v, model=GPT | {"num_layers": 4})
    pricing = pricing_on("dgx-a100-80g", plan.mesh.size, devices_per_node=1)
    run, whole = simulate(plan, pricing), simulate(plan, pricing, repeat=False)
    assert run.paced is not None
    assert run.num_events < whole.num_events / 3
    assert run.iteration_time_s == pytest.approx(whole.iteration_time_s, rel=1e-9)


def test_virtual_stages_may_wait_for_sums_of_the_step_before() -> None:
    """Receives are then issued with the forward before their own; all ranks are still cut at one micro-batch."""
    keys = {"pp": 2, "dp": 2, "m": 120, "schedule": "aiao", "virtual_stages": 3, "deferred_sync": 0.6}
    plan = replace(dense_plan(**keys, model=GPT | {"num_layers": 6}), barrier=True)
    pricing = pricing_on("dgx-a100-80g", plan.mesh.size, devices_per_node=1)
    run, whole = simulate(plan, pricing), simulate(plan, pricing, repeat=False)
    assert run.paced is not None
    assert run.num_events < whole.num_events / 3
    assert_same_ops(run, whole)


@pytest.mark.parametrize("sharded", [{"deferred_sync": 0.6}, {"zero_stage": 1}])
def test_steps_that_run_into_each_other_are_cut_short(sharded: dict[str, Any]) -> None:
    """Each of three steps in a row passes through the periods of its sections once. No whole run is asked for."""
    keys = {"pp": 2, "dp": 2, "m": 120, "schedule": "aiao", "virtual_stages": 2, "model": GPT | {"num_layers": 4}}
    plan = dense_plan(**keys, **sharded)
    assert not plan.barrier
    pricing = pricing_on("dgx-a100-80g", plan.mesh.size, devices_per_node=1)
    run, whole = simulate(plan, pricing), simulate(plan, pricing, repeat=False)
    assert run.paced is not None
    assert run.num_steps == whole.num_steps == 3
    assert run.num_events < whole.num_events / 2
    assert run.iteration_time_s == pytest.approx(whole.iteration_time_s, rel=1e-9)
    assert_same_ops(run, whole)
    assert_same_memory(run, whole)
    assert_same_findings(run, whole, pricing)
    assert "whole" not in vars(run)


@pytest.mark.parametrize("m", [48, 100])
def test_a_message_sent_ahead_is_put_off_by_what_was_left_out(m: int) -> None:
    """In zb_h2 the first stage receives, after its section, two messages that the last stage sent within its own."""
    plan = dense_plan(pp=2, m=m, schedule="zb_h2", optimizer_barrier=False, model=GPT | {"num_layers": 2})
    pricing = pricing_on("dgx-a100-80g", plan.mesh.size)
    run, whole = simulate(plan, pricing), simulate(plan, pricing, repeat=False)
    assert run.paced is not None
    assert_same_ops(run, whole)
    assert_same_findings(run, whole, pricing)


def test_sums_that_last_into_the_next_section_are_exposed_as_in_the_whole_run() -> None:
    """A sum of gradients may run while later calls repeat: what it covers is asked of the run of all micro-batches."""
    keys = {"tp": 2, "pp": 2, "dp": 2, "m": 80, "b": 2, "schedule": "breadth_first", "virtual_stages": 2}
    more = {"collective_matmul": True, "sequence_parallel": True, "bucket_bytes": 0, "axis_order": ("dp", "pp", "tp")}
    plan = dense_plan(**keys, **more, model=GPT | {"num_layers": 5})
    pricing = pricing_on("cloud-a100-100g", plan.mesh.size, devices_per_node=2)
    run, whole = simulate(plan, pricing), simulate(plan, pricing, repeat=False)
    assert run.paced is not None
    assert_same_findings(run, whole, pricing)


@pytest.mark.parametrize("schedule", ["breadth_first", "aiao"])
def test_sums_of_gradients_may_meet_messages_of_stages_behind(schedule: str) -> None:
    """The last stage sums gradients while the first still sends: as many micro-batches are kept at the end of sections.

    Nothing is asked of the run of all micro-batches.
    """
    keys = {"pp": 4, "dp": 2, "m": 96, "schedule": schedule, "virtual_stages": 2}
    keys |= {"deferred_sync": 0.5} if schedule == "aiao" else {}
    plan = replace(dense_plan(**keys, model=GPT | {"num_layers": 8}), barrier=True)
    assert {form.at_end for form in Shorter(plan).section_forms(MULTIPLE)} == {3}
    pricing = pricing_on("dgx-a100-80g", plan.mesh.size, devices_per_node=1)
    run, whole = simulate(plan, pricing), simulate(plan, pricing, repeat=False)
    assert run.paced is not None
    assert run.num_events < whole.num_events / 2
    assert_same_ops(run, whole)
    assert_same_findings(run, whole, pricing)
    assert "whole" not in vars(run)


@pytest.mark.parametrize(("stages", "kept"), [(2, 12), (3, 12), (5, 20), (7, 28)])
def test_more_sections_keep_more_recurrences(stages: int, kept: int) -> None:
    """A step of aiao has two sections per virtual stage, and keeps two recurrences for each, at least 12; then twice.

    As many are left out as can be; of the second form a multiple of 12.
    """
    keys = {"pp": 2, "m": 150, "schedule": "aiao", "virtual_stages": stages, "model": GPT | {"num_layers": 2 * stages}}
    plan = dense_plan(**keys)
    fewest = min(section.num_times for found in Shorter(plan)._sections for section in found)
    first, second = Shorter(plan).section_forms(MULTIPLE)
    assert fewest - first.left_out - first.at_end == kept
    assert 0 <= fewest - second.left_out - second.at_end - 2 * kept < MULTIPLE
    assert second.left_out % MULTIPLE == 0


def test_only_periods_that_divide_what_is_left_out_are_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 171 recurrences that are left out no two can be a period. The second form leaves out a multiple of all."""
    asked = list[int]()
    monkeypatch.setattr(Paces, "of", lambda *found: asked.append(found[-1]))
    plan = dense_plan(pp=2, m=186, schedule="gpipe", model=GPT | {"num_layers": 4})
    first, *_ = Shorter(plan).section_forms(MULTIPLE)
    assert first.left_out == 171
    run = simulate(plan, pricing_on("dgx-a100-80g", plan.mesh.size, devices_per_node=1))
    assert run.paced is None
    assert asked == [1, 3, 1, 2, 3, 4, 6]


def test_stages_of_unlike_pace_do_not_fold_where_they_share_a_link() -> None:
    """Messages of a fast stage meet collectives of a slow one at ever other moments: no period exists, none is used."""
    plan = dense_plan(tp=2, pp=2, m=60, schedule="gpipe", model=GPT | {"num_layers": 4})
    pricing = pricing_on("dgx-a100-80g", plan.mesh.size)
    run, whole = simulate(plan, pricing), simulate(plan, pricing, repeat=False)
    assert run.paced is None
    assert run.repeated is None
    assert run.iteration_time_s == whole.iteration_time_s


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_the_cost_does_not_grow_with_the_number_of_micro_batches(schedule: str) -> None:
    """Sixteen times as many micro-batches are simulated by as many events."""
    pricing = pricing_on("dgx-a100-80g", 2)
    events = [simulate(dense_plan(pp=2, m=m, schedule=schedule), pricing).num_events for m in (124, 2044)]
    assert events[0] == events[1]


@pytest.mark.parametrize("slow", [None, 20])
def test_a_deep_pipeline_is_cut_to_little_more_than_it_takes_to_fill(slow: int | None) -> None:
    """Of 33 stages 38 micro-batches are simulated, and say what all 90 do."""
    plan = dense_plan(pp=33, m=90, model=GPT | {"num_layers": 33})
    pricing = pricing_on("dgx-a100-80g", plan.mesh.size) if slow is None else slow_devices(5, slow)
    run, whole = simulate(plan, pricing), simulate(plan, pricing, repeat=False)
    assert run.repeated is not None
    assert run.repeated.times == 90 - 38
    assert_same_ops(run, whole)
    assert_same_memory(run, whole)
    assert_same_findings(run, whole, pricing)


@pytest.mark.parametrize("schedule", ["zb_h1", "1f1b"])
def test_a_deep_pipeline_that_is_steady_late_gets_a_longer_form(schedule: str) -> None:
    """Whether stages go at paces of their own is not asked before the pipeline is full."""
    plan = dense_plan(pp=33, m=200, schedule=schedule, model=GPT | {"num_layers": 33})
    shorter, pricing = Shorter(plan), slow_devices(5, 0)
    assert [shorter.tells_paces(times) for times in shorter.times] == [False, True]
    run, whole = simulate(plan, pricing), simulate(plan, pricing, repeat=False)
    assert run.repeated is not None
    assert run.repeated.times == shorter.times[1]
    assert run.iteration_time_s == pytest.approx(whole.iteration_time_s, rel=1e-9)


def test_a_repriced_run_is_cut_short_as_well() -> None:
    """One simulation under two prices gives what two fresh ones give, to the last bit."""
    plan = dense_plan(pp=2, dp=2, m=64)
    simulation = Simulation(plan)
    for node in (*NODES, NODES[0]):
        pricing = pricing_on(node, plan.mesh.size)
        found, fresh = simulation.run(pricing), simulate(plan, pricing)
        assert found.repeated == fresh.repeated is not None
        assert found.iteration_time_s == fresh.iteration_time_s


def test_what_tasks_wait_for_is_found_once_for_all_forms(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first shorter form shows no period; the next one has the same tasks, and so have forms under other prices."""
    plan = dense_plan(pp=2, m=48, schedule="zb_h1")
    found, graphs = list[object](), list[object]()
    links, run = tables._links, loop.EventLoop.run
    monkeypatch.setattr(tables, "_links", lambda *args: found.append(args) or links(*args))
    monkeypatch.setattr(loop.EventLoop, "run", lambda self: graphs.append(self.graph) or run(self))
    simulation = Simulation(plan)
    for node in NODES:
        simulation.run(pricing_on(node, plan.mesh.size))
    assert len(graphs) > len(NODES)
    assert len(found) == len(plan.programs)


def test_replicas_of_different_pace_have_their_own_periods() -> None:
    """Where one of two replicas is slower all along, each repeats itself; they meet where gradients are summed."""
    plan = dense_plan(dp=2, m=120)
    pricing = slow_devices(1, 1)
    run, whole = simulate(plan, pricing), simulate(plan, pricing, repeat=False)
    assert run.paced is not None
    assert np.ptp([run.rank_paces(rank).paces_s.max() for rank in (0, 1)])
    assert run.iteration_time_s == pytest.approx(whole.iteration_time_s, rel=1e-9)


@pytest.mark.parametrize("schedule", ["1f1b", "zb_h1"])
def test_a_straggler_holds_up_its_whole_pipeline(schedule: str) -> None:
    """With a slow device the period is its own; the run is that of all micro-batches all the same."""
    plan = dense_plan(tp=2, pp=2, m=80, schedule=schedule)
    pricing = slow_devices(1, 3)
    run, whole = simulate(plan, pricing), simulate(plan, pricing, repeat=False)
    assert run.repeated is not None
    assert run.iteration_time_s == pytest.approx(whole.iteration_time_s, rel=1e-9)


@pytest.mark.parametrize(("pp", "dp", "m", "slow"), [(2, 4, 24, (3, 4)), (3, 2, 36, (1,))])
def test_a_wait_for_experts_that_lasts_into_a_period_is_one_wait(
    pp: int, dp: int, m: int, slow: tuple[int, ...]
) -> None:
    """A rank that waits for another before an exchange, as a period begins or ends, waits for experts all the while."""
    model = LLAMA | {"num_layers": 3, "experts": ExpertsSpec(num_experts=4, top_k=2, ffn_hidden_size=64)}
    plan = dense_plan(pp=pp, dp=dp, expert_degree=dp, m=m, model=model)
    pricing = slow_devices(1, *slow)
    run, whole = simulate(plan, pricing), simulate(plan, pricing, repeat=False)
    assert run.repeated is not None
    assert_same_findings(run, whole, pricing)
