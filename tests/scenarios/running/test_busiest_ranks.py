"""Scenarios in which all ranks have the rows of the busiest one: their summary, and what they cannot do."""

import pytest

from scenarios.errors import ScenarioError
from scenarios.library.shipped import FOLDER
from scenarios.workloads.executing import ExecutionOptions
from scenarios.workloads.loading import load_scenario
from scenarios.workloads.training.scenario import TrainingScenario
from scenarios.workloads.training.workload import TrainingStep


def loaded(rank_load: str) -> TrainingScenario:
    """Return a small scenario whose routing is uneven."""
    found = load_scenario(FOLDER / "tiny-moe-uneven.yaml", [f"model.experts.rank_load={rank_load}"])
    assert isinstance(found, TrainingScenario)
    return found


def test_the_summary_has_the_step_and_no_waiting() -> None:
    """The step takes as long as with a role for each rank, and says that no rank that waits was simulated."""
    own, busiest = (TrainingStep().simulate(loaded(load)).summary for load in ("own", "busiest"))
    assert busiest.iteration_time_s == pytest.approx(own.iteration_time_s, rel=1e-2)
    assert len(busiest.roles) < len(own.roles)
    assert own.routing is not None
    assert busiest.routing is not None
    assert own.routing.waiting_fraction
    assert busiest.routing.waiting_fraction is None
    assert busiest.routing.rank_max_over_mean == own.routing.rank_max_over_mean


def test_such_a_step_is_not_executed() -> None:
    """Ranks cannot get the rows of the busiest one from each other."""
    with pytest.raises(ScenarioError, match="write rank_load: own"):
        TrainingStep().execute(loaded("busiest"), ExecutionOptions())
