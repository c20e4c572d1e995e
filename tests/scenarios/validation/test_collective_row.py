"""Measured collectives are predicted by their table's base and row, alone on their links."""

from pathlib import Path
from typing import Any

import pytest

from costmodels.collectives.cost import collective_cost, exclusive_seconds, point_to_point_cost
from costmodels.hardware import load_node
from costmodels.profile import load_profile, network_parameters
from scenarios.errors import ScenarioError
from scenarios.validation import published
from scenarios.validation.collective_row import collective_time_s
from traces.published import published_tables

NETWORK = network_parameters(load_node("hgx-h100"), load_profile("h100"))
TABLES = [path for path in published_tables() if path.stem.startswith(("nccl_", "torch_"))]


def entry(**changes: Any) -> dict[str, Any]:
    """Return an all_gather of 1 MiB on 8 devices of one node, with changes."""
    base = {"node": "hgx-h100", "num_nodes": 1, "num_devices": 8, "collective": "all_gather", "bytes": 2**20}
    return {**base, **changes}


def predicted(**changes: Any) -> float:
    """Return the predicted seconds of an entry."""
    return collective_time_s(entry(**changes), Path("table.yaml"), "row 'a'")


def test_collective_takes_what_its_cost_model_says() -> None:
    """The time is that of the cost model on the node's network, with the devices spread evenly over the nodes."""
    for nodes in (1, 2):
        group = (8 // nodes,) * nodes
        cost = collective_cost("all_gather", 2**20, group, NETWORK)
        assert predicted(num_nodes=nodes) == exclusive_seconds(cost, group, NETWORK)
    assert predicted(collective="alltoall") == predicted(collective="all_to_all")


@pytest.mark.parametrize("nodes", [1, 2])
def test_message_is_alpha_beta(nodes: int) -> None:
    """A send_recv goes through the port inside a node and through one adapter between two."""
    cost = point_to_point_cost(2**20, nodes == 1, NETWORK)
    alone_s = cost.latency_s + cost.port_bytes / NETWORK.intra_bandwidth_bytes_per_s
    alone_s += cost.nic_bytes / NETWORK.inter_bandwidth_bytes_per_s
    assert predicted(collective="send_recv", num_devices=2, num_nodes=nodes) == pytest.approx(alone_s)


def test_nothing_ends_before_the_host_has_issued_it() -> None:
    """``issue`` is the least that a collective takes; a longer one takes no longer for it."""
    assert predicted(issue="1 ms") == 1e-3
    assert predicted(issue="1 ns") == predicted()


def test_clusters_own_adapters_take_the_nodes_place() -> None:
    """Half the bandwidth doubles a large collective's time between nodes; more latency delays a small one."""
    large = {"num_nodes": 2, "bytes": 2**34}
    assert predicted(**large, nic={"bandwidth": "200 Gbit/s"}) == pytest.approx(2 * predicted(**large), rel=1e-3)
    assert predicted(**large, nic={"per_node": 2}) == pytest.approx(2 * predicted(num_nodes=2, bytes=2**34), rel=1e-3)
    assert predicted(num_nodes=2, nic={"latency": "1 ms"}) > 1e-3


def test_clusters_own_network_takes_the_profiles_place() -> None:
    """A table may state fractions and protocols itself: half of a port's rate, one protocol without fixed times."""
    protocol = {
        **{"name": "simple", "base_latency": "0 us", "intra_hop": "0 us", "inter_hop": "0 us"},
        **{"wire_overhead": 1.0, "algorithms": ["ring"]},
    }
    network = {"intra_fraction": 0.5, "inter_fraction": 1.0, "point_to_point_latency": "1 us", "protocols": [protocol]}
    link = load_node("hgx-h100").intra
    expected_s = 7 / 8 * 2**30 / (link.bandwidth_bytes_per_s / 2) + 7 * link.latency_s
    assert predicted(bytes=2**30, network=network) == pytest.approx(expected_s)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"sise": 1}, "sise: a measured collective has no such key"),
        ({"nic": {"lanes": 1}}, "nic.lanes: a measured collective has no such key"),
        ({"num_nodes": 3}, "8 devices on 3 nodes"),
        ({"num_devices": 1}, "1 devices on 1 nodes"),
        ({"bytes": 0.5}, "bytes: a whole number of 1 or more"),
        ({"node": "hgx-h1000"}, "there is no node 'hgx-h1000'"),
        ({"collective": "gather_all"}, "no collective 'gather_all'"),
        ({"issue": 3}, "has no unit"),
        ({"nic": 3}, "nic: a mapping belongs here, not 3"),
        ({"network": "fast"}, "network: a mapping belongs here, not 'fast'"),
        ({"network": {"intra_fraction": 0.5}}, "the table's network has no 'inter_fraction'"),
    ],
)
def test_bad_row_is_refused(changes: dict[str, Any], problem: str) -> None:
    """An unknown or missing key, a count that fits nothing, a name that is unknown: refused with row and remedy."""
    with pytest.raises(ScenarioError, match="row 'a'") as raised:
        predicted(**changes)
    assert problem in str(raised.value)


def test_missing_key_is_refused() -> None:
    """A base without a required key is refused by its name."""
    incomplete = entry()
    del incomplete["bytes"]
    with pytest.raises(ScenarioError, match="bytes: the key is required and missing"):
        collective_time_s(incomplete, Path("table.yaml"), "")


def test_mean_threshold_holds_for_every_group(tmp_path: Path) -> None:
    """A table fails where one kind's mean is past the threshold, however well the others do."""
    [path] = [path for path in TABLES if path.stem == "nccl_a100_from_1_mib"]
    exact = collective_time_s(entry(node="dgx-a100-80g"), path, "")
    lines = ["system,collective,n_gpus,n_nodes,bytes,time_s,kind"]
    lines += [f"a100_sxm single node,all_gather,8,1,{2**20},{exact},measured"] * 9
    lines += [f"a100_sxm single node,all_reduce,8,1,{2**20},{exact},measured"]
    lines += [f"other,all_reduce,8,1,{2**20},1,measured", "a100_sxm single node,all_reduce,8,1,1024,1,measured"]
    (tmp_path / "rows.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (table,) = published.run((path,), tmp_path / "rows.csv").tables
    assert [(group.group, group.rows) for group in table.groups] == [("all_gather", 9), ("all_reduce", 1)]
    assert table.groups[0].mean_absolute_error == 0
    assert table.groups[1].mean_absolute_error > table.thresholds.mean >= table.mean_absolute_error
    assert not table.passed


@pytest.mark.parametrize("name", ["nccl_a100", "nccl_h100", "nccl_h200", "nccl_b200"])
def test_every_kind_is_covered_below_and_above_1_mib(name: str) -> None:
    """Each machine's tables hold all four collectives on both sides of 1 MiB, on 2, 4 and 8 devices."""
    for part, most in (("from_1_mib", 0.12), ("below_1_mib", 0.20)):
        [path] = [path for path in TABLES if path.stem == f"{name}_{part}"]
        (table,) = published.run((path,)).tables
        assert {group.group for group in table.groups} == {
            "all_gather",
            "all_reduce",
            "alltoall",
            "reduce_scatter",
        }
        assert {row.name.split()[1] for row in table.rows} == {"2", "4", "8"}
        assert table.thresholds.mean <= most
        assert table.passed
