"""Experts that a policy moves from step to step, as a scenario states them."""

from pathlib import Path
from typing import Any

import pytest

from scenarios.errors import ScenarioError
from scenarios.report.pages.placement_section import placement_section
from scenarios.report.rendering.notebook import notebook_html
from scenarios.workloads.executing import ExecutionOptions
from scenarios.workloads.loading import load_scenario
from scenarios.workloads.steps.executing.execution import ExecutedStep
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
    simulated = TrainingStep().simulate(load(write, "model.experts.placement.steps=5"))
    found, placement = simulated.summary, simulated.summary.placement
    assert placement is not None
    assert simulated.row().mean_iteration_time_s == placement.mean_time_s
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
    assert "data:image/png" in notebook_html([placement_section(placement)])


TINY = (
    "cluster={node: local-cpu, num_nodes: 1, devices_per_node: 2}", "model.hidden_size=16", "model.num_heads=2",
    "model.sequence_length=8", "model.vocab_size=32", "model.experts.num_experts=4", "model.experts.ffn_hidden_size=8",
    "model.experts.placement.threshold=1.1", "model.experts.placement.steps=4",
    "training={global_batch_size: 8, microbatch_size: 2, precision: fp32}",
    "parallel={data: {degree: 2}, expert: {degree: 2}}",
)  # fmt: skip
"""Small enough to execute, on two ranks."""
DRIFT = "model.experts.routing={skew: {zipf: 1.5, swap_probability: 0.9, fluctuation: 0.6, memory_steps: 2.0}}"


def test_all_steps_are_executed_and_a_recording_of_them_is_decided_alike(write, tmp_path: Path) -> None:
    """Every step passes the check, with simulated decisions and work; so do those simulated from the recorded routing.

    A recording of four steps has no fifth one.
    """
    scenario = load(write, *TINY, DRIFT)
    file = tmp_path / "routing.csv"
    found = TrainingStep().execute(scenario, ExecutionOptions(check=True, record_routing=file))
    assert isinstance(found, ExecutedStep)
    placement = found.summary.placement
    assert placement is not None
    assert found.passed
    assert placement.same_decisions
    assert placement.same_work
    assert any(step.num_arriving for step in placement.steps)
    assert found.summary.check is not None
    checked = found.summary.check.checked_tensors
    assert checked > 4 * 2 * 20  # steps, ranks, and tensors at least
    trace = f"model.experts.routing={{trace: {file}}}"
    again = TrainingStep().simulate(load(write, *TINY, trace)).summary.placement
    assert again is not None
    for ours, theirs in zip(placement.steps, again.steps, strict=True):
        assert (ours.num_copies, ours.num_arriving, ours.num_changes) == (
            theirs.num_copies, theirs.num_arriving, theirs.num_changes,
        )  # fmt: skip
    with pytest.raises(ScenarioError, match=r"write placement\.steps: 4, or name a longer file"):
        load(write, *TINY, trace, "model.experts.placement.steps=5")


def test_shadows_balance_every_step_on_their_own(write) -> None:
    """Each step shadows the hottest experts of its own counts; no copy stays, and none travels before."""
    fast = (
        "model.experts.placement={policy: fastermoe, steps: 2}",
        "cluster.num_nodes=2",
        "cluster.devices_per_node=2",
    )
    found = TrainingStep().simulate(load(write, *fast)).summary
    placement = found.placement
    assert placement is not None
    for step in placement.steps:
        assert step.num_copies == 8 + 3 * step.num_changes > 8
        assert (step.num_arriving, step.search_s) == (0, 0.0)
        assert step.rank_max_over_mean < step.fixed_max_over_mean
    assert (placement.slots, placement.sums_error) == (None, None)
    assert found.iteration_time_s == pytest.approx(placement.steps[-1].duration_s, rel=1e-9)


def test_steps_as_sums_end_with_one_by_the_engine(write) -> None:
    """The decisions are those of steps by the engine, and the last step's sum is as long as the engine says."""
    sums, engine = (
        TrainingStep()
        .simulate(load(write, f"model.experts.placement={{steps: 3, every: 2, step_times: {by}}}"))
        .summary
        for by in ("sums", "engine")
    )
    assert sums.placement is not None
    assert engine.placement is not None
    assert abs(sums.placement.sums_error or 1.0) < 2e-3
    keys = "model.experts.placement={steps: 3, step_times: sums, in_full: first}"
    first = TrainingStep().simulate(load(write, keys)).summary
    assert first.placement is not None
    assert first.iteration_time_s == pytest.approx(first.placement.steps[0].duration_s, rel=0.01)
    assert engine.placement.sums_error is None
    for ours, theirs in zip(sums.placement.steps, engine.placement.steps, strict=True):
        assert ours.duration_s == pytest.approx(theirs.duration_s, rel=2e-3)
        assert (ours.num_copies, ours.num_changes, ours.search_s) == (
            theirs.num_copies, theirs.num_changes, theirs.search_s,
        )  # fmt: skip


@pytest.mark.parametrize(
    ("option", "name"), [({"steps": 5}, "--steps"), ({"calibrate": "5 s"}, "--calibrate")], ids=["steps", "calibrate"]
)
def test_options_of_one_plan_are_refused(write, option: dict[str, Any], name: str) -> None:
    """A run of steps that differ is neither repeated nor calibrated."""
    with pytest.raises(ScenarioError, match=name):
        TrainingStep().execute(load(write, *TINY), ExecutionOptions(**option))


def test_decisions_before_a_run_are_those_of_its_steps(write) -> None:
    """What an execution and advice build on is what the policy decides in the session."""
    scenario = load(write, "model.experts.placement.steps=3")
    found = TrainingStep().simulate(scenario)
    assert isinstance(found.scenario, TrainingScenario)
    assert found.scenario.placed == placements_of(scenario.dense_job, scenario.pricing())[-1]
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
