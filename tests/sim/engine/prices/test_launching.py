"""A device waits for the host that launches its kernels."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from costmodels.software import Software
from scenarios.workloads.loading import load_scenario
from scenarios.workloads.steps.running import plan_of
from sim.engine.compiling.shape import analyse
from sim.engine.folding.folding import no_fold
from sim.engine.prices.activity import Activity
from sim.engine.prices.launching import launched
from sim.engine.prices.pricing import ClusterPricing
from sim.engine.running.simulate import simulate
from sim.plan.words.op import Compute
from sim.plan.words.program import Phase, Task
from tests.sim.jobs import LLAMA, as_array, dense_plan, op_times, pricing_on

SECONDS = st.floats(0.0, 1.0, allow_nan=False)
TINY = Path(__file__).parents[4] / "scenarios" / "library" / "tiny-gpt-2x2.yaml"


def chain(count: int) -> Task:
    """Return a forward of so many kernels on one stream."""
    return Task("forward", Phase.FORWARD, tuple(Compute(f"op{i}", "gelu", (), (f"x{i}",)) for i in range(count)))


@given(st.lists(st.tuples(SECONDS, SECONDS), min_size=1, max_size=20))
def test_a_chain_ends_with_its_host_or_its_device(calls: list[tuple[float, float]]) -> None:
    """The chain lasts max over i of (launches up to i + kernels from i on): the longest path of host and device."""
    launches_s, kernels_s = zip(*calls, strict=True)
    result = launched(
        analyse(chain(len(calls))).predecessors,
        launches_s,
        [Activity(0.0, (("compute", s),) if s else ()) for s in kernels_s],
    )
    longest = max(sum(launches_s[: i + 1]) + sum(kernels_s[i:]) for i in range(len(calls)))
    assert sum(activity.duration_s for activity in result) == pytest.approx(longest)


def test_launches_that_take_no_time_change_nothing() -> None:
    """Without launch times the very activities come back."""
    activities = (Activity(1.0), Activity(2.0))
    assert all(
        a is b for a, b in zip(launched(analyse(chain(2)).predecessors, (), activities), activities, strict=True)
    )


def prices(software: Software) -> tuple[ClusterPricing, float]:
    """Return the prices of the tiny scenario under a framework, and its step time."""
    scenario = load_scenario(TINY, ["cluster.node=dgx-a100-80g"])
    pricing = scenario.pricing()
    assert isinstance(pricing, ClusterPricing)
    pricing = pricing.under(software)
    return pricing, simulate(plan_of(scenario), pricing).iteration_time_s


PRICING, _ = prices(Software())


def test_a_launch_bound_step_grows_with_the_launches() -> None:
    """Where every kernel is short, twice the launch time is nearly twice the step; no constant makes it shorter."""
    _, alone_s = prices(Software())
    _, once_s = prices(Software(launch_s=1e-3, native_launch_s=1e-3))
    _, twice_s = prices(Software(launch_s=2e-3, native_launch_s=2e-3))
    assert twice_s == pytest.approx(2.0 * once_s, rel=0.05)
    base = Software(launch_s=1e-5, native_launch_s=1e-5)
    _, base_s = prices(base)
    for longer in (replace(base, rank_skew_s=1e-3), replace(base, product_slowdown=2.0), replace(base, launch_s=1e-4)):
        assert prices(longer)[1] > base_s > alone_s


def test_only_forwards_backwards_and_messages_are_launched_one_by_one() -> None:
    """The optimizer's fused kernels and the gradients' collectives are not held up; a wait is no kernel."""
    pricing, _ = prices(Software(launch_s=2.0, native_launch_s=1.0))
    forward = chain(2)
    assert pricing.launches_s(forward) == (2.0, 2.0)
    assert pricing.launches_s(replace(forward, phase=Phase.OPTIMIZER)) == ()
    again = Compute("op0.recomputed", "gelu", (), ("y",))
    wait = Compute("y.wait", "delay", ("y",), (), {"duration_s": 0.0})
    backward = Task("backward", Phase.BACKWARD, (again, wait, forward.ops[0]))
    assert pricing.launches_s(backward) == (2.0, 0.0, 1.0)


def test_a_task_is_called_once() -> None:
    """What a call takes comes before the first kernel of a forward or backward, not of a message or the optimizer."""
    pricing, _ = prices(Software(launch_s=2.0, task_launch_s=8.0))
    forward = chain(2)
    assert pricing.launches_s(forward) == (10.0, 2.0)
    assert pricing.launches_s(replace(forward, phase=Phase.BACKWARD)) == (9.0, 1.0)
    assert pricing.launches_s(replace(forward, phase=Phase.SEND)) == (2.0, 2.0)
    assert pricing.launches_s(replace(forward, phase=Phase.OPTIMIZER)) == ()
    assert pricing.launches_s(replace(forward, ops=())) == ()


PRICING, _ = prices(Software())


def test_a_launch_bound_step_grows_by_its_calls() -> None:
    """A longer call delays every micro-batch's forward and backward: by its time each, where the host is the slower."""
    base = Software(launch_s=1e-3)
    plan = plan_of(load_scenario(TINY))
    calls = max(sum(program.tasks[call.task].phase in (Phase.FORWARD, Phase.BACKWARD) for call in program.calls)
                for program in plan.programs)  # fmt: skip
    added_s = prices(replace(base, task_launch_s=1e-3))[1] - prices(base)[1]
    assert calls * 1e-3 <= added_s * (1.0 + 1e-9)


@given(st.lists(SECONDS, min_size=1, max_size=20), SECONDS, SECONDS)
def test_a_captured_chain_waits_for_one_launch(kernels_s: list[float], launch_s: float, graph_s: float) -> None:
    """A captured chain lasts its one launch and its kernels; an eager one no less, if its launches are no shorter."""
    task, kernels = chain(len(kernels_s)), [Activity(0.0, (("compute", s),) if s else ()) for s in kernels_s]
    software = Software(launch_s=launch_s, graph_launch_s=graph_s)
    each_s = replace(PRICING, software=software).launches_s(task)
    captured_s = sum(activity.duration_s for activity in launched(analyse(task).predecessors, each_s, kernels))
    assert captured_s == pytest.approx(graph_s + sum(kernels_s))
    eager = replace(PRICING, software=replace(software, graph_launch_s=None))
    eager_s = sum(
        activity.duration_s for activity in launched(analyse(task).predecessors, eager.launches_s(task), kernels)
    )
    assert eager_s >= captured_s - 1e-9 or launch_s < graph_s


def test_capture_ends_a_launch_bound_regime() -> None:
    """Where the host is what a step waits for, captured passes take little more than the device needs."""
    _, alone_s = prices(Software())
    _, eager_s = prices(Software(launch_s=1e-3))
    _, captured_s = prices(Software(launch_s=1e-3, native_launch_s=0.0, graph_launch_s=1e-6))
    assert eager_s > 10 * alone_s
    assert alone_s < captured_s < 1.1 * alone_s


def test_messages_are_not_captured() -> None:
    """A send between stages is launched by itself, whatever is captured."""
    send = Task("send", Phase.SEND, chain(1).ops)
    pricing, _ = prices(Software(launch_s=2.0, native_launch_s=1.0, graph_launch_s=5.0))
    assert pricing.launches_s(chain(3)) == (5.0, 0.0, 0.0)
    assert pricing.launches_s(send) != ()


@pytest.mark.parametrize(
    "keys", [{"sequence_parallel": True}, {"sequence_parallel": True, "collective_matmul": True}, {}]
)
def test_groups_that_share_an_adapter_are_launched_as_late_folded_or_not(keys: dict[str, Any]) -> None:
    """What two groups together put on one adapter makes each of them longer, but not what it waits for its host."""
    plan = dense_plan(tp=4, dp=2, model=LLAMA, axis_order=("pp", "tp", "dp"), recompute="full", **keys)
    for launch_s in (2e-6, 1e-5, 5e-5):
        prices_ = replace(pricing_on("cloud-a100-100g", 8, devices_per_node=2), software=Software(launch_s=launch_s))
        folded, every = simulate(plan, prices_), simulate(plan, prices_, fold=no_fold)
        mine, whole = op_times(folded), op_times(every)
        assert len(folded.programs) < len(every.programs)
        ranks, stands_for = list(whole), folded.folding.stands_for
        partners = as_array(mine, [(stands_for[rank], call, j) for rank, call, j in ranks])
        assert abs(as_array(whole, ranks) - partners).max() <= 1e-9 * every.makespan_s
