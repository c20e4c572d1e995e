"""When bytes move in runs in which ranks have paces of their own, and tasks that they share."""

import numpy as np
import pytest
from msgspec.structs import replace

from sim.engine.findings.transfers import Transfers, transfers
from sim.engine.prices.variation import Variation
from sim.engine.running.simulate import simulate
from sim.plan.facts.namesakes import sharing_tasks
from tests.sim.jobs import GPT, dense_plan, pricing_on

STAGES = 6


def moved_until(found: Transfers) -> dict[tuple[int, object], list[float]]:
    """Return when each transfer of the step is over, in order, by the rank and kind of its flow."""
    spans, passes = found.passes(np.arange(len(found.flow_of)))  # of all spans, places are spans
    flows, (_, ends_s) = found.flow_of[spans], found.times_of(spans, passes)
    return {(flow.rank, flow.signature): sorted(ends_s[flows == at]) for at, flow in enumerate(found.flows)}


def test_transfers_of_ranks_that_share_tasks_go_at_the_pace_of_each() -> None:
    """Stages with other paces send in the step when they do in that of all micro-batches."""
    plan = sharing_tasks(dense_plan(pp=STAGES, m=90, schedule="gpipe", model=GPT | {"num_layers": STAGES}))
    pricing = pricing_on("dgx-a100-80g", STAGES, devices_per_node=1)
    run = simulate(plan, replace(pricing, variation=Variation({"gemm": 0.3}, seed=22)))
    assert run.paced is not None
    assert len({id(program.tasks) for program in run.programs.values()}) < STAGES
    found, whole = transfers(run), transfers(run.whole)
    assert len(found.counts) < 0.5 * len(whole.counts)
    assert len(np.unique(found.apart_s.round(9))) > 4
    expected = moved_until(whole)
    for flow, ends_s in moved_until(found).items():
        assert ends_s == pytest.approx(expected.pop(flow), rel=1e-9)
    assert not expected
    waiting_s = {(flow.rank, flow.signature): wait_s for flow, wait_s in zip(whole.flows, whole.waiting_s, strict=True)}
    assert waiting_s == pytest.approx(
        {(flow.rank, flow.signature): wait_s for flow, wait_s in zip(found.flows, found.waiting_s, strict=True)},
        rel=1e-9,
    )


def test_flows_have_as_many_transfers_as_their_spans_add_up_to() -> None:
    """Each waits for its latency. Of a run that passes through its period once, all that a span stands for count."""
    plan, pricing = dense_plan(tp=2, dp=2, m=64, model=GPT), pricing_on("dgx-a100-80g", 4)
    run = simulate(plan, pricing)
    found, whole = transfers(run), transfers(run.whole)
    assert len(found.counts) < 0.5 * len(whole.counts)
    latency_s = np.array([flow.activity.latency_s for flow in whole.flows])
    assert latency_s.max() > 0.0
    for moved in (found, whole):
        parts = moved.counts * (moved.end_s - moved.begin_s) * moved.speed
        num_transfers = np.bincount(moved.flow_of, parts, minlength=len(latency_s))
        assert moved.num_transfers == pytest.approx(num_transfers, rel=1e-6)
        assert moved.waiting_s == pytest.approx(latency_s * num_transfers, rel=1e-6)
    assert found.num_transfers.tolist() == whole.num_transfers.tolist()
