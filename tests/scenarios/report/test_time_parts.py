"""Where the time goes, of scenarios with experts and recomputation of all kinds: whole, and told by what ops are."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scenarios.report.causes import COMPUTATION
from scenarios.report.words import time_parts
from scenarios.summaries.steps.step import StepSummary
from scenarios.workloads.loading import load_scenario
from scenarios.workloads.steps.running import simulate

SCENARIO = """\
name: experts
seed: 0
cluster: {node: hgx-h100, num_nodes: 1}
model: {family: llama, num_layers: 4, hidden_size: 4096, num_heads: 32, sequence_length: 4096, vocab_size: 32000,
        ffn_hidden_size: 11008}
training: {global_batch_size: 16, microbatch_size: 1, precision: bf16, recompute: none}
parallel:
  tensor: {degree: 2}
  pipeline: {degree: 2, schedule: 1f1b}
  data: {degree: 2, zero_stage: 1}
"""
SCHEDULES = {
    "gpipe": 1, "1f1b": 1, "interleaved_1f1b": 2, "breadth_first": 2, "zb_h1": 1, "zb_h2": 1, "zb_v": 2,
    "dualpipe_v": 2, "chimera": 1, "dualpipe": 1,
}  # fmt: skip
"""Schedules with backwards whole and split, and the virtual stages that each wants."""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a scenario on 2 x 2 x 2 devices."""
    path = tmp_path_factory.mktemp("time_parts") / "experts.yaml"
    path.write_text(SCENARIO, encoding="utf-8")
    return path


def parts_of(summary: StepSummary) -> dict[str, float]:
    """Return the step table's parts, in words, as fractions of the step."""
    return {words: seconds / summary.iteration_time_s for (words, _), seconds in time_parts(summary)}


@st.composite
def overrides(draw: Any) -> tuple[str, ...]:
    """Draw experts, or none, recomputation and a schedule."""
    schedule = draw(st.sampled_from(sorted(SCHEDULES)))
    changes = [
        f"parallel.pipeline={{degree: 2, schedule: {schedule}, virtual_stages: {SCHEDULES[schedule]}}}",
        f"training.recompute={draw(st.sampled_from(['none', 'selective', 'full']))}",
        f"parallel.tensor.sequence_parallel={draw(st.sampled_from(['true', 'false']))}",
    ]
    if draw(st.integers(0, 3)):
        factor, top_k = draw(st.sampled_from([0.1, 0.25, 1.0, 1.25, 4.0])), draw(st.integers(1, 4))
        experts = f"num_experts: 8, top_k: {top_k}, ffn_hidden_size: 2048, capacity_factor: {factor}"
        changes += [f"model.experts={{{experts}}}"]
        changes += [f"parallel.expert.degree={draw(st.sampled_from([1, 2]))}"]
    return tuple(changes)


@settings(max_examples=12)
@given(changes=overrides())
def test_the_step_divides_into_what_it_is_for(path: Path, changes: tuple[str, ...]) -> None:
    """All parts are between 0 and the step, and add up to it; nothing is recomputed where nothing was asked for.

    MFU is at most HFU, and that at most 1.
    """
    scenario = load_scenario(path, changes)
    summary = simulate(scenario).summary
    parts = parts_of(summary)
    assert sum(parts.values()) == pytest.approx(1.0, rel=1e-9)
    assert all(0.0 < part < 1.0 for part in parts.values())
    assert (COMPUTATION["recomputed"][0] in parts) == (scenario.job.training.recompute != "none")
    assert 0.0 < summary.mfu <= summary.hfu * (1 + 1e-12) < 1.0
    for role in summary.roles:
        assert sum(role.computing_s.values()) == pytest.approx(role.busy_s["compute"], rel=1e-9)


@pytest.mark.parametrize(("capacity_factor", "executed"), [(0.25, 1.0), (1.0, 1.0), (4.0, 4.0)])
def test_empty_slots_are_neither_model_nor_recomputation(path: Path, capacity_factor: float, executed: float) -> None:
    """With four times as many slots as tokens, three quarters of the experts' work is on empty ones, not in the MFU."""
    experts = f"num_experts: 8, top_k: 2, ffn_hidden_size: 11008, capacity_factor: {capacity_factor}"
    summary = simulate(load_scenario(path, [f"model.experts={{{experts}}}", "parallel.expert.degree=2"])).summary
    parts, model = parts_of(summary), 4096 * 4096 * 4 + 4096 * 4096 * 2 + 4096 * 32000 / 4
    reached = 2 * min(capacity_factor, 1.0)
    needed = model + 4096 * 8 + reached * 3 * 4096 * 11008
    done = model + 2 * 4096 * 8 + reached * executed * 3 * 4096 * 11008
    assert summary.mfu / summary.hfu == pytest.approx(needed / done, rel=1e-9)
    assert (COMPUTATION["empty_slots"][0] in parts) == (executed > 1.0)
    assert COMPUTATION["recomputed"][0] not in parts
    assert parts["computing"] < 1.0
