"""In-network reduction from the scenario: the key of the fabric, the forced algorithm, and what is refused."""

import json

import pytest

from scenarios.cli import main
from scenarios.errors import ScenarioError
from scenarios.workloads.loading import load_scenario
from scenarios.workloads.steps.executing.collectives import chosen_algorithms
from scenarios.workloads.steps.running import plan_of, simulate

SCENARIO = """\
name: replicas
cluster:
  topology:
    nodes: hgx-h100
    fabric: {kind: switch, in_network_reduction: true}
  num_nodes: 4
model: {family: gpt, num_layers: 2, hidden_size: 512, num_heads: 8, sequence_length: 128, vocab_size: 1024}
training: {global_batch_size: 32, microbatch_size: 1}
parallel: {tensor: {degree: 1}, data: {degree: auto}}
network: {algorithm: {all_reduce: auto}}
"""
FORCED = "network.algorithm.all_reduce={}"


def step_s(path, *overrides: str) -> float:
    """Return the time of a step."""
    return simulate(load_scenario(path, overrides)).run.makespan_s


def test_the_key_lets_the_library_reduce_in_the_network(write) -> None:
    """Forced and chosen algorithms differ from the ring's time; without the key nothing does."""
    path = write(SCENARIO)
    plain = "cluster.topology.fabric.in_network_reduction=false"
    times = {name: step_s(path, FORCED.format(name)) for name in ("ring", "collnet_direct", "collnet_chain")}
    assert len(set(times.values())) == 3
    assert step_s(path) <= min(times.values()) * (1 + 1e-9)
    assert step_s(path, plain) == step_s(path, plain, "cluster.topology.fabric={kind: switch}")


def test_tensor_groups_inside_nodes_are_left_to_the_library(write) -> None:
    """A forced CollNet is for groups between nodes; inside a node the same step as with auto."""
    path = write(SCENARIO)
    scenario = load_scenario(path, ["parallel.tensor.degree=8", FORCED.format("collnet_direct")])
    network = scenario.pricing().network
    inside, across = range(8), range(0, 32, 8)
    assert network.collective("all_reduce", 2**20, inside, "collnet_direct") == network.collective(
        "all_reduce", 2**20, inside
    )
    assert network.collective("all_reduce", 2**20, across, "collnet_direct") != network.collective(
        "all_reduce", 2**20, across, "ring"
    )
    assert simulate(scenario).run.makespan_s > 0


@pytest.mark.parametrize(
    ("overrides", "key", "rule", "remedy"),
    [
        (
            ("cluster.topology.fabric.in_network_reduction=false", FORCED.format("collnet_direct")),
            "network.algorithm.all_reduce",
            "collnet_direct needs switches between nodes that reduce, and this cluster has none",
            "in_network_reduction: true in cluster.topology.fabric",
        ),
        (
            ("cluster={node: hgx-h100, num_nodes: 4}", FORCED.format("collnet_chain")),
            "network.algorithm.all_reduce",
            "collnet_chain needs switches",
            "write auto",
        ),
        (
            ("cluster.topology.fabric.in_network_reduction=1",),
            "cluster.topology.fabric.in_network_reduction",
            "true or false belongs here, not 1",
            "without quotes",
        ),
        (
            ("cluster.topology.fabric={kind: torus, shape: [4], in_network_reduction: true}",),
            "cluster.topology.fabric.in_network_reduction",
            "unknown key",
            "known: kind, shape, link",
        ),
        (("network.algorithm.broadcast=collnet_direct",), "network.algorithm.broadcast", "no algorithm", "auto"),
        (("network.algorithm.all_gather=collnet_chain",), "network.algorithm.all_gather", "no algorithm", "collnet"),
        (
            (FORCED.format("in_switch"),),
            "network.algorithm.all_reduce",
            "all_reduce by in_switch over 8 ranks on each of 4 nodes: it needs 3 or more ranks on one node",
            "write auto",
        ),
        (
            ("cluster.topology.nodes=dgx-a100-80g", "parallel.tensor.degree=8", "cluster.num_nodes=1",
             "parallel.data.degree=1", FORCED.format("in_switch")),
            "network.algorithm.all_reduce",
            "over 8 ranks on 1 node: the nodes have no switch that reduces",
            "write auto",
        ),
    ],
)  # fmt: skip
def test_what_cannot_run_is_refused(write, overrides: tuple[str, ...], key: str, rule: str, remedy: str) -> None:
    """By file or option, key, rule and remedy, whether the switches or a group's size are in the way."""
    path = write(SCENARIO)
    with pytest.raises(ScenarioError) as caught:
        simulate(load_scenario(path, overrides))
    assert caught.value.key == key
    assert rule in caught.value.rule
    assert remedy in caught.value.remedy


def test_sweeps_list_what_a_group_cannot_do(write, capsys) -> None:
    """A point whose algorithm cannot serve a group is refused with its reason; the others are simulated."""
    path = write(SCENARIO)
    with pytest.raises(SystemExit) as caught:
        main(["sweep", str(path), "--set", "network.algorithm.all_reduce=ring,in_switch", "--jobs", "1", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert not caught.value.code
    assert [point["set"]["network.algorithm.all_reduce"] for point in found["points"]] == ["ring"]
    [refused] = found["refused"]
    assert "it needs 3 or more ranks on one node" in refused["reason"]


def test_explicit_collectives_refuse_what_a_switch_does(write, capsys) -> None:
    """Processes have no switch: a scenario's CollNet or NVLS is refused before anything starts, unless overridden."""
    path = write(SCENARIO)
    scenario = load_scenario(path, [FORCED.format("collnet_direct")])
    plan = plan_of(scenario)
    with pytest.raises(ScenarioError, match="no step list by 'collnet_direct' for processes: a switch computes in it"):
        chosen_algorithms("explicit", plan, scenario.algorithms)
    with pytest.raises(ScenarioError, match="no step list by 'in_switch' for processes"):
        chosen_algorithms("explicit:in_switch", plan)
    assert chosen_algorithms("explicit:ring", plan, scenario.algorithms)["all_reduce"] == "ring"
    assert chosen_algorithms("native", plan, scenario.algorithms) is None
    with pytest.raises(SystemExit) as caught:
        main(["execute", str(path), "--collectives", "explicit", "--set", FORCED.format("collnet_chain")])
    assert caught.value.code == 2
    assert "collnet_chain" in capsys.readouterr().err
