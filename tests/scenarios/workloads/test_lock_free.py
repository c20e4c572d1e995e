"""Training scenarios whose update on drives goes at its own pace."""

import pytest

from scenarios.library.shipped import FOLDER
from scenarios.summaries.steps.step import StepSummary
from scenarios.workloads.executing import ExecutionOptions
from scenarios.workloads.loading import load_scenario
from tests.scenarios.refusing import refuse

PATH = FOLDER / "papers" / "angel-ptm-gpt-29b-8-a100.yaml"
DRIVES = "memory.tiers={nvme: {capacity: 11 TB, bandwidth: 3.5 GB/s}}"
TINY = """\
name: tiny
cluster: {node: local-cpu, num_nodes: 1, devices_per_node: 1}
model: {family: gpt, num_layers: 2, hidden_size: 16, num_heads: 2, sequence_length: 8, vocab_size: 32}
training: {global_batch_size: 2, microbatch_size: 2, precision: fp32}
parallel: {data: {degree: 1, zero_stage: 3}}
memory: {manager: angel_ptm, update: lock_free, tiers: {nvme: {capacity: 1 GB, bandwidth: 1 GB/s}}}
"""
FEW = ("model.num_layers=3", "memory.cached=1 GB", DRIVES, "memory.update=lock_free")


def summary_with(*overrides: str) -> StepSummary:
    """Return the summary of a shipped scenario with few layers."""
    scenario = load_scenario(PATH, (*FEW, *overrides))
    return scenario.workload.simulate(scenario).summary


def test_steps_that_wait_for_the_update_are_those_of_the_plan() -> None:
    """With no staleness the two paces make the step that the plan of a synchronous step takes, op by op."""
    found = summary_with("memory.max_staleness=0")
    assert found.lock_free.iteration_time_s == pytest.approx(found.iteration_time_s, rel=5e-3)
    assert found.lock_free.most_staleness == 0


def test_free_steps_take_their_passes_alone() -> None:
    """Without a bound a step is its forwards and backwards; an update applies as many as a sweep takes."""
    found = summary_with().lock_free
    assert found.iteration_time_s == pytest.approx(found.passes_s)
    assert found.gradients_per_update == pytest.approx(found.sweep_s / found.passes_s, rel=0.05)


@pytest.mark.parametrize(
    ("memory", "key"),
    [
        ("memory={manager: deepspeed, update: lock_free}", "memory.update"),
        ("memory={manager: angel_ptm, update: lock_free}", "memory.update"),
        ("memory={manager: angel_ptm, max_staleness: 1}", "memory.max_staleness"),
    ],
)
def test_keys_that_do_not_go_together_are_refused(memory: str, key: str, tmp_path, capsys) -> None:
    """An update of its own pace needs angel_ptm and drives, and a bound needs such an update."""
    assert key in refuse(capsys, tmp_path, str(PATH), "--set", memory)


def test_a_training_is_executed_and_checked(tmp_path) -> None:
    """With no staleness it is synchronous training; else its weights are those of the same updates in one thread."""
    path = tmp_path / "tiny.yaml"
    path.write_text(TINY, encoding="utf-8")
    for bound in ("memory.max_staleness=0", "memory.max_staleness=2"):
        scenario = load_scenario(path, (bound,))
        found = scenario.workload.execute(scenario, ExecutionOptions(check=True, steps=4)).summary
        assert found.num_made == found.num_applied > 4
        assert found.differing_weights == 0
        assert found.most_staleness <= found.max_staleness
        assert found.passed
        assert (found.max_relative_error is None) == (found.max_staleness > 0)
