"""Ranks that are copied from the one before have the nodes that they are compiled to.

10 random plans here, more by hand (MESHTWIN_EXAMPLES=100).
"""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sim.engine.compiling import structure
from sim.engine.compiling.compiler import RankCompiler
from sim.engine.compiling.copies import compile_ranks
from sim.engine.compiling.graph import Graph, Pattern
from sim.engine.prices.pricing import ClusterPricing
from sim.engine.running.simulate import simulate
from sim.plan.facts.namesakes import sharing_tasks
from sim.plan.words.program import Plan
from tests.examples import examples
from tests.sim.engine.compiling.test_teams import slow_devices
from tests.sim.jobs import GPT, dense_plan, pricing_on
from tests.sim.strategies import NODES

Compile = Callable[[Graph, Sequence[RankCompiler]], None]


@st.composite
def deep_plans(draw: Any) -> Plan:
    """Draw a plan of four to seven stages, most of which do the same."""
    pp, schedule = draw(st.integers(4, 7)), draw(st.sampled_from(["gpipe", "aiao", "aiao", "breadth_first", "1f1b"]))
    stages = 1 if schedule in {"gpipe", "1f1b"} else draw(st.integers(2, 3))
    layers = pp * stages + draw(st.integers(0, 1)) * pp
    keys: dict[str, Any] = {"pp": pp, "dp": draw(st.integers(1, 2)), "tp": draw(st.integers(1, 2))}
    keys |= {"deferred_sync": draw(st.sampled_from([0.0, 0.5]))} if schedule == "aiao" and keys["dp"] > 1 else {}
    plan = dense_plan(
        **keys, schedule=schedule, virtual_stages=stages, m=pp * draw(st.integers(1, 2)),
        model=GPT | {"num_layers": layers},
    )  # fmt: skip
    return sharing_tasks(plan)


def graph_of(plan: Plan, pricing: ClusterPricing, compile_all: Compile) -> Graph:
    """Return the graph of a plan whose ranks are compiled in a given way."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(structure, "compile_ranks", compile_all)
        return simulate(plan, pricing, repeat=False).graph


def compile_each(_: Graph, ranks: Sequence[RankCompiler]) -> None:
    """Compile every rank by itself."""
    for rank in ranks:
        rank.compile()


def assert_same_graph(found: Graph, expected: Graph) -> None:
    """Fail unless two graphs are equal, node for node."""
    for name in (
        "kinds",
        "waits",
        "successors",
        "durations_s",
        "shared",
        "entries",
        "early_exits",
        "messages",
        "joint_of",
    ):
        assert getattr(found, name) == getattr(expected, name), name
    assert [(*unit[:3], of(unit[3])) for unit in found.units] == [(*unit[:3], of(unit[3])) for unit in expected.units]
    assert found.blocks.keys() == expected.blocks.keys()
    for node, block in found.blocks.items():
        other = expected.blocks[node]
        assert (of(block.pattern), block.pending, block.exits) == (of(other.pattern), other.pending, other.exits)


def of(pattern: Pattern | None) -> object:
    """Return what a pattern says."""
    return pattern and (pattern.entries, pattern.offsets, pattern.durations_s, pattern.main_exit, pattern.span_s)


@settings(max_examples=examples(10), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data(), plan=deep_plans())
def test_a_copied_rank_has_the_nodes_that_it_would_be_compiled_to(data: Any, plan: Plan) -> None:
    """On random pipelines, with slow devices and without, the graph is that of ranks compiled one by one."""
    num_ranks = plan.mesh.size
    if data.draw(st.booleans()):
        slow = data.draw(st.sets(st.integers(0, num_ranks - 1), min_size=1, max_size=2))
        pricing = slow_devices(-(-num_ranks // 8), *sorted(slow))
    else:
        node, per_node = data.draw(st.sampled_from(NODES)), data.draw(st.sampled_from([1, 2, 8]))
        pricing = pricing_on(node, num_ranks, devices_per_node=per_node)
    assert_same_graph(graph_of(plan, pricing, compile_ranks), graph_of(plan, pricing, compile_each))


@pytest.mark.parametrize("schedule", ["gpipe", "aiao"])
def test_stages_in_the_middle_are_copied(schedule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of eight stages four are compiled: the first, two beside each other, and the last."""
    stages = 2 if schedule == "aiao" else 1
    plan = dense_plan(pp=8, m=16, schedule=schedule, virtual_stages=stages, model=GPT | {"num_layers": 16})
    pricing, compiled, compile_rank = pricing_on(NODES[0], 8, devices_per_node=1), list[int](), RankCompiler.compile

    def noted(rank: RankCompiler) -> None:
        compiled.append(rank.rank)
        compile_rank(rank)

    monkeypatch.setattr(RankCompiler, "compile", noted)
    run = simulate(sharing_tasks(plan), pricing, repeat=False)
    assert set(compiled) == {0, 1, 2, 7}
    assert len({rank for rank, *_ in run.graph.units}) == 8
