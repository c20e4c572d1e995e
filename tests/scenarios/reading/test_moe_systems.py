"""Systems for mixtures of experts: named sets of keys."""

from pathlib import Path

import pytest

from scenarios.errors import ScenarioError
from scenarios.reading.models.moe_systems import load_moe_systems
from scenarios.workloads.loading import load_scenario
from scenarios.workloads.steps.running import simulate
from scenarios.workloads.training.scenario import TrainingScenario

EXPERTS = "  experts: {num_experts: 8, top_k: 1, gate: switch, ffn_hidden_size: 32, routing: balanced}\n"
SCENARIO = f"""\
name: experts
cluster: {{node: local-cpu, num_nodes: 2, devices_per_node: 2}}
model:
  family: gpt
  num_layers: 1
  hidden_size: 32
  num_heads: 4
  sequence_length: 64
  vocab_size: 64
{EXPERTS}training: {{global_batch_size: 4, microbatch_size: 1, precision: fp32}}
parallel: {{data: {{degree: 4}}, expert: {{degree: 4}}}}
moe: {{system: deepspeed}}
"""


def load(path: Path, *overrides: str) -> TrainingScenario:
    """Return a scenario of a training step."""
    found = load_scenario(path, list(overrides))
    assert isinstance(found, TrainingScenario)
    return found


def test_a_system_is_the_keys_that_it_stands_for(write, tmp_path: Path) -> None:
    """Every system is simulated, and its step is that of the scenario with its keys written out."""
    named_path, plain_path = tmp_path / "named.yaml", write(SCENARIO, ("moe: {system: deepspeed}\n", ""))
    named_path.write_text(SCENARIO, encoding="utf-8")
    for name, system in load_moe_systems().items():
        keys = [f"moe.system={name}"]
        written = [f"network.algorithm.{k}={v}" for k, v in system.keys["network"]["algorithm"].items()]
        written += [f"model.experts.{k}={v}" for k, v in system.keys["model"]["experts"].items()]
        written += [f"software.{k}={str(v).lower()}" for k, v in system.keys["software"].items()]
        named, stated = load(named_path, *keys), load(plain_path, *written)
        assert (named.job, named.algorithms, named.software) == (stated.job, stated.algorithms, stated.software)
        assert simulate(named).summary.iteration_time_s > 0.0


def test_keys_of_the_scenario_win_over_those_of_a_system(write) -> None:
    """A stated key replaces the system's, one by one."""
    found = load(write(SCENARIO), "model.experts.permutation=indexed", "network.algorithm.all_to_all=bruck")
    experts = found.job.model.experts
    assert experts is not None
    assert (experts.permutation, experts.capacity_rule) == ("indexed", "deepspeed")
    assert found.algorithms["all_to_all"] == "bruck"


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (("system: deepspeed", "system: hetumo"), "hetumoe"),
        ((", routing: balanced", ", dispatch: exact"), "exact"),
        ((EXPERTS, ""), "no experts"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_with_its_key(write, change: tuple[str, str], what: str) -> None:
    """Unknown systems, keys of the scenario that a system's own do not go with, and models without experts."""
    with pytest.raises(ScenarioError, match=what) as refusal:
        load(write(SCENARIO, change))
    assert "my.yaml" in str(refusal.value)


def test_slots_are_refused_where_rows_follow_choices(write) -> None:
    """With exact sizes nothing reads how slots are counted; what a system writes of it is a default."""
    exact = SCENARIO.replace("routing: balanced", "routing: balanced, dispatch: exact").replace("deepspeed", "tutel")
    assert load(write(exact)).job.model.experts.capacity_rule == "even_share"  # not that of tutel
    for key, value in (("capacity_factor", "1.0"), ("capacity_rule", "tutel")):
        path = write(exact, ("dispatch: exact", f"dispatch: exact, {key}: {value}"))
        with pytest.raises(
            ScenarioError, match=rf"(?s)my.yaml:10: model.experts.{key}: it counts slots.*leave it out, or"
        ):
            load(path)
    with pytest.raises(ScenarioError, match=r"(?s)--set model.experts.capacity_factor=2: .* leave it out, or write"):
        load(write(exact), "model.experts.capacity_factor=2")


def test_tokens_are_not_sent_to_more_nodes_than_experts_lie_on(write) -> None:
    """The nodes are those of the cluster on which the ranks lie that share out experts."""
    exact = SCENARIO.replace("routing: balanced", "routing: balanced, dispatch: exact").replace("deepspeed", "megatron")
    path = write(exact.replace("num_nodes: 2, devices_per_node: 2", "num_nodes: 2, devices_per_node: 4"))
    eight = ["parallel.data.degree=8", "training.global_batch_size=8", "parallel.expert.degree=8"]
    assert load(path, *eight, "parallel.expert.nodes=2").job.parallel.expert_nodes == 2
    with pytest.raises(
        ScenarioError, match=r"the 8 ranks that share out experts lie on 2 nodes of 4 devices;\s+write 2"
    ):
        load(path, *eight, "parallel.expert.nodes=4")
    with pytest.raises(
        ScenarioError, match=r"the 4 ranks that share out experts lie on 1 node of 4 devices;\s+leave it"
    ):
        load(path, *eight[:2], "parallel.expert.degree=4", "parallel.expert.nodes=2")
