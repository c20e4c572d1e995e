"""Forwards and backwards of several simulated ranks as one block: as exact as op by op, and much shorter."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from costmodels.hardware import load_node
from costmodels.profile import load_profile
from sim.cluster.cluster import Cluster
from sim.cluster.topology.parse import parse_topology
from sim.engine.findings.critical_path import critical_path
from sim.engine.findings.timeline import timeline
from sim.engine.folding.folding import fold, no_fold
from sim.engine.prices.pricing import ClusterPricing
from sim.engine.running.simulate import simulate
from sim.plan.words.program import Plan
from tests.examples import examples
from tests.sim.jobs import GPT, dense_plan, op_times
from tests.sim.strategies import dense_keys
from tests.sim.topology_strategies import clusters


def slow_devices(num_nodes: int, *devices: int) -> ClusterPricing:
    """Return prices on H100 nodes some of whose devices are slow, each by another factor."""
    slow = [{"device": device, "slowdown": 1.2 + 0.1 * index} for index, device in enumerate(devices)]
    description = {"nodes": "hgx-h100", "fabric": {"kind": "switch"}, "stragglers": slow}
    node = load_node("hgx-h100")
    cluster = Cluster(node, num_nodes, 8, parse_topology(description, num_nodes))
    return ClusterPricing(cluster, load_profile(node.device.generation))


def largest_gap(plan: Plan, pricing: ClusterPricing, **keys: Any) -> float:
    """Return the largest difference of any op's start or end, in blocks against op by op, relative to the makespan."""
    blocks, single = simulate(plan, pricing, **keys), simulate(plan, pricing, coalesce=False, **keys)
    expected = op_times(single)
    found = op_times(blocks)
    assert found.keys() == expected.keys()
    gap_s = max(abs(a - b) for key in found for a, b in zip(found[key], expected[key], strict=True))
    return gap_s / single.makespan_s


@settings(
    max_examples=examples(10), deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
@given(data=st.data(), keys=dense_keys(12), folded=st.booleans())
def test_blocks_of_several_ranks_take_as_long_as_their_ops(data: Any, keys: dict[str, Any], folded: bool) -> None:
    """Every op of every rank starts and ends when it does where all ops are simulated one by one."""
    plan = dense_plan(**keys | {"tp": max(2, keys["tp"])})
    pricing = data.draw(clusters(plan.mesh.size))
    assert largest_gap(plan, pricing, fold=fold if folded else no_fold) < 1e-9


@pytest.mark.parametrize("schedule", ["1f1b", "interleaved_1f1b", "zb_h1"])
@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_one_slow_device_leaves_whole_calls_in_blocks(schedule: str, sequence_parallel: bool) -> None:
    """A slow device splits tensor-parallel groups, but not their calls: few events, exact times."""
    stages = 2 if schedule == "interleaved_1f1b" else 1
    plan = dense_plan(
        tp=8, pp=2, dp=2, m=8, schedule=schedule, virtual_stages=stages, sequence_parallel=sequence_parallel,
        model=GPT | {"num_layers": 8},
    )  # fmt: skip
    pricing = slow_devices(4, 3, 17)
    assert largest_gap(plan, pricing) < 1e-12
    blocks, single = simulate(plan, pricing), simulate(plan, pricing, coalesce=False)
    assert blocks.graph.team_calls
    assert blocks.num_events < 0.3 * single.num_events


def test_the_critical_path_leads_through_blocks_of_several_ranks() -> None:
    """The path has no gap from 0 to the end of the step, and visits the slow device."""
    plan = dense_plan(tp=8, pp=2, dp=1, m=4, sequence_parallel=True)
    run = simulate(plan, slow_devices(2, 3))
    assert run.graph.team_calls
    path = critical_path(run)
    assert sum(step.duration_s for step in path.steps) == pytest.approx(run.makespan_s, rel=1e-9)
    assert 3 in {step.rank for step in path.steps}


def test_collectives_inside_blocks_are_joined_in_timelines_of_ops() -> None:
    """A timeline of ops says of every collective in such blocks which rows are one, and these rows end together."""
    plan = dense_plan(tp=8, pp=2, dp=1, m=2, sequence_parallel=True)
    pricing = slow_devices(2, 3)
    shown, single = (timeline(simulate(plan, pricing, coalesce=c), "op") for c in (True, False))
    ends: dict[int, set[float]] = {}
    for member, number in zip(shown.messages.member.tolist(), shown.messages.collective.tolist(), strict=True):
        ends.setdefault(number, set()).add(round(float(shown.end_s[member]), 12))
    assert all(len(found) == 1 for found in ends.values())
    assert len(shown.messages.member) == len(single.messages.member)
