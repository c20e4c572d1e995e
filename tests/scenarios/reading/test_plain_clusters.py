"""Clusters that name a node: how fast their network is, and topologies that change a few keys of the node."""

import json

import pytest

from scenarios.cli import main
from scenarios.errors import ScenarioError
from scenarios.reading.clusters.cluster_file import cluster_of
from scenarios.reading.documents.yaml_tree import read_document
from scenarios.workloads.loading import load_scenario
from scenarios.workloads.registry import sections
from scenarios.workloads.steps.pricing import cluster_of as simulated
from scenarios.workloads.steps.running import run_step
from sim.cluster.topology.links import LinkKind

SMALL = """\
name: small
cluster: {node: hgx-h100, num_nodes: 2}
model: {family: gpt, num_layers: 2, hidden_size: 512, num_heads: 8, sequence_length: 128, vocab_size: 1024}
training: {global_batch_size: 8, microbatch_size: 1}
parallel: {tensor: {degree: 8}, data: {degree: auto}}
"""


def step_s(path, *overrides: str) -> float:
    """Return the time of a step."""
    return run_step(load_scenario(path, overrides)).makespan_s


def links_of(path, *overrides: str) -> dict[str, tuple[float, float]]:
    """Return bandwidth and latency of the simulated links, by kind."""
    topology = simulated(load_scenario(path, overrides).cluster).topology
    kinds = topology.links.kind
    return {
        LinkKind(kind).name: (
            float(topology.bandwidth_bytes_per_s[kinds == kind].min()),
            float(topology.latency_s[kinds == kind].max()),
        )
        for kind in sorted(set(kinds.tolist()))
    }


def test_network_multiplies_all_links(write) -> None:
    """``cluster.network`` scales bandwidth and latency of NVLinks and adapters, as in ``simulate replay``."""
    path = write(SMALL)
    plain, changed = links_of(path), links_of(path, "cluster.network={bandwidth: 0.25x, latency: 3x}")
    assert plain["NIC"][0] == 50e9
    for kind in ("NVSWITCH", "NIC"):
        assert changed[kind] == pytest.approx((plain[kind][0] / 4, plain[kind][1] * 3), rel=1e-12)


def test_multiples_of_one_change_nothing(write) -> None:
    """The step is the same to the last bit, and a faster network is faster, a slower one slower."""
    path = write(SMALL)
    plain = step_s(path)
    same = "cluster.network={bandwidth: 1x, latency: 1.0x}", "cluster.oversubscription=1"
    assert step_s(path, *same) == plain
    assert step_s(path, "cluster.network.bandwidth=4x") < plain < step_s(path, "cluster.network.bandwidth=0.25x")
    assert step_s(path, "cluster.network.latency=0.5x") < plain < step_s(path, "cluster.network.latency=2 x")


def test_network_is_the_one_of_a_topology_with_these_values(write) -> None:
    """Half the bandwidth is NVLinks and adapters of half the catalogue's bandwidth, written out."""
    path = write(SMALL)
    written = "cluster.topology.nodes={nvlink: {bandwidth: 225 GB/s}, nic: {bandwidth: 200 Gbit/s}}"
    assert step_s(path, "cluster.network.bandwidth=0.5x") == pytest.approx(step_s(path, written), rel=1e-6)


@pytest.mark.parametrize("over", [2, 7.5])
def test_oversubscription_is_a_leaf_per_node(write, over: float) -> None:
    """The way from a node to the others has its adapters' bandwidth divided by the oversubscription."""
    path = write(SMALL)
    fabric = f"cluster.topology.fabric={{kind: leaf-spine, leaf_ports: 8, spines: 1, oversubscription: {over}}}"
    narrow = step_s(path, f"cluster.oversubscription={over}")
    assert narrow == pytest.approx(step_s(path, fabric), rel=1e-6)
    assert narrow > step_s(path)
    up = links_of(path, f"cluster.oversubscription={over}", "cluster.network.bandwidth=0.5x")["LEAF_SPINE"]
    assert up[0] == pytest.approx(8 * 25e9 / over)


def test_stragglers_keep_the_network(write) -> None:
    """A slow link beside ``network`` is slow against that network."""
    path = write(SMALL)
    slow = "cluster.stragglers=[{link: node 1 nic 0 out, slowdown: 2}]"
    assert links_of(path, slow, "cluster.network.bandwidth=0.5x")["NIC"][0] == 12.5e9


def test_topology_beside_a_node_replaces_single_keys(write) -> None:
    """Keys that the topology lacks are those of ``node``, below one switch."""
    path = write(SMALL)
    whole = "cluster.topology={nodes: {base: hgx-h100}, fabric: {kind: switch}}"
    part = "cluster.topology.nodes.nvlink.bandwidth=100 GB/s"
    before, after = links_of(path, whole), links_of(path, part)
    assert after["NVSWITCH"] == (100e9, before["NVSWITCH"][1])
    assert {kind: value for kind, value in after.items() if kind != "NVSWITCH"} == {
        kind: value for kind, value in before.items() if kind != "NVSWITCH"
    }
    assert step_s(path, whole) == pytest.approx(step_s(path), rel=1e-6)
    assert step_s(path, part) > step_s(path)
    assert step_s(path, "cluster.topology.nodes.nvlink.bandwidth=450 GB/s") == step_s(path, whole)


def test_groups_and_fabrics_may_be_partial_too(write) -> None:
    """A group's type takes the keys of ``node``, and a fabric alone joins such nodes; a whole node stays as written."""
    path = write(SMALL)
    groups = "cluster.topology={nodes: [{count: 1, type: {nics: 4}}, {count: 1, type: hgx-h100}]}"
    assert load_scenario(path, [groups]).cluster.num_nics == 12
    fabric = "cluster.topology={fabric: {kind: rail-optimised, spines: 2, nodes_per_leaf: 1}}"
    assert load_scenario(path, [fabric]).cluster.wiring.num_devices == 16
    link = "{bandwidth: 1 GB/s}"
    plain = f"{{devices: 8, inside: nvswitch, nvlink: {link}, pcie: {link}, nics: 1, nic: {link}}}"
    assert load_scenario(path, [f"cluster.topology={{nodes: {plain}}}"]).cluster.num_nics == 2


def test_show_draws_the_changed_network(write, capsys) -> None:
    """``simulate show`` lists the links that are simulated, and merges partial topologies as well."""
    path = write("cluster: {node: hgx-h100, num_nodes: 2, network: {bandwidth: 0.5x}, oversubscription: 4}\n")
    with pytest.raises(SystemExit):
        main(["show", str(path), "--json"])
    links = {link["kind"]: link for link in json.loads(capsys.readouterr().out)["links"]}
    assert links["nic"]["bandwidth_bytes_per_s"] == 25e9
    assert links["leaf-spine"]["bandwidth_bytes_per_s"] == 8 * 25e9 / 4
    part = write("cluster: {node: hgx-h100, num_nodes: 2, topology: {nodes: {nics: 4}}}\n")
    assert len(cluster_of(read_document(part), sections=sections()).topology.ports) == 8


@pytest.mark.parametrize(
    ("override", "key", "rule", "remedy"),
    [
        ("cluster.network.bandwidth=2", "cluster.network.bandwidth", "a multiple above 0", "as in 2x"),
        ("cluster.network.bandwidth=100 Gbit/s", "cluster.network.bandwidth", "'100 Gbit/s'", "nodes.nic.bandwidth"),
        ("cluster.network.latency=2 us", "cluster.network.latency", "'2 us'", "nodes.nic.bandwidth or .latency"),
        ("cluster.network.latency=0x", "cluster.network.latency", "a multiple above 0", "as in 2x"),
        ("cluster.network.latency=1e300x", "cluster.network.latency", "between 1e-09x and 1e+09x", "as in 2x"),
        ("cluster.network.bandwith=2x", "cluster.network.bandwith", "unknown key", "did you mean bandwidth?"),
        ("cluster.oversubscription=0.5", "cluster.oversubscription", "at least 1", "at least 1"),
        ("cluster.oversubscription=1e9", "cluster.oversubscription", "at most 1e+06", "at most"),
        (
            "cluster.topology.nvlink.bandwidth=1 GB/s",
            "cluster.topology.nvlink",
            "a key of nodes",
            "nodes: {nvlink:",
        ),
        ("cluster.topology.spines=2", "cluster.topology.spines", "a key of fabric", "fabric: {spines: ...}"),
    ],
)
def test_bad_networks_are_refused(write, override: str, key: str, rule: str, remedy: str) -> None:
    """Key, rule and remedy are named."""
    with pytest.raises(ScenarioError) as caught:
        load_scenario(write(SMALL), [override])
    assert caught.value.key == key
    assert rule in caught.value.rule
    assert remedy in caught.value.remedy


@pytest.mark.parametrize("override", ["cluster.network.bandwidth=2x", "cluster.oversubscription=2"])
def test_topology_and_network_exclude_each_other(write, override: str) -> None:
    """A topology describes the links, so a second description of them is refused, by ``show`` as well."""
    path = write(SMALL.replace("node: hgx-h100", "topology: superpod-h100"))
    with pytest.raises(ScenarioError, match="topology already describes the links"):
        load_scenario(path, [override])
    alone = write("cluster: {topology: superpod-h100, num_nodes: 2}\n")
    with pytest.raises(ScenarioError, match="topology already describes the links"):
        cluster_of(read_document(alone), [override], sections=sections())
