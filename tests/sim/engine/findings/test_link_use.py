"""What links carry: the same for every link folded or not, conserved at every switch, and what ranks send."""

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from costmodels.hardware import load_node
from costmodels.profile import load_profile
from sim.cluster.cluster import Cluster
from sim.cluster.topology.links import LinkKind
from sim.cluster.topology.parse import parse_topology
from sim.engine.findings.bottleneck import bottlenecks
from sim.engine.findings.link_use import IDLE, LinkUse, _alike, _Cells, _overlap, link_use
from sim.engine.findings.sent import sent_bytes
from sim.engine.folding.folding import no_fold
from sim.engine.prices.pricing import ClusterPricing
from sim.engine.running.simulate import simulate
from sim.plan.words.program import Plan
from tests.examples import examples
from tests.sim.cluster.topology_graphs import SINGLE
from tests.sim.jobs import GPT, dense_plan, pricing_on
from tests.sim.strategies import dense_keys
from tests.sim.topology_strategies import clusters

LAW = settings(
    max_examples=examples(8), deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
NUM_BINS = 16


def per_link(use: LinkUse, values: np.ndarray) -> np.ndarray:
    """Return a row's value for every link, 0 for idle ones."""
    return np.where(use.row_of == IDLE, 0.0, np.append(values, 0.0)[use.row_of])


def in_time(use: LinkUse) -> np.ndarray:
    """Return how busy every link is in each part of the step, links x parts."""
    rows = np.array([use.over_time(row, NUM_BINS) for row in range(len(use.example))]).reshape(-1, NUM_BINS)
    return np.stack([per_link(use, column) for column in rows.T], axis=1)


def check_folded_or_not(plan: Plan, pricing: ClusterPricing) -> None:
    """Compare bytes, seconds of use, and use over time of each link with those of a run of every rank."""
    folded, every = (link_use(run, pricing) for run in (simulate(plan, pricing), simulate(plan, pricing, fold=no_fold)))
    for of_row in ("num_bytes", "busy_s"):
        expected = per_link(every, getattr(every, of_row))
        found = per_link(folded, getattr(folded, of_row))
        assert found == pytest.approx(expected, rel=1e-9, abs=1e-9 * expected.max(initial=1e-30))
    assert np.abs(in_time(folded) - in_time(every)).max(initial=0.0) < 1e-6


@LAW
@given(data=st.data(), keys=dense_keys(24))
def test_every_link_carries_the_same_folded_or_not(data: Any, keys: dict[str, Any]) -> None:
    """Bytes, seconds of use, and use over time of each link, whatever joins the nodes and whoever is slow."""
    plan = dense_plan(**keys)
    pricing = data.draw(clusters(plan.mesh.size))
    check_folded_or_not(plan, pricing)


def test_algorithms_that_load_the_links_of_one_group_alike_are_kept_apart() -> None:
    """On a fat tree with two spines a pod, collectives may differ in the links of another group alone."""
    fabric = {"kind": "fat-tree", "leaf_ports": 5, "leaves_per_pod": 1, "spines_per_pod": 2, "cores_per_spine": 1}
    topology, node = parse_topology({"nodes": SINGLE, "fabric": fabric}, 6), load_node("hgx-h100")
    pricing = ClusterPricing(Cluster(node, 6, 1, topology), load_profile(node.device.generation))
    small = GPT | {"num_layers": 2, "tied_embeddings": False}
    keys = {"sequence_parallel": True, "overlap_gradient_sync": False, "axis_order": ("tp", "dp", "pp")}
    check_folded_or_not(dense_plan(tp=2, dp=3, model=small, precision="bf16", **keys), pricing)


@LAW
@given(data=st.data(), keys=dense_keys(16))
def test_no_link_carries_more_than_fits_nor_loses_bytes(data: Any, keys: dict[str, Any]) -> None:
    """At every moment a link is at most full; switches, adapters and hosts send on what they get; rows are used."""
    plan = dense_plan(**keys)
    pricing = data.draw(clusters(plan.mesh.size))
    use = link_use(simulate(plan, pricing), pricing)
    topology, carried = use.topology, per_link(use, use.num_bytes)
    assert in_time(use).max(initial=0.0) <= 1 + 1e-6
    assert (use.busy_fraction <= 1 + 1e-9).all()
    assert (use.num_bytes > 0).all()
    left = np.bincount(topology.source, carried, minlength=topology.num_vertices)
    came = np.bincount(topology.target, carried, minlength=topology.num_vertices)
    between = slice(topology.num_devices, None)
    assert left[between] == pytest.approx(came[between], rel=1e-9, abs=1e-9 * carried.max(initial=1e-30))
    assert left.sum() == pytest.approx(came.sum())


FABRICS = (
    {"kind": "switch"}, {"kind": "leaf-spine", "leaf_ports": 8, "spines": 2, "oversubscription": 3},
    {"kind": "rail-optimised", "nodes_per_leaf": 2, "spines": 1, "cross_rail": "spine"},
)  # fmt: skip


@LAW
@given(
    keys=dense_keys(16), nodes=st.sampled_from(["hgx-h100", "pcie-8-gpu-server"]), fabric=st.sampled_from(FABRICS),
    used=st.sampled_from([2, 3, 8]),
)  # fmt: skip
def test_devices_bring_to_links_what_ranks_send(
    keys: dict[str, Any], nodes: str, fabric: dict[str, Any], used: int
) -> None:
    """Where no device relays, the bytes on all links out of devices are those that the plan's ops send."""
    plan = dense_plan(**keys)
    num_nodes = -(-plan.mesh.size // used)
    topology = parse_topology({"nodes": nodes, "fabric": fabric}, num_nodes)
    rings = dict.fromkeys(("all_reduce", "all_gather", "reduce_scatter"), "ring")
    cluster = Cluster(load_node("hgx-h100"), num_nodes, used, topology)
    pricing = ClusterPricing(cluster, load_profile("h100"), algorithms=rings)
    run = simulate(plan, pricing)
    use = link_use(run, pricing)
    from_devices = use.topology.source < topology.num_devices
    sent = sum(sent_bytes(run, pricing).values()) * plan.mesh.size
    assert per_link(use, use.num_bytes)[from_devices].sum() == pytest.approx(sent, rel=1e-9)


def two_nodes(bandwidth: str = "400 Gbit/s") -> ClusterPricing:
    """Return prices on two nodes of one device each, joined by one adapter per node and a switch."""
    node = {
        "devices": 1,
        "inside": "pcie",
        "pcie": {"bandwidth": "1000 GB/s"},
        "nics": 1,
        "nic": {"bandwidth": bandwidth},
    }
    topology = parse_topology({"nodes": node, "fabric": {"kind": "switch"}}, 2)
    cluster = Cluster(load_node("hgx-h100"), 2, 1, topology)
    profile = load_profile("h100")
    return ClusterPricing(cluster, profile, algorithms={"all_reduce": "ring"})


def test_an_adapter_carries_half_of_a_rings_gradients_each_way() -> None:
    """Two replicas' ring sends 2 (d - 1) / d = 1 times the gradients through each adapter, in 32 bits."""
    plan, pricing = dense_plan(dp=2, m=2), two_nodes()
    use = link_use(simulate(plan, pricing), pricing)
    h, s, layers = GPT["hidden_size"], GPT["sequence_length"], GPT["num_layers"]
    num_parameters = layers * (12 * h * h + 13 * h) + GPT["vocab_size"] * h + s * h + 2 * h
    for name in ("node 0 nic 0 out", "node 0 nic 0 in", "node 1 nic 0 out", "node 1 nic 0 in"):
        row = use.row_of[use.topology.link_named(name)]
        assert use.num_bytes[row] == pytest.approx(4 * (num_parameters + 1))
        assert use.count[row] == 4
        assert use.over_time(int(row), 7).mean() == pytest.approx(use.busy_fraction[row])


def test_time_goes_to_the_link_that_is_slowest() -> None:
    """With a slow adapter, gradient synchronisation is bound by it, and full; with a fast one by PCIe."""
    plan = dense_plan(dp=2, m=2)
    for bandwidth, slowest, other in (
        ("10 GB/s", LinkKind.NIC, LinkKind.PCIE),
        ("4000 GB/s", LinkKind.PCIE, LinkKind.NIC),
    ):
        pricing = two_nodes(bandwidth)
        use = link_use(simulate(plan, pricing), pricing)
        [found] = bottlenecks(use, 2)
        assert (found.stream, found.kind) == ("dp", "all_reduce")
        assert list(found.bound_s) == [slowest]
        assert found.fullest[slowest] == pytest.approx(1)
        assert found.fullest[other] < 0.5
        assert found.time_s == pytest.approx(found.latency_s + found.bound_s[slowest])


def test_what_lasts_nanoseconds_fills_its_links_to_the_last_digits() -> None:
    """Four bytes of a loss, summed at the end of a step, fill the adapters that two ranks of each node share."""
    plan = dense_plan(dp=4, zero_stage=3, m=48)
    pricing = pricing_on("dgx-a100-80g", 4, devices_per_node=2)
    found = bottlenecks(link_use(simulate(plan, pricing), pricing), 4)
    of_loss = next(entry for entry in found if entry.kind == "all_reduce")
    assert of_loss.time_s - of_loss.latency_s < 1e-8
    assert max(of_loss.fullest.values()) == pytest.approx(1.0, rel=1e-12)


@settings(LAW, max_examples=examples(6))
@given(data=st.data(), keys=dense_keys(8))
def test_whatever_moves_is_held_back_by_a_full_link(data: Any, keys: dict[str, Any]) -> None:
    """At every moment each transfer has a link that is full: its own slowest, or by max-min fairness a shared one."""
    plan = dense_plan(**keys)
    pricing = data.draw(clusters(plan.mesh.size))
    use = link_use(simulate(plan, pricing, fold=no_fold), pricing)
    moved = use.transfers
    moments = np.unique(np.concatenate([moved.begin_s, moved.end_s]))
    lasting_s = np.diff(moments)
    full = [np.diff(use.curve(row)(moments)) / lasting_s > 1 - 1e-3 for row in range(len(use.example))]
    whole = lasting_s > 1e-9 * use.makespan_s
    for number in range(len(moved.flows)):
        some_full = np.any([full[row] for row in use.rows[use.flows == number]], axis=0) | ~whole
        mine = moved.flow_of == number
        bounds = (np.searchsorted(moments, times_s[mine]) for times_s in (moved.begin_s, moved.end_s))
        for begin, end in zip(*bounds, strict=True):
            assert some_full[begin:end].all()


ON_SWITCH = {"kind": "switch"}
OVERSUBSCRIBED = {"kind": "leaf-spine", "leaf_ports": 2, "spines": 1, "oversubscription": 4}
MESH_2D = {"model": GPT, "tensor_method": "2d", "mesh": (2, 2), "tp": 4, "dp": 2, "b": 4, "overlap": "prefetch"}


@pytest.mark.parametrize(
    ("keys", "per_node", "fabric", "some_meet"),
    [
        (MESH_2D, 2, ON_SWITCH, False),
        ({"model": GPT, "pp": 2, "dp": 2, "m": 4}, 4, ON_SWITCH, True),
        ({"model": GPT, "pp": 4, "dp": 2, "m": 8}, 1, OVERSUBSCRIBED, True),  # on several links, some of them slower
    ],
)
def test_shares_are_those_of_each_rows_own_curve(
    keys: dict[str, Any], per_node: int, fabric: dict[str, Any], some_meet: bool
) -> None:
    """How full links are in each span follows from the seconds that they have been in use until its two ends."""
    plan, node = dense_plan(**keys), load_node("dgx-a100-80g")
    num_nodes = plan.mesh.size // per_node
    topology = parse_topology({"nodes": "dgx-a100-80g", "fabric": fabric}, num_nodes)
    pricing = ClusterPricing(Cluster(node, num_nodes, per_node, topology), load_profile(node.device.generation))
    use = link_use(simulate(plan, pricing), pricing)
    moved, met = use.transfers, use.meeting()
    for row in range(len(use.example)):
        spans, curve, mine = use.spans(row), use.curve(row), use.rows == row
        seconds = dict(zip(use.flows[mine].tolist(), use.seconds[mine].tolist(), strict=True))
        flows, speeds = moved.flow_of[spans].tolist(), moved.speed[spans].tolist()
        found = {span: seconds[flow] * speed for span, flow, speed in zip(spans.tolist(), flows, speeds, strict=True)}
        found |= zip(met.spans[met.rows == row].tolist(), met.shares[met.rows == row].tolist(), strict=True)
        busy_s = curve(moved.end_s[spans]) - curve(moved.begin_s[spans])
        lasting_s = np.maximum(moved.end_s[spans] - moved.begin_s[spans], 1e-300)
        assert [found[span] for span in spans.tolist()] == pytest.approx(busy_s / lasting_s, rel=1e-6, abs=1e-6)
    assert (len(met.spans) > 0) == some_meet


@settings(max_examples=examples(60), deadline=None)
@given(data=st.data())
def test_spans_overlap_with_those_of_their_row_alone(data: st.DataObject) -> None:
    """One that a longer one before it reaches into overlaps as well; one that begins as another ends does not."""
    span = st.tuples(st.integers(0, 3), st.integers(0, 12), st.integers(1, 6))
    spans = sorted(data.draw(st.lists(span, min_size=1, max_size=12)), key=lambda drawn: drawn[0])
    rows, begins_s, lasting_s = np.array(spans).T
    ends_s = begins_s + lasting_s
    wanted = [
        any(
            rows[one] == rows[other] and begins_s[one] < ends_s[other] and begins_s[other] < ends_s[one]
            for other in range(len(spans)) if other != one
        )
        for one in range(len(spans))
    ]  # fmt: skip
    assert _overlap(rows, begins_s.astype(np.float64), ends_s.astype(np.float64)).tolist() == wanted


@settings(max_examples=examples(60), deadline=None)
@given(data=st.data())
def test_columns_of_one_kind_that_carry_the_same_are_one_row(data: st.DataObject) -> None:
    """Rows are numbered as columns first have them; one with only the first loads of another has a row of its own."""
    loads = data.draw(
        st.dictionaries(st.tuples(st.integers(0, 7), st.integers(0, 3)), st.sampled_from([0.25, 0.5, 1.0]), min_size=1)
    )
    kinds = np.array(data.draw(st.lists(st.integers(0, 1), min_size=9, max_size=9)))
    pairs = data.draw(st.permutations(list(loads)))
    columns, flows = np.array(pairs, dtype=np.int64).T
    seconds = np.array([loads[pair] for pair in pairs])
    rows = _alike(_Cells(flows, columns, seconds, seconds), kinds)
    carried = {column: sorted((f, s) for (c, f), s in loads.items() if c == column) for column in range(9)}
    seen: dict[object, int] = {}
    wanted = [
        seen.setdefault((kinds[column], str(carried[column])), len(seen)) if carried[column] else IDLE
        for column in range(9)
    ]
    assert rows.tolist() == wanted
