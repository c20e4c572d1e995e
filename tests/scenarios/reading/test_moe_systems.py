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
