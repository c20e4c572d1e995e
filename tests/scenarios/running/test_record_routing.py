"""The routing of a real run is recorded, and forces the same plan again."""

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from scenarios.command_line import group
from scenarios.errors import ScenarioError
from scenarios.workloads.executing import ExecutionOptions
from scenarios.workloads.loading import load_step
from scenarios.workloads.steps.executing.execution import run
from scenarios.workloads.steps.running import plan_of
from sim.moe.routing_file import read_routing
from sim.plan.facts.description import collective_bytes
from sim.plan.words.op import Collective
from sim.plan.words.program import Plan
from sim.training.spec.job import TrainingJob

TINY = Path(__file__).parents[3] / "scenarios" / "library" / "tiny-moe-uneven.yaml"
TWO = ("cluster.devices_per_node=2", "parallel.data.degree=2", "parallel.expert.degree=2", "model.num_layers=1")


def exchanged(plan: Plan) -> list[list[tuple[object, ...]]]:
    """Return name, sizes and bytes of all collectives of every program."""
    return [
        [(op.name, op.sizes, collective_bytes(program, op)) for task in program.tasks.values() for op in task.ops
         if isinstance(op, Collective)]
        for program in plan.programs
    ]  # fmt: skip


def test_a_recorded_run_is_forced_again(tmp_path: Path) -> None:
    """The file holds the choices of all ranks; with it the plan exchanges the same rows, op by op, rank by rank."""
    scenario = load_step(TINY, TWO)
    found = run(scenario, ExecutionOptions(record_routing=tmp_path / "routing.csv", timing="op"))
    assert found is not None
    assert found.summary.work is not None
    assert found.summary.work.same_work
    recorded = read_routing(tmp_path / "routing.csv")
    assert recorded.steps.tolist() == [0, 1, 2, 3]  # eight sequences on two ranks, one by one
    trace = f"model.experts.routing={{trace: {tmp_path / 'routing.csv'}, step: 3}}"
    again = load_step(TINY, (*TWO, trace))
    forced, read = (s.job.routing for s in (scenario, again) if isinstance(s.job, TrainingJob))
    assert forced is not None
    assert read is not None
    assert np.array_equal(forced.counts, read.counts)
    assert exchanged(plan_of(again)) == exchanged(plan_of(scenario))


def test_a_file_that_cannot_be_written_is_refused_before_the_run(tmp_path: Path) -> None:
    """A folder of this name, or a file in the place of its folder, is named with the option."""
    (tmp_path / "file").touch()
    for name in (tmp_path, tmp_path / "file" / "a.csv"):
        ran = CliRunner().invoke(group, ["execute", str(TINY), "--record-routing", str(name)])
        assert ran.exit_code == 2
        assert "error: --record-routing " in ran.output
        assert "not a file" in ran.output or "not a directory" in ran.output


def test_what_has_no_routing_is_not_recorded(tmp_path: Path) -> None:
    """A model without experts is refused before anything runs."""
    tiny = load_step(TINY.with_name("tiny-gpt-2x2.yaml"), ())
    with pytest.raises(ScenarioError, match="the scenario has no experts"):
        run(tiny, ExecutionOptions(record_routing=tmp_path / "routing.csv"))
