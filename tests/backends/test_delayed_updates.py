"""PipeDream-2BW run for real, several steps in a row: the numbers of its own definition, and nothing else."""

import pytest
import torch

from backends.torch.launch import Execution
from backends.torch.reference import backpropagation, run_reference
from backends.torch.timeline import timeline
from sim.engine.memory import memory_use
from tests.backends.delayed_runs import DELAYED, TWO_RUNS, WRONG
from tests.backends.test_execution import simulated, streams

CPU = torch.device("cpu")


@pytest.mark.parametrize("name", [*DELAYED, TWO_RUNS])
def test_plan_computes_delayed_gradients(results: dict[str, Execution], name: str) -> None:
    """After 4 steps, and after 8 with a drained pipeline in between, both versions of all weights are within 1e-9."""
    report = results[name].check
    assert report is not None
    assert report.tolerance == 1e-9
    assert report.passed, report.worst
    compared = {key.split(": ", 1)[1] for key in report.errors}
    for buffer in ("layer0.fc1.weight", "head.weight"):
        assert {buffer, f"{buffer}.newest", f"{buffer}.gradient"} <= compared
    assert "loss" in compared


@pytest.mark.parametrize("name", WRONG)
def test_check_notices_what_is_not_the_definition(results: dict[str, Execution], name: str) -> None:
    """Synchronous training, one version too few or the wrong one, or a sum left out is far from the reference."""
    report = results[name].check
    assert report is not None
    assert not report.passed
    assert report.worst[1] > 1e-4


@pytest.mark.parametrize("name", DELAYED)
def test_executed_ops_and_memory_are_the_simulated_ones(results: dict[str, Execution], name: str) -> None:
    """The same ops in the same order per stream, and the same peak; the weights are there twice."""
    execution = results[name]
    real = timeline(execution.plan, execution.ranks)
    assert streams(real) == streams(simulated(execution.plan, DELAYED[name]))
    for result in execution.ranks:
        use = memory_use(execution.plan.program_of(result.rank))
        assert result.memory.peak_bytes == use.peak_bytes
        assert use.peak_by_kind_bytes["parameter"] == 2 * use.peak_by_kind_bytes["gradient"]


def test_reference_takes_gradients_one_step_late() -> None:
    """W(1) is that of synchronous training; both first gradients are taken at W(0), the third at W(1)."""
    job = DELAYED["2bw, pp4"]
    late = [run_reference(job, steps, CPU, backpropagation(job.model), delay=1) for steps in (1, 2, 3)]
    soon = [run_reference(job, steps, CPU) for steps in (1, 2)]
    name = "layer0.fc1.weight"
    assert torch.equal(late[0].parameters[name], soon[0].parameters[name])
    assert torch.equal(late[1].previous[name], late[0].parameters[name])
    assert not torch.allclose(late[1].gradients[name], soon[1].gradients[name], rtol=1e-6, atol=0.0)
    assert float(late[2].loss) != float(late[1].loss)
