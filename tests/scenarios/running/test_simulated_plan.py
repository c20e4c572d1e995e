"""The plan that is simulated: stages that are equal but for names are written once, where nothing else needs them."""

import pytest

from scenarios.library.shipped import FOLDER
from scenarios.workloads.loading import load_scenario
from scenarios.workloads.steps.running import plan_of, run_plan, simulate, simulated_plan_of
from scenarios.workloads.steps.scenario import StepScenario

CHANGES = (
    "cluster.devices_per_node=4",
    "parallel.pipeline.degree=4",
    "model.num_layers=8",
    "model.tied_embeddings=false",
)


def piped(*changes: str) -> StepScenario:
    """Return a small scenario in a pipeline of four stages, changed."""
    found = load_scenario(FOLDER / "tiny-gpt-two-stages.yaml", [*CHANGES, *changes])
    assert isinstance(found, StepScenario)
    return found


def num_written(scenario: StepScenario) -> int:
    """Return how many programs of the simulated plan have tasks of their own."""
    return len({id(program.tasks) for program in simulated_plan_of(scenario).programs})


def test_stages_in_the_middle_are_written_once_and_simulated_alike() -> None:
    """Three of four stages are written, and a step of all four takes equally long."""
    scenario = piped()
    assert num_written(scenario) == 3
    assert simulate(scenario).summary.iteration_time_s == run_plan(scenario, plan_of(scenario)).iteration_time_s


@pytest.mark.parametrize(
    "change",
    [
        "reliability={duration: 1 d, mtbf_per_device: 20 h, checkpoint: {interval: auto, save: 9 s}, restart: 5 min}",
        "parallel.pipeline.schedule=pipedream_2bw",
    ],
)
def test_plans_that_are_written_on_or_otherwise_have_all_stages(change: str) -> None:
    """Saving beside a step writes more into its programs; steps with late gradients have their own builder."""
    assert num_written(piped(change)) == 4
