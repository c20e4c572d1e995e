"""Local updates run for real: the numbers of their own definition, and nothing else."""

import pytest
import torch

from backends.torch.launch import Execution
from backends.torch.local_reference import local_updates
from backends.torch.reference import run_reference
from backends.torch.timeline import timeline
from sim.engine.memory import memory_use
from tests.backends.local_runs import LOCAL, STEPS, WRONG
from tests.backends.test_execution import simulated, streams

CPU = torch.device("cpu")


@pytest.mark.parametrize("name", [*LOCAL, STEPS])
def test_plan_computes_what_local_updates_are(results: dict[str, Execution], name: str) -> None:
    """Losses, gradients and parameters of every block and head are within 1e-9 of detached blocks under autograd."""
    report = results[name].check
    assert report is not None
    assert report.tolerance == 1e-9
    assert report.passed, report.worst
    compared = {key.split(": ", 1)[1] for key in report.errors}
    assert {"loss", "auxiliary0.weight", "auxiliary0.norm.weight", "head.weight", "final_norm.weight"} <= compared


@pytest.mark.parametrize("name", WRONG)
def test_check_notices_what_is_not_the_definition(results: dict[str, Execution], name: str) -> None:
    """Another kind of update, a message or a sum left out, or a wrong gradient is far from the reference."""
    report = results[name].check
    assert report is not None
    assert not report.passed
    assert report.worst[1] > 1e-4


@pytest.mark.parametrize("name", LOCAL)
def test_executed_ops_and_memory_are_the_simulated_ones(results: dict[str, Execution], name: str) -> None:
    """The same ops in the same order per stream, and the same bytes at every call."""
    execution = results[name]
    real = timeline(execution.plan, execution.ranks)
    assert streams(real) == streams(simulated(execution.plan, LOCAL[name]))
    for result in execution.ranks:
        assert result.memory.peak_bytes == memory_use(execution.plan.program_of(result.rank)).peak_bytes


def test_updates_differ_from_each_other_and_from_backpropagation() -> None:
    """The first block's gradient is another one under each of the three: they are different algorithms."""
    greedy, overlapping = LOCAL["local, greedy, pp4"], LOCAL["local, overlapping, pp4"]
    gradients = [
        run_reference(greedy, 1, CPU, objective).gradients["layer0.fc1.weight"]
        for objective in (local_updates(greedy), local_updates(overlapping), None)
    ]
    for i, one in enumerate(gradients):
        for other in gradients[i + 1 :]:
            assert float((one - other).abs().max()) > 1e-3 * float(one.abs().max())


def test_last_block_learns_as_under_backpropagation_of_its_own() -> None:
    """The last block's gradients are those of the model's loss at the same weights: only its input is detached."""
    job = LOCAL["local, greedy, pp4"]
    one, other = (run_reference(job, 1, CPU, objective).gradients for objective in (local_updates(job), None))
    for name in ("layer3.qkv.weight", "final_norm.weight", "head.weight"):
        assert torch.allclose(one[name], other[name], rtol=1e-12, atol=0.0)
