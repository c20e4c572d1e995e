"""A search again under other conditions: less and more memory, a slower and a faster network."""

from pathlib import Path

import pytest

from scenarios.console.blocks import print_blocks
from scenarios.console.terminal import open_console
from scenarios.errors import ScenarioError
from scenarios.planning.page import plan_blocks
from scenarios.planning.request import Request
from scenarios.planning.resources import Resources
from scenarios.planning.search import search
from scenarios.summaries.planning import PlanSummary
from scenarios.sweep.workers import ThisProcess

HERE = Resources(ThisProcess())
KEYS = [
    "parallel.tensor.degree=2", "parallel.pipeline.schedule=1f1b",
    "training.recompute=none", "training.microbatch_size=1",
]  # fmt: skip
CONDITIONS = ["memory 0.75x", "memory 1.25x", "network bandwidth 0.5x", "network bandwidth 2x"]
SCENARIO = """
name: small
seed: 0
cluster: {node: hgx-h100, num_nodes: 1}
model: {family: gpt, num_layers: 4, hidden_size: 4096, num_heads: 32, vocab_size: 8192, sequence_length: 2048}
training: {global_batch_size: 16}
software: {memory_reserve: 74.0 GiB}
"""


@pytest.fixture(scope="module")
def scenario(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that needs most of the memory that is left."""
    path = tmp_path_factory.mktemp("sensitivity") / "small.yaml"
    path.write_text(SCENARIO, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def summary(scenario: Path) -> PlanSummary:
    """The search, with those under other conditions."""
    return search(scenario, KEYS, Request(planner="exhaustive", sensitivity=True), HERE).summary


def test_other_conditions_are_searched(summary: PlanSummary) -> None:
    """More memory and a faster network are no worse, less are no better; no plan is faster than the fastest."""
    best_s = summary.plans[0].iteration_time_s
    assert [shifted.condition for shifted in summary.sensitivity] == CONDITIONS
    times_s = [shifted.iteration_time_s for shifted in summary.sensitivity]
    less, more, slower, faster = (time_s for time_s in times_s if time_s is not None)
    assert more <= best_s <= less
    assert faster < best_s < slower
    for shifted in summary.sensitivity:
        assert shifted.iteration_time_s is not None
        assert (shifted.kept_iteration_time_s or float("inf")) >= shifted.iteration_time_s


def test_they_are_what_a_search_of_the_changed_scenario_finds(scenario: Path, summary: PlanSummary) -> None:
    """On half the bandwidth, a search that is given it finds the same plan and the same times."""
    slow = search(scenario, [*KEYS, "cluster.network.bandwidth=0.5x"], Request(planner="exhaustive"), HERE).summary
    (shifted,) = [found for found in summary.sensitivity if found.condition == CONDITIONS[2]]
    assert (shifted.set, shifted.iteration_time_s) == (slow.plans[0].set, slow.plans[0].iteration_time_s)
    (kept,) = [plan for plan in slow.plans if plan.set == summary.plans[0].set]
    assert shifted.kept_iteration_time_s == kept.iteration_time_s


def test_the_answer_says_what_changes(summary: PlanSummary, capsys: pytest.CaptureFixture[str]) -> None:
    """The table has a row for each condition."""
    print_blocks(plan_blocks(summary), open_console(plain_width=1_000))
    output = capsys.readouterr().out
    assert all(f"\n{condition}" in output for condition in CONDITIONS)


def test_plans_with_strategies_of_layers_are_not_searched_again(scenario: Path) -> None:
    """Other planners are refused, with what to do."""
    with pytest.raises(ScenarioError, match=r"--sensitivity.*galvatron are not searched again"):
        search(scenario, KEYS, Request(planner="galvatron", sensitivity=True), HERE)
