"""Experts that a policy moves from step to step, as a scenario states them."""

import pytest

from scenarios.errors import ScenarioError
from scenarios.workloads.loading import load_scenario
from scenarios.workloads.training.placing.decisions import placements_of
from scenarios.workloads.training.scenario import TrainingScenario
from scenarios.workloads.training.workload import TrainingStep

SCENARIO = """\
name: moving
cluster: {node: dgx-a100-80g, num_nodes: 1, devices_per_node: 4}
model:
  family: gpt
  num_layers: 1
  hidden_size: 512
  num_heads: 8
  sequence_length: 2048
  vocab_size: 512
  attention: flash
  dropout: 0.0
  experts: {num_experts: 8, top_k: 1, gate: switch, ffn_hidden_size: 4096, routing: {skew: {zipf: 1.5}}}
training: {global_batch_size: 32, microbatch_size: 8, precision: bf16}
parallel: {data: {degree: 4}, expert: {degree: 4}}
moe: {system: flexmoe}
"""


def load(write, *overrides: str) -> TrainingScenario:
    """Return the scenario with overrides."""
    found = load_scenario(write(SCENARIO), list(overrides))
    assert isinstance(found, TrainingScenario)
    return found


def test_steps_are_simulated_one_by_one_and_the_last_in_full(write) -> None:
    """Busy experts get copies, which balance the ranks; the step of the summary is the last of the rows."""
    found = TrainingStep().simulate(load(write, "model.experts.placement.steps=5")).summary
    placement = found.placement
    assert placement is not None
    assert found.routing is not None
    first, last = placement.steps[0], placement.steps[-1]
    assert (placement.slots, len(placement.steps), first.num_copies) == (4, 5, 8)
    assert first.rank_max_over_mean == first.fixed_max_over_mean
    assert last.rank_max_over_mean < 1.3 < last.fixed_max_over_mean
    assert found.routing.rank_max_over_mean == last.rank_max_over_mean
    assert found.iteration_time_s == pytest.approx(last.duration_s, rel=1e-9)
    assert last.duration_s < first.duration_s
    arrivals = [step for step in placement.steps if step.num_arriving]
    assert all(step.num_changes and step.search_s > 0.0 for step in arrivals)
    assert sum(last.expert_shares) == pytest.approx(1.0)


def test_decisions_before_a_run_are_those_of_its_steps(write) -> None:
    """What an execution and advice build on is what the policy decides in the session."""
    scenario = load(write, "model.experts.placement.steps=3")
    found = TrainingStep().simulate(scenario)
    assert isinstance(found.scenario, TrainingScenario)
    assert tuple(found.scenario.placements) == placements_of(scenario.dense_job, scenario.pricing())
    decided = scenario.decided()
    assert (decided.job, decided.decided()) == (found.scenario.job, decided)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("parallel={data: {degree: 2, zero_stage: 1}, expert: {degree: 2}, tensor: {degree: 2}}", "sharded"),
        ("parallel={data: {degree: 2}, expert: {degree: 2}, pipeline: {degree: 2}}", "not built with pipelines"),
        ("parallel.expert.degree=1", "one rank has all experts"),
        ("model.experts.placement.slots=1", "each of 4 ranks has 2 of 8 experts, and 1 slots"),
        ("model.experts.dispatch=slots", "slots are shared out in equal parts"),
        ("model.experts.placement.policy=flexmo", "flexmoe"),
    ],
)
def test_what_does_not_fit_is_refused(write, override: str, message: str) -> None:
    """Pipelines, sharded state, one rank, too few slots, padded dispatch, and an unknown policy name their key."""
    with pytest.raises(ScenarioError, match=message):
        load(write, *([override] if "model" in override else ["model.num_layers=2", override]))
