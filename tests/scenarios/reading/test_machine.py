"""Clusters of a scenario: topologies, stragglers, jitter, several types of nodes, algorithms."""

import json

import pytest
from msgspec.structs import replace
from rich.console import Console

from scenarios.console.blocks import print_blocks
from scenarios.errors import ScenarioError
from scenarios.reading.clusters.machine import ClusterSpec
from scenarios.summaries.steps.role_names import fullest_row, row_names
from scenarios.workloads.loading import load_scenario
from scenarios.workloads.steps.executing.collectives import chosen_algorithms
from scenarios.workloads.steps.running import plan_of, run_step, simulate

SMALL = """\
name: small
cluster: {topology: superpod-h100, num_nodes: 2}
model: {family: gpt, num_layers: 2, hidden_size: 512, num_heads: 8, sequence_length: 128, vocab_size: 1024}
training: {global_batch_size: 8, microbatch_size: 1}
parallel: {tensor: {degree: 8}, data: {degree: auto}}
"""


def step_s(path, *overrides: str) -> float:
    """Return the time of a step."""
    return run_step(load_scenario(path, overrides)).makespan_s


def test_topology_by_name_says_the_nodes_too(write) -> None:
    """A catalogue's topology names its nodes; devices and profile are those of the hardware catalogue's entry."""
    cluster = load_scenario(write(SMALL)).cluster
    assert replace(cluster, wiring=None) == ClusterSpec(node="hgx-h100", num_nodes=2, devices_per_node=8)
    assert (cluster.num_nics, cluster.wiring.num_devices) == (16, 16)


def test_topology_may_be_written_out(write) -> None:
    """Keys of the mapping are the topology's; a node without a hardware entry has the devices of ``node``."""
    fabric = "fabric: {kind: leaf-spine, leaf_ports: 8, spines: 2, oversubscription: 4}"
    path = write(SMALL)
    written = f"cluster.topology={{nodes: {{base: hgx-h100, nics: 4}}, {fabric}}}"
    assert load_scenario(path, [written]).cluster.num_nics == 8
    link = "{bandwidth: 1 GB/s}"
    plain = f"{{devices: 8, inside: nvswitch, nvlink: {link}, pcie: {link}, nics: 1, nic: {link}}}"
    cluster = load_scenario(
        path, [f"cluster.topology={{nodes: {plain}, {fabric}}}", "cluster.node=dgx-a100-80g"]
    ).cluster
    assert (cluster.node, cluster.num_nics) == ("dgx-a100-80g", 2)


def test_oversubscription_slows_what_crosses_leaves(write) -> None:
    """A tenth of the bandwidth above the leaves makes the step longer; none less makes no difference to one switch."""
    path = write(SMALL)
    fabrics = ["{kind: switch}"]
    fabrics += [f"{{kind: leaf-spine, leaf_ports: 8, spines: 8, oversubscription: {over}}}" for over in (1, 10)]
    times = [step_s(path, f"cluster.topology={{nodes: hgx-h100, fabric: {fabric}}}") for fabric in fabrics]
    assert times[0] == pytest.approx(times[1], rel=1e-6)
    assert times[2] > 1.1 * times[1]


def test_slow_device_delays_everyone_and_is_a_class_of_its_own(write) -> None:
    """The step takes longer; the summary has rows for the slow device and those that wait for it, by first rank."""
    path = write(SMALL)
    slow = "cluster.stragglers=[{device: node 1 gpu 3, slowdown: 3}]"
    result = simulate(load_scenario(path, [slow]))
    assert result.run.makespan_s > 1.2 * step_s(path)
    roles = result.summary.roles
    assert {role.first_rank for role in roles} >= {0, 8, 11}
    assert sum(role.num_ranks for role in roles) == 16
    names = row_names(roles, "all")
    assert len(set(names)) == len(roles)
    assert any(name.endswith("rank 11") for name in names)
    by_number = step_s(path, "cluster.stragglers=[{device: 11, slowdown: 3}]")
    assert by_number == result.run.makespan_s


def test_slow_link_and_stragglers_below_one_switch(write) -> None:
    """Stragglers need no topology; a slow adapter delays what it carries, a slowdown of 1 nothing."""
    path = write(SMALL.replace("topology: superpod-h100", "node: hgx-h100"))
    sound, none, slow = (
        step_s(path, *overrides)
        for overrides in (
            (),
            ("cluster.stragglers=[{link: node 1 nic 0 out, slowdown: 1}]",),
            ("cluster.stragglers=[{link: node 1 nic 0 out, slowdown: 20}]",),
        )
    )
    assert none == pytest.approx(sound, rel=1e-12)
    assert slow > 1.5 * sound


def test_nodes_of_several_types_compute_and_hold_what_their_devices_do(write, capsys) -> None:
    """Each row has its device's memory; the slower type sets the pace; capacity is that of the smallest."""
    path = write(SMALL)
    mixed = (
        "cluster.topology={nodes: [{count: 1, type: hgx-h100}, {count: 1, type: dgx-a100-40g}], fabric: {kind: switch}}"
    )
    scenario = load_scenario(path, [mixed])
    assert scenario.cluster.node_types == (("hgx-h100", 1), ("dgx-a100-40g", 1))
    result = simulate(scenario)
    capacities = {role["first_rank"] // 8: role["memory_capacity_bytes"] for role in result.as_json()["roles"]}
    assert capacities[0] > capacities[1] == result.as_json()["memory_capacity_bytes"]
    assert fullest_row(result.summary)[1] == capacities[1]
    assert result.run.makespan_s > step_s(path)
    busy = {role["first_rank"] // 8: role["busy_s"]["compute"] for role in result.as_json()["roles"]}
    assert busy[1] > 1.2 * busy[0]


def test_jitter_is_seeded_and_per_device(write) -> None:
    """Equal seeds give equal times, other seeds others; all ranks are simulated; the mean factor is 1."""
    path = write(SMALL)
    jitter = "cluster.jitter={gemm: 0.2, elementwise: 0.1}"
    one, same, other = (
        simulate(load_scenario(path, [jitter, f"seed={seed}"])) for seed in (1, 1, 2)
    )  # fmt: skip
    assert one.run.makespan_s == same.run.makespan_s != other.run.makespan_s
    assert json.dumps(one.as_json()["roles"]) == json.dumps(same.as_json()["roles"])
    assert one.as_json()["fold"] == {"ranks": 16, "simulated": 16}
    variation = load_scenario(path, [jitter]).pricing().variation
    factors = [variation.slowdown("gemm", rank) for rank in range(4000)]
    assert sum(factors) / 4000 == pytest.approx(1, abs=0.02)
    assert simulate(load_scenario(path, ["cluster.jitter={gemm: 0}"])).as_json()["fold"]["simulated"] == 1


def test_algorithm_is_forced_by_kind(write) -> None:
    """The tree's traffic differs from the ring's; kinds that are not named stay with the library."""
    path = write(SMALL)
    times = {name: step_s(path, f"network.algorithm.all_reduce={name}") for name in ("auto", "ring", "direct")}
    assert times["direct"] != times["ring"]
    assert times["auto"] in {times["ring"], step_s(path)}
    scenario = load_scenario(path, ["network.algorithm.all_reduce=tree"])
    assert scenario.pricing().algorithms == {"all_reduce": "tree"}


def test_explicit_collectives_follow_the_scenario(write) -> None:
    """``--collectives explicit`` takes the algorithm that the scenario names, unless the option names another."""
    scenario = load_scenario(write(SMALL), ["network.algorithm.all_reduce=tree"])
    plan = plan_of(scenario)
    assert chosen_algorithms("explicit", plan, scenario.algorithms)["all_reduce"] == "tree"
    assert chosen_algorithms("explicit:ring", plan, scenario.algorithms)["all_reduce"] == "ring"
    assert chosen_algorithms("native", plan, scenario.algorithms) is None


@pytest.mark.parametrize(
    ("override", "key", "rule", "remedy"),
    [
        ("cluster.topology=superpod-h10", "cluster.topology", "no topology 'superpod-h10'", "superpod-h100"),
        ("cluster.topology=7", "cluster.topology", "a name or a mapping", "superpod-h100"),
        ("cluster.topology={nodes: hgx-h100}", "cluster.topology.fabric", "need a network", "switch"),
        ("cluster.node=dgx-a100-80g", "cluster.node", "topology's nodes are hgx-h100", "leave it out"),
        ("cluster.topology=superpod-a100", "cluster.topology", "does not say which devices", "add node:"),
        ("cluster.devices_per_node=9", "cluster.devices_per_node", "a hgx-h100 has 8", "at most 8"),
        ("cluster.stragglers=[{device: 16, slowdown: 2}]", "cluster.stragglers[0].device", "no device 16", "0 to 15"),
        ("cluster.stragglers=[{device: gpu 1, slowdown: 2}]", "cluster.stragglers[0].device", "no device", "gpu 1"),
        ("cluster.stragglers=[{link: nic, slowdown: 2}]", "cluster.stragglers[0].link", "no link", "did you mean"),
        ("cluster.stragglers=[{slowdown: 2}]", "cluster.stragglers[0]", "a device or a link", "one of"),
        ("cluster.stragglers=[{device: 1, slowdown: 0.5}]", "cluster.stragglers[0].slowdown", "at least 1", "1"),
        ("cluster.stragglers=[{device: 1, slow: 2}]", "cluster.stragglers[0].slow", "unknown key", "slowdown"),
        ("cluster.stragglers=[{device: true, slowdown: 2}]", "cluster.stragglers[0].device", "number or a name", "17"),
        ("cluster.jitter={gem: 0.1}", "cluster.jitter.gem", "unknown key", "gemm"),
        ("cluster.jitter={gemm: -0.1}", "cluster.jitter.gemm", "at least 0", "at least 0"),
        ("network.algorithm.all_reduce=rng", "network.algorithm.all_reduce", "no algorithm 'rng'", "ring"),
        ("network.algorithm.gather=ring", "network.algorithm.gather", "unknown key", "all_gather"),
    ],
)  # fmt: skip
def test_broken_rules_name_key_and_remedy(write, override: str, key: str, rule: str, remedy: str) -> None:
    """Whatever is wrong with a cluster is said with its key, the rule and what to write."""
    with pytest.raises(ScenarioError) as caught:
        load_scenario(write(SMALL), [override])
    assert caught.value.key == key
    assert rule in caught.value.rule
    assert remedy in caught.value.remedy


def test_nothing_says_the_nodes(write) -> None:
    """A cluster without node and topology is refused at its own line."""
    with pytest.raises(ScenarioError, match="the key is required and missing") as caught:
        load_scenario(write(SMALL.replace("topology: superpod-h100, ", "")))
    assert "topology" in caught.value.remedy


def test_nodes_of_unequal_size_need_a_number_of_devices(write) -> None:
    """Where node types have 8 and 16 devices, the file has to say how many of each are used."""
    mixed = "cluster.topology={nodes: [{count: 1, type: hgx-h100}, {count: 1, type: dgx-2}], fabric: {kind: switch}}"
    path = write(SMALL)
    with pytest.raises(ScenarioError, match="nodes have 8 to 16 devices"):
        load_scenario(path, [mixed])
    assert load_scenario(path, [mixed, "cluster.devices_per_node=8"]).cluster.world_size == 16


def test_console_names_classes_by_their_first_rank(write, capsys) -> None:
    """A role with several classes has a row for each, named by role and first rank."""
    scenario = load_scenario(write(SMALL), ["cluster.stragglers=[{device: 11, slowdown: 3}]"])
    print_blocks(simulate(scenario).blocks(drawn=False), Console(width=120))
    shown = capsys.readouterr().out
    assert "rank 11" in shown
    assert "classes" not in shown
