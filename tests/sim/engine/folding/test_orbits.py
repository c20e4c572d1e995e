"""Orbits of ranks and links: folding through them gives what folding link by link gives."""

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from costmodels.hardware import load_node
from costmodels.profile import load_profile
from sim.cluster.cluster import Cluster
from sim.cluster.topology.parse import parse_topology
from sim.engine.findings.link_use import LinkUse, link_use
from sim.engine.folding import folding, orbits, slack
from sim.engine.folding.folding import Folding, fold
from sim.engine.folding.orbits import Orbits, Shift, orbits_of
from sim.engine.folding.slack import never_binding
from sim.engine.prices.pricing import ClusterPricing
from sim.engine.prices.traffic import Exchange, Load, all_groups, exchanges
from sim.engine.running.simulate import simulate
from sim.plan.words.mesh import Mesh
from sim.plan.words.op import Collective
from sim.plan.words.program import Plan
from tests.examples import examples
from tests.sim.cluster.topology_graphs import FAST, PCIE
from tests.sim.engine.folding.test_folding import largest_gap
from tests.sim.jobs import GPT, LLAMA, dense_plan
from tests.sim.topology_strategies import ALGORITHMS, clusters

NIC = {"bandwidth": "10 GB/s", "latency": "1 us"}
NODE = {"devices": 4, "inside": "nvswitch", "nvlink": FAST, "pcie": PCIE, "nics": 4, "nic": NIC}


def both(plan: Plan, pricing: ClusterPricing) -> tuple[Folding, Folding]:
    """Return the folding through orbits, and link by link.

    Which links never bind is asked link by link in both. The answer, which depends on numbers of links, may differ
    within an orbit, and that of its first link holds for all: so it is taken for all.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(orbits, "FEWEST_RANKS", 0)
        through = fold(plan, pricing)
        patch.setattr(folding, "orbits_of", lambda *_: None)
        if (found := through.orbits) is not None:
            patch.setattr(slack, "never_binding", lambda *loads: never_binding(*loads)[found.link])
        return through, fold(plan, pricing)


@st.composite
def regular_clusters(draw: Any, num_ranks: int) -> ClusterPricing:
    """Draw prices on equal nodes below switches, most often without stragglers, whose links may be full."""
    fabric: dict[str, Any] = {"kind": draw(st.sampled_from(["switch", "leaf-spine", "fat-tree", "rail-optimised"]))}
    if fabric["kind"] != "switch":
        fabric["uplink"] = {"bandwidth": draw(st.sampled_from(["10 GB/s", "20 GB/s", "40 GB/s", "200 GB/s"]))}
    match fabric["kind"]:
        case "leaf-spine":
            fabric |= {"leaf_ports": draw(st.sampled_from([4, 8, 12, 16])), "spines": draw(st.sampled_from([1, 2, 4]))}
        case "fat-tree":
            pod = {"leaves_per_pod": draw(st.integers(1, 3)), "spines_per_pod": draw(st.sampled_from([1, 2, 4]))}
            fabric |= {"leaf_ports": draw(st.sampled_from([4, 8])), "cores_per_spine": draw(st.integers(1, 2)), **pod}
        case "rail-optimised":
            fabric |= {"nodes_per_leaf": draw(st.integers(1, 3)), "spines": draw(st.sampled_from([1, 2]))}
            fabric |= {"cross_rail": draw(st.sampled_from(["nvlink", "spine"]))}
    num_nodes, slow = num_ranks // 4, draw(st.sampled_from([[], [], [], [{"device": 1, "slowdown": 1.3}]]))
    topology = parse_topology({"nodes": NODE, "fabric": fabric, "stragglers": slow}, num_nodes)
    node = load_node("hgx-h100")
    algorithms = {kind: draw(st.sampled_from(["auto", *names])) for kind, names in ALGORITHMS.items()}
    return ClusterPricing(
        Cluster(node, num_nodes, 4, topology), load_profile(node.device.generation), algorithms=algorithms
    )


@st.composite
def plans(draw: Any) -> Plan:
    """Draw plans on 16 to 48 ranks with several of each axis."""
    tp, pp, dp = draw(st.sampled_from([(4, 2, 4), (2, 2, 8), (4, 1, 8), (4, 3, 4), (1, 2, 16), (2, 2, 12), (1, 1, 16)]))
    model = draw(st.sampled_from([GPT, LLAMA])) | {"num_layers": pp}
    return dense_plan(tp=tp, pp=pp, dp=dp, m=2, model=model)


@settings(max_examples=examples(40), deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data(), plan=plans())
def test_folding_through_orbits_is_folding_link_by_link(data: Any, plan: Plan) -> None:
    """The same classes of ranks, groups and links, whatever joins the nodes and however full it is."""
    through, by_link = both(plan, data.draw(regular_clusters(plan.mesh.size) | clusters(plan.mesh.size)))
    assert by_link.orbits is None
    assert through.same_as(by_link)


@settings(max_examples=examples(8), deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data(), plan=plans())
def test_folded_through_orbits_equals_unfolded(data: Any, plan: Plan) -> None:
    """Op by op, where folding takes one rank of each orbit to find who is alike."""
    pricing = data.draw(regular_clusters(plan.mesh.size))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(orbits, "FEWEST_RANKS", 0)
        assert largest_gap(plan, pricing) < 1e-9


TREE = {"kind": "fat-tree", "leaf_ports": 8, "leaves_per_pod": 2, "spines_per_pod": 4, "cores_per_spine": 4}


def prices(fabric: dict[str, Any], num_nodes: int, **more: Any) -> ClusterPricing:
    """Return prices on equal nodes of four devices."""
    node = load_node("hgx-h100")
    topology = parse_topology({"nodes": NODE, "fabric": fabric, **more}, num_nodes)
    return ClusterPricing(Cluster(node, num_nodes, 4, topology), load_profile(node.device.generation))


@pytest.mark.parametrize(
    ("fabric", "steps"),
    [
        ({"kind": "switch"}, {"tp": 1, "dp": 1}),
        ({"kind": "leaf-spine", "leaf_ports": 8, "spines": 4}, {"tp": 1, "dp": 2}),
        (TREE, {"tp": 1, "dp": 4}),
        ({"kind": "rail-optimised", "nodes_per_leaf": 4, "spines": 2}, {"tp": 1, "dp": 4}),
    ],
    ids=["switch", "leaves", "pods", "rails"],
)
def test_shifts_are_as_short_as_the_network_allows(fabric: dict[str, Any], steps: dict[str, int]) -> None:
    """By one node on a switch, else by a leaf or a pod; and by one device where nodes have a switch."""
    plan, pricing = dense_plan(tp=4, pp=2, dp=8, m=2, model=LLAMA), prices(fabric, 16)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(orbits, "FEWEST_RANKS", 0)
        found = orbits_of(plan, pricing, np.repeat([0, 1], 32))
    assert found is not None
    assert {shift.axis: shift.step for shift in found.shifts} == steps
    through, by_link = both(plan, pricing)
    assert through.orbits is not None
    assert through.same_as(by_link)


@pytest.mark.parametrize("straggler", [{"device": 9}, {"link": "node 3 nic 0 out"}], ids=["device", "link"])
def test_what_is_slow_has_no_orbit(straggler: dict[str, Any]) -> None:
    """A slow device, or link, breaks every shift that moves it."""
    plan = dense_plan(tp=4, pp=2, dp=8, m=2, model=LLAMA)
    through, by_link = both(plan, prices(TREE, 16, stragglers=[straggler | {"slowdown": 1.3}]))
    assert through.orbits is None
    assert len(by_link.multiplicity) > len(both(plan, prices(TREE, 16))[1].multiplicity)


def same_use(one: LinkUse, other: LinkUse) -> bool:
    """Return whether links carry the same."""
    figures = zip((one.num_bytes, one.busy_s, one.seconds), (other.num_bytes, other.busy_s, other.seconds), strict=True)
    same = all(np.allclose(mine, theirs, rtol=1e-12) for mine, theirs in figures)
    return same and all(
        np.array_equal(mine, theirs)
        for mine, theirs in ((one.row_of, other.row_of), (one.count, other.count), (one.flows, other.flows))
    )


@pytest.mark.parametrize("uplink", ["800 GB/s", "4 GB/s"])
def test_the_use_of_links_that_never_bind_is_that_of_one_group_of_each_orbit(uplink: str) -> None:
    """Whether folding left links of the network out or not, each carries what it carries where no orbits are known."""
    plan = dense_plan(tp=4, pp=2, dp=8, m=2, model=LLAMA)
    pricing = prices(TREE | {"uplink": {"bandwidth": uplink}}, 16)
    through, by_link = both(plan, pricing)
    runs = [simulate(plan, pricing, fold=lambda *_, found=found: found) for found in (through, by_link)]  # type: ignore[misc]
    assert runs[0].folding.orbits is not None
    assert same_use(*(link_use(run, pricing) for run in runs))


def test_a_shift_must_keep_the_loads_of_groups_that_it_keeps() -> None:
    """A ring's loads go to themselves by a step; loads with an end do not, and loads of groups across are not asked."""
    mesh = Mesh((("dp", 4), ("tp", 2)))
    images = np.array([1, 2, 3, 0], np.int32)
    found = Orbits(mesh, [Shift.of("dp", 1, 4, images)], np.tile([0, 1], 4), np.arange(2), 4)
    plan = dense_plan(tp=2, dp=4, m=1, model=LLAMA)
    [op, *_] = [e for e in exchanges(plan) if isinstance(e.op, Collective) and e.op.axes == ("dp",)]
    across = Exchange(op.program, next(e.op for e in exchanges(plan) if "tp" in getattr(e.op, "axes", ())), op.groups)
    ring = Load(np.zeros(4, np.int64), np.arange(4), np.ones(4))
    ends = Load(np.zeros(4, np.int64), np.arange(4), np.array([1.0, 2.0, 1.0, 1.0]))
    part = Load(np.zeros(2, np.int64), np.arange(2), np.ones(2))
    along = Exchange(op.program, op.op, all_groups(mesh, ("dp",))[:1])
    assert found.uneven(along, ring) == []
    assert [shift.axis for load in (ends, part) for shift in found.uneven(along, load)] == ["dp", "dp"]
    assert found.uneven(across, ends) == []
    assert found.without({"dp"}) is None


@given(order=st.integers(1, 40), times=st.lists(st.integers(0, 100), min_size=1, max_size=5))
def test_powers_of_a_shift(order: int, times: list[int]) -> None:
    """Links go round a circle by any number of shifts, and the least of all that one meets is the circle's."""
    images = np.roll(np.arange(order, dtype=np.int32), -1)
    shift = Shift.of("dp", 1, order, np.concatenate([images, order + images]))
    assert shift.least(np.arange(2 * order, dtype=np.int32)).tolist() == [0] * order + [order] * order
    counts = np.array(times) % order
    assert shift.moved(np.zeros(len(times), np.int32), counts).tolist() == counts.tolist()
