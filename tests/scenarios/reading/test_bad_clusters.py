"""Bad clusters: one message with file, line, key, rule and remedy, fast, and no traceback."""

import math
import resource
import time
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from costmodels.hardware import load_node
from costmodels.profile import load_profile
from scenarios.cli import main
from scenarios.errors import ScenarioError
from scenarios.reading.clusters.cluster_file import cluster_of
from scenarios.reading.documents.yaml_tree import read_document
from scenarios.sweep.run import prepare
from scenarios.sweep.settings import read_settings
from scenarios.workloads.loading import load_scenario
from scenarios.workloads.registry import sections
from sim.cluster.cluster import Cluster
from sim.cluster.topology.facts import describe
from sim.cluster.topology.topology import Topology
from sim.engine.prices.pricing import ClusterPricing

NODE = (
    "{devices: 4, inside: nvswitch, nvlink: {bandwidth: 300 GB/s, latency: 0.3 us}, pcie: {bandwidth: 30 GB/s}, "
    "nics: 1, nic: {bandwidth: 200 Gbit/s, latency: 1 us}}"
)
MESH = (
    "{devices: 4, inside: nvlink-mesh, nvlink: {bandwidth: 25 GB/s}, relay: neighbour, "
    "nvlinks: [[0, 1, 1], [1, 2, 1], [2, 3, 1]]}"
)
LEAVES = "{kind: leaf-spine, leaf_ports: 2, spines: 2, oversubscription: 2}"
RING = "{kind: torus, shape: [2, 2], link: {bandwidth: 1 GB/s}}"
TRAINING = """\
model: {family: gpt, num_layers: 2, hidden_size: 512, num_heads: 8, sequence_length: 128, vocab_size: 1024}
training: {global_batch_size: 32, microbatch_size: 1}
parallel: {data: {degree: auto}}
"""


def cluster(nodes: str = NODE, fabric: str = LEAVES, num_nodes: str = "4", more: str = "") -> str:
    """Return a cluster of nodes without a hardware entry: nodes in line 6, the network in line 7, more from line 8."""
    lines = ["name: bad", "cluster:", "  node: hgx-h100", f"  num_nodes: {num_nodes}", "  topology:"]
    return "\n".join([*lines, f"    nodes: {nodes}", f"    fabric: {fabric}", more, ""])


def changed(text: str, old: str, new: str) -> str:
    """Return a text with a part replaced that is there."""
    assert old in text
    return text.replace(old, new, 1)


def node(old: str, new: str) -> str:
    """Return a cluster whose nodes have a part changed."""
    return cluster(changed(NODE, old, new))


def mesh(old: str, new: str) -> str:
    """Return one node of NVLinks with a part changed."""
    return cluster(changed(MESH, old, new), num_nodes="1")


def leaves(old: str, new: str) -> str:
    """Return a cluster whose leaves and spines have a part changed."""
    return cluster(fabric=changed(LEAVES, old, new))


IN, TO, FA = "cluster.topology.nodes", "cluster.topology", "cluster.topology.fabric"
CHAIN = changed(changed(MESH, "[2, 3, 1]", "[0, 2, 1]"), "relay: neighbour, ", "")
BAD: list[tuple[str, int, str, str, str]] = [
    # file, line, key, rule, remedy
    (node("300 GB/s", "0 GB/s"), 6, f"{IN}.nvlink.bandwidth", "more than 0", "400 Gbit/s"),
    (node("300 GB/s", "-300 GB/s"), 6, f"{IN}.nvlink.bandwidth", "not negative", "units"),
    (node("300 GB/s", "inf GB/s"), 6, f"{IN}.nvlink.bandwidth", "inf GB/s", "units"),
    (node("300 GB/s", "1e-300 B/s"), 6, f"{IN}.nvlink.bandwidth", "no link carries '1e-300", "Gbit/s"),
    (node("300 GB/s", "1e290 B/s"), 6, f"{IN}.nvlink.bandwidth", "no link carries '1e290", "Gbit/s"),
    (node("300 GB/s", "300"), 6, f"{IN}.nvlink.bandwidth", "no unit", "Gbit/s"),
    (node("0.3 us", "-1 us"), 6, f"{IN}.nvlink.latency", "not negative", "units"),
    (node("0.3 us", "1e300 h"), 6, f"{IN}.nvlink.latency", "no link takes '1e300 h'", "1.5 us"),
    (node("0.3 us", "1 GB"), 6, f"{IN}.nvlink.latency", "'GB' is a unit of", "us"),
    (node("devices: 4", "devices: 0"), 6, f"{IN}.devices", "whole number from 1", "as in 8"),
    (node("devices: 4", "devices: 4.5"), 6, f"{IN}.devices", "not 4.5", "as in 8"),
    (node("devices: 4", "devices: true"), 6, f"{IN}.devices", "not True", "as in 8"),
    (node("devices: 4", "devices: 1000000000000"), 6, f"{IN}.devices", "to 1,000,000", "as in 8"),
    (node("devices: 4", "devices: 1153"), 6, f"{IN}.devices", "at most 1,152 devices", "fewer"),
    (node("nics: 1", "nics: 0"), 6, f"{IN}.nics", "no adapter has it", "nics: 1"),
    (node("nics: 1", "nics: 8"), 6, f"{IN}.nics", "do not share 4 devices", "divides devices"),
    (cluster("{devices: 4, inside: nvswitch, nvlink: {bandwidth: 3 GB/s}}"), 6, f"{IN}.nics", "no way to", "nics: 1"),
    (cluster(num_nodes="1000000000000"), 4, "cluster.num_nodes", "1,000,000", "at most"),
    (cluster(num_nodes="0"), 4, "cluster.num_nodes", "0", ""),
    (cluster(num_nodes="3.5"), 4, "cluster.num_nodes", "3.5", ""),
    (cluster("[]", num_nodes="4"), 6, IN, "the groups hold 0 nodes", "add up to num_nodes"),
    (cluster("[{count: 0, type: hgx-h100}, {count: 4, type: hgx-h100}]"), 6, f"{IN}[0].count", "from 1", "as in 8"),
    (cluster("[{count: 3, type: hgx-h100}]"), 6, IN, "hold 3 nodes, and the cluster 4", "add up"),
    (cluster("[{count: 4}]"), 6, f"{IN}[0].type", "required and missing", "add type:"),
    (cluster("[{count: 1.5, type: hgx-h100}]"), 6, f"{IN}[0].count", "not 1.5", "as in 8"),
    (node("devices: 4", "devices: 4, nodes_per_domain: 3"), 6, IN, "fill domains of 3", "multiple"),
    (node("nvswitch", "nvswich"), 6, f"{IN}.inside", "no 'nvswich'", "did you mean nvswitch"),
    (cluster(CHAIN, num_nodes="1"), 6, f"{IN}.pcie", "nothing joins devices 0 and 3", "write pcie:"),
    (mesh("[0, 1, 1]", "[1, 1, 1]"), 6, f"{IN}.nvlinks", "[1, 1, 1] is not", "[device"),
    (mesh("[0, 1, 1]", "[0, 7, 1]"), 6, f"{IN}.nvlinks", "0 to 3", "[device"),
    (mesh("[0, 1, 1]", f"[0, 1, {10**40}]"), 6, f"{IN}.nvlinks", "to 1000", "[device"),
    (mesh("[[0, 1, 1], [1, 2, 1], [2, 3, 1]]", "[]"), 6, f"{IN}.nvlinks", "needs the",
     "nvlinks: [[0"),
    (node("nics: 1", "nvlinks: [[0, 1, 1]], nics: 1"), 6, f"{IN}.nvlinks", "no list of links", "leave"),
    (node("nics: 1", "sockets: 3, nics: 1"), 6, f"{IN}.sockets", "1 or 2 sockets, not 3", "1 or 2"),
    (cluster(fabric="{kind: hypercube}"), 7, f"{FA}.kind", "no 'hypercube'", "known: switch"),
    (cluster(fabric="[switch]"), 7, FA, "is not a mapping", "kind"),
    (cluster(fabric="{}"), 7, f"{FA}.kind", "required and missing", "add kind:"),
    (cluster(fabric="{kind: leaf-spine, leaf_ports: 2}"), 7, f"{FA}.spines", "required and missing", "add spines:"),
    (leaves("spines: 2", "spines: 0"), 7, f"{FA}.spines", "from 1", "as in 8"),
    (leaves("spines: 2", "spines: 1000000000000"), 7, f"{FA}.spines", "to 1,000,000", "as in 8"),
    (leaves("oversubscription: 2", "oversubscription: 0.5"), 7, f"{FA}.oversubscription",
     "0.5 is not a number from 1", "as in 1.5"),
    (leaves("oversubscription: 2", "oversubscription: .nan"), 7, f"{FA}.oversubscription",
     "nan is not a number", "as in 1.5"),
    (leaves("oversubscription: 2", "oversubscription: 1.0e+300"), 7, f"{FA}.oversubscription",
     "1e+300 is not a number", "as in 1.5"),
    (leaves("oversubscription: 2", "oversubscription: 2, uplink: {bandwidth: 1 GB/s}"), 7,
     f"{FA}.oversubscription", "already says how much goes up", "keep one"),
    (cluster(fabric="{kind: fat-tree, radix: 3}"), 7, f"{FA}.radix", "half of 3 ports", "even"),
    (cluster(fabric="{kind: fat-tree, radix: 2}"), 7, FA, "4 adapters on a tree that holds 2", "larger radix"),
    (cluster("hgx-h100", "{kind: rail-optimised, nodes_per_leaf: 2}"), 7, f"{FA}.spines", "need spines", "1 or more"),
    (cluster(fabric=changed(RING, "[2, 2]", "[3, 3]")), 7, f"{FA}.shape", "= 9 routers for 4 nodes", "product"),
    (cluster(fabric=changed(RING, "[2, 2]", "[2.0, 2]")), 7, f"{FA}.shape", "is not a list", "as in"),
    (cluster(fabric=changed(RING, "[2, 2]", "[100000]"), num_nodes="100000"), 7, f"{FA}.shape", "up to 50,000 links",
     "more dimensions"),
    (cluster(fabric=changed(RING, ", link: {bandwidth: 1 GB/s}", "")), 7, f"{FA}.link", "required and", "add link:"),
    (cluster("torus-chip"), 6, f"{IN}.nics", "without adapters", "nics: 1"),
    (cluster(more="    stragglers: [{device: 99, slowdown: 2}]"), 8, f"{TO}.stragglers[0].device", "no device 99",
     "0 to 15"),
    (cluster(more="    stragglers: [{link: node 9 nic 0 out, slowdown: 2}]"), 8, f"{TO}.stragglers", "no link 'node 9",
     "did you mean 'node"),
    (cluster(more="    stragglers: [{device: 1, slowdown: 0.5}]"), 8, f"{TO}.stragglers[0].slowdown",
     "0.5 is not", "1.5"),
    (cluster(more="    stragglers: [{device: 1, slowdown: 1.0e+308}]"), 8, f"{TO}.stragglers[0].slowdown",
     "1e+308", "1.5"),
    (cluster(more="  stragglers: [{device: node 9 gpu 0, slowdown: 2}]"), 8, "cluster.stragglers[0].device",
     "no device 'node 9 gpu 0'", "did you mean"),
    (cluster(more="  stragglers: [{link: leaf 0 to spine 9, slowdown: 2}]"), 8, "cluster.stragglers[0].link",
     "no link 'leaf 0 to spine 9'", "did you mean"),
    (cluster(more="  devices_per_node: 5"), 8, "cluster.devices_per_node", "5 devices of each node, where a node has 4",
     "at most 4"),
    (cluster(more="    base: superpod-h101"), 8, f"{TO}.base", "no topology 'superpod-h101'",
     "did you mean superpod-h100"),
    (cluster("{base: " + "x" * 5000 + "}"), 6, f"{IN}.base", "no node layout 'xxx", "known:"),
    (cluster("{? " + "x" * 5000 + ": 1}"), 6, "", "unknown key", "known:"),
    (cluster("{1: 2}"), 0, "", "", ""),
    (cluster(more="    links: []"), 8, f"{TO}.links", "unknown key", "known: base, nodes"),
    (cluster(more="    nodes: hgx-h100"), 0, "", "twice", ""),
]  # fmt: skip


@pytest.mark.parametrize(("text", "line", "key", "rule", "remedy"), BAD)
def test_bad_clusters_are_refused_alike_by_all_commands(
    write, text: str, line: int, key: str, rule: str, remedy: str
) -> None:
    """``show``, ``simulate`` and ``sweep`` name file, line, key, rule and remedy, in a second, in few words."""
    alone, scenario = write(text), write(text + TRAINING)
    commands = {
        "show": lambda: cluster_of(read_document(alone), sections=sections()),
        "simulate": lambda: load_scenario(scenario),
        "sweep": lambda: prepare(scenario, read_settings(("training.microbatch_size=1,2",))),
    }
    for name, load in commands.items():
        began_s = time.process_time()
        with pytest.raises(ScenarioError) as caught:
            load()
        assert time.process_time() - began_s < 2, name
        error = caught.value
        assert error.remedy
        assert len(str(error)) < 1000
        assert line in {0, error.line}, (name, error.line)
        assert error.key.startswith(key), name
        assert rule in error.rule, name
        assert remedy in error.remedy or name != "show", name


def test_absurd_sizes_are_refused_without_memory(write) -> None:
    """A million million nodes, devices or switches cost neither time nor memory."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for text in (
        cluster(num_nodes="1000000000000"),
        node("devices: 4", "devices: 1000000000000"),
        cluster(
            fabric=changed(LEAVES, "leaf_ports: 2, spines: 2", "leaf_ports: 1, spines: 1000000"), num_nodes="100000"
        ),
        cluster(changed(NODE, "devices: 4", "devices: 4, nodes_per_domain: 1000000"), num_nodes="1000000"),
    ):
        with pytest.raises(ScenarioError):
            cluster_of(read_document(write(text)), sections=sections())
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000


@pytest.mark.parametrize("command", [["show"], [], ["sweep"]])
def test_the_commands_leave_with_two_and_write_nothing(write, tmp_path: Path, capsys, command: list[str]) -> None:
    """Exit code 2, one message on standard error, nothing on standard output, no file."""
    path = write(node("300 GB/s", "0 GB/s") + TRAINING)
    options = ["--set", "training.microbatch_size=1,2"] if command == ["sweep"] else []
    with pytest.raises(SystemExit) as caught:
        main([*command, str(path), *options])
    output = capsys.readouterr()
    assert caught.value.code == 2
    assert output.out == ""
    assert f"{path}:6: {IN}.nvlink.bandwidth" in output.err
    assert "Traceback" not in output.err
    assert list(tmp_path.iterdir()) == [path]


def test_show_has_the_stragglers_of_a_cluster(write) -> None:
    """Slow devices and links beside the topology are shown as those in it."""
    path = write(
        cluster(more="  stragglers: [{device: node 1 gpu 2, slowdown: 2}, {link: leaf 0 to spine 1, slowdown: 4}]")
    )
    topology = cluster_of(read_document(path), sections=sections()).topology
    assert describe(topology).slowed_devices == (6,)
    slow = topology.link_named("leaf 0 to spine 1")
    assert topology.bandwidth_bytes_per_s[slow] * 4 == topology.bandwidth_bytes_per_s[slow - 1]


# --- anything at all -----------------------------------------------------------------------------------------------

PODS = {"kind": "fat-tree", "leaf_ports": 4, "leaves_per_pod": 2, "spines_per_pod": 2, "cores_per_spine": 1}
TWO_TYPES = [{"count": 2, "type": "hgx-h100"}, {"count": 2, "type": {"base": "dgx-a100", "nics": 4}}]
RACKS = {"base": "gb200-nvl72-pods", "fabric": {"in_network_reduction": True}}
BASES: list[dict[str, Any]] = [
    {"num_nodes": 4, "node": "hgx-h100", "topology": {"nodes": yaml.safe_load(NODE), "fabric": yaml.safe_load(LEAVES)}},
    {"num_nodes": 4, "node": "hgx-h100", "topology": {"nodes": yaml.safe_load(NODE), "fabric": yaml.safe_load(RING)}},
    {"num_nodes": 1, "node": "hgx-h100", "topology": {"nodes": yaml.safe_load(MESH)}},
    {"num_nodes": 4, "stragglers": [{"device": 1, "slowdown": 2}], "topology": {"nodes": TWO_TYPES, "fabric": PODS}},
    {"num_nodes": 36, "node": "dgx-b200", "topology": RACKS},
]
ODD = st.sampled_from(
    [
        *(-1, 0, 1, 2, 3, 7, 10**7, 10**12, 10**30, 1.5, 0.5, -2.0, 1e300, math.nan, math.inf, True, False, None),
        *("", "x", "0 GB/s", "1 GB/s", "-1 us", "1e400 s", "hgx-h100", "superpod-h100", "torus-chip", "nvswitch"),
        *("pcie", "switch", [], {}, [1], [[0, 1, 1]], {"value": 3}, {"bandwidth": "1 GB/s"}, {"base": "dgx-2"}),
        {"count": 1, "type": "hgx-h100"},
    ]
).map(deepcopy)
KEYS = (
    *("devices", "inside", "nvlinks", "nics", "nic", "sockets", "pcie_switches", "nodes_per_domain", "kind", "spines"),
    *("leaf_ports", "shape", "link", "radix", "stragglers", "base", "x", "cross_rail", "in_network_reduction"),
)


def places(value: object, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the paths of everything in a description."""
    items = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    return [found for key, child in items for found in ((*path, key), *places(child, (*path, key)))]


@st.composite
def descriptions(draw: Any) -> dict[str, Any]:
    """Draw a good cluster with one to three of its values made odd, dropped or added."""
    found: dict[str, Any] = deepcopy(draw(st.sampled_from(BASES)))
    for _ in range(draw(st.integers(1, 3))):
        *above, last = draw(st.sampled_from(places(found) or [("num_nodes",)]))
        at: Any = found
        for key in above:
            at = at[key]
        match draw(st.sampled_from(["odd", "drop", "add"])):
            case "odd":
                at[last] = draw(ODD)
            case "drop":
                del at[last]
            case "add" if isinstance(at, dict):
                at[draw(st.sampled_from(KEYS))] = draw(ODD)
    return found


def outcome(path: Path) -> Topology | ScenarioError:
    """Return the cluster or the refusal; anything else that is raised fails the test."""
    try:
        return cluster_of(read_document(path), sections=sections()).topology
    except ScenarioError as error:
        return error


@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(description=descriptions())
def test_any_description_is_a_cluster_that_works_or_a_message(tmp_path: Path, description: dict[str, Any]) -> None:
    """What is accepted has routes, finite bandwidths and prices; everything else is refused in words."""
    path = tmp_path / "cluster.yaml"
    path.write_text(yaml.safe_dump({"cluster": description}), encoding="utf-8")
    topology = outcome(path)
    if isinstance(topology, ScenarioError):
        assert topology.rule
        assert topology.remedy
        assert len(str(topology)) < 1500
        return
    facts = describe(topology)
    assert all(0 < row.bandwidth_bytes_per_s < math.inf and 0 <= row.latency_s < math.inf for row in facts.links)
    if topology.num_devices == 1:
        return
    assert facts.max_hops >= 1
    assert 0 < facts.bisection_bytes_per_s < math.inf
    least = min(island.num_devices // island.num_nodes for island in topology.islands)
    node = load_node("hgx-h100")
    pricing = ClusterPricing(Cluster(node, topology.num_nodes, least, topology), load_profile("h100"))
    ranks = min(9, len(pricing.cluster.devices))
    if ranks > 1:
        cost = pricing.network.collective("all_reduce", 2**20, range(ranks))
        assert 0 < cost.latency_s + max(seconds for _, seconds in cost.links) < math.inf
