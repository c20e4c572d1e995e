"""What collectives and messages put on links, against the closed forms and the mesh."""

from functools import partial
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodels.collectives.cost import collective_cost, exclusive_seconds, point_to_point_cost
from costmodels.collectives.network import COLLNET
from costmodels.collectives.traffic import TRAFFIC
from costmodels.hardware import load_node
from costmodels.profile import load_profile
from sim.cluster.cluster import Cluster
from sim.cluster.link_use import LinkCost
from sim.cluster.network import Network
from sim.engine.prices.pricing import ClusterPricing
from sim.engine.prices.traffic import all_groups, groups_of, shifted
from sim.plan.words.mesh import Mesh
from sim.plan.words.op import Direction, Send
from sim.plan.words.program import Plan, Program
from tests.examples import examples

ALGORITHMS = [
    (kind, name) for kind in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce")
    for name in TRAFFIC[kind] if name not in {"leader", "store_forward", *COLLNET}
    and (kind, name) not in {("broadcast", "tree"), ("reduce", "tree")}
]  # fmt: skip
"""Algorithms that use all adapters of equal nodes alike."""


def network(node: str = "hgx-h100", num_nodes: int = 8) -> Network:
    """Return the links of equal nodes below one switch."""
    spec = load_node(node)
    cluster = Cluster(spec, num_nodes, spec.devices_per_node)
    return ClusterPricing(cluster, load_profile(spec.device.generation)).network


NETWORKS = {node: network(node) for node in ("hgx-h100", "dgx-a100-80g", "cloud-a100-100g")}


def seconds_alone(cost: LinkCost) -> float:
    """Return how long a cost lasts alone."""
    return cost.latency_s + max((seconds for _, seconds in cost.links), default=0.0)


@pytest.mark.parametrize(("kind", "algorithm"), ALGORITHMS)
@settings(max_examples=examples(8), deadline=None)
@given(
    node=st.sampled_from(sorted(NETWORKS)), num_nodes=st.sampled_from([1, 2, 4, 8]),
    per_node=st.sampled_from([1, 2, 8]), num_bytes=st.sampled_from([1024, 2**20, 2**28]),
)  # fmt: skip
def test_collective_alone_lasts_as_long_as_its_closed_form(
    *, kind: str, algorithm: str, node: str, num_nodes: int, per_node: int, num_bytes: int
) -> None:
    """On equal nodes below one switch, the busiest link decides, and it is the closed form's."""
    if num_nodes * per_node == 1 or (algorithm == "in_switch" and (num_nodes > 1 or per_node < 3)):
        return
    net = NETWORKS[node]
    if algorithm == "in_switch" and not any("in_switch" in p.algorithms for p in net.parameters.protocols):
        return
    group = [8 * n + local for n in range(num_nodes) for local in range(per_node)]
    expected = collective_cost(kind, num_bytes, (per_node,) * num_nodes, net.parameters, algorithm)
    cost = net.collective(kind, num_bytes, group, algorithm)
    lasts_s = exclusive_seconds(expected, (per_node,) * num_nodes, net.parameters)
    assert seconds_alone(cost) >= lasts_s * (1 - 1e-9)
    if algorithm not in {
        "pairwise",
        "halving_doubling",
        "recursive_doubling",
        "recursive_halving",
        "bruck",
        "hierarchical",
    }:
        assert seconds_alone(cost) == pytest.approx(lasts_s, rel=1e-9)


@settings(max_examples=examples(12), deadline=None)
@given(
    ranks=st.lists(st.integers(0, 63), min_size=2, max_size=12, unique=True),
    num_bytes=st.integers(1, 2**28),
    node=st.sampled_from(sorted(NETWORKS)),
)
def test_many_groups_cost_what_each_costs(ranks: list[int], num_bytes: int, node: str) -> None:
    """Priced together, groups that lie anyhow put on links what they do one by one."""
    net = NETWORKS[node]
    groups = np.array([ranks, [(rank + 8) % 64 for rank in ranks], ranks[::-1]])
    use = net.collectives("all_reduce", num_bytes, groups)
    for row, group in enumerate(groups.tolist()):
        links, seconds = use.of_row(row)
        alone = dict(net.collective("all_reduce", num_bytes, group).links)
        assert dict(zip(links.tolist(), seconds.tolist(), strict=True)) == pytest.approx(alone)


@given(source=st.integers(0, 63), target=st.integers(0, 63), num_bytes=st.integers(1, 2**30))
@settings(max_examples=examples(20), deadline=None)
def test_message_costs_its_closed_form(source: int, target: int, num_bytes: int) -> None:
    """A message occupies its route for n/B, and arrives a hop's latency after."""
    if source == target:
        return
    net = NETWORKS["hgx-h100"]
    same = source // 8 == target // 8
    expected = point_to_point_cost(num_bytes, same, net.parameters)
    ranks = (1, 1) if not same else (2,)
    cost = net.message(num_bytes, source, target)
    assert seconds_alone(cost) == pytest.approx(exclusive_seconds(expected, ranks, net.parameters), rel=1e-9)
    assert len(cost.links) == 2


MESHES = [Mesh((("pp", 2), ("dp", 3), ("tp", 2))), Mesh((("tp", 4), ("pp", 3))), Mesh((("dp", 5),))]


@pytest.mark.parametrize("mesh", MESHES)
def test_groups_are_the_meshs(mesh: Mesh) -> None:
    """Groups and neighbours of all ranks at once are those of the mesh, rank by rank."""
    names = [name for name, _ in mesh.axes]
    for axes in [(name,) for name in names] + [tuple(names), tuple(reversed(names)), ("absent",)]:
        expected = {mesh.group(rank, axes) for rank in range(mesh.size)}
        assert {tuple(group) for group in all_groups(mesh, axes).tolist()} == expected
    ranks = np.arange(mesh.size)
    for name in names:
        for offset in (-1, 1, 2):
            expected_shift = [mesh.shift(rank, name, offset) for rank in range(mesh.size)]
            assert shifted(mesh, ranks, name, offset).tolist() == expected_shift
            send = Send("send", name, offset, Direction.FORWARD, ("x",), "s")
            assert groups_of(mesh, send, ranks, partial(all_groups, mesh)).tolist() == [
                list(ends) for ends in enumerate(expected_shift)
            ]


@pytest.mark.parametrize("mesh", [*MESHES, Mesh((("a", 4), ("b", 4)), (("a", 2), ("b", 2)))])
def test_ranks_of_roles_are_the_plans(mesh: Mesh) -> None:
    """The ranks of a role at once are those of the plan, in its order."""
    roles = [{name: place} for name, degree in mesh.axes for place in range(degree)]
    programs = tuple(Program(role, {}, {}, ()) for role in ({}, *roles))
    plan = Plan("roles", mesh, programs)
    for program in programs:
        assert tuple(plan.rank_array_of(program).tolist()) == plan.ranks_of(program)
        assert plan.num_ranks_of(program) == len(plan.ranks_of(program))


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "broadcast", "reduce"])
@pytest.mark.parametrize("groups", [[[0, 1, 8, 9], [2, 3, 10, 11]], [[0, 1, 2, 3], [4, 5, 12, 13]]])
def test_sizes_of_equal_proportions_load_links_alike(kind: str, groups: list[list[int]]) -> None:
    """Where costs say so, the same groups use the same links for seconds that differ by one factor, and wait alike."""
    net, several = NETWORKS["dgx-a100-80g"], 0
    sizes, found = [2**power for power in range(8, 30, 3)], np.array(groups)
    proportions = [net.proportions(kind, size, found) for size in sizes]
    for one, other in combinations(range(len(sizes)), 2):
        if proportions[one] != proportions[other]:
            continue
        several += 1
        uses = [net.collectives(kind, sizes[place], found) for place in (one, other)]
        shares = [use.seconds / use.seconds.max() for use in uses]
        assert shares[0] == pytest.approx(shares[1], rel=1e-9)
        for column in ("rows", "links"):
            assert np.array_equal(getattr(uses[0], column), getattr(uses[1], column))
        waits = [use.latencies_s / use.latencies_s.max() for use in uses]
        assert waits[0] == pytest.approx(waits[1], rel=1e-9)
    assert several or groups[0][-1] // 8 != groups[1][-1] // 8  # groups that lie unequally may have no size alike
