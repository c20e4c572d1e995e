"""PipeDream-2BW: its reference, and its memory. Its runs are in ``test_other_algorithms.py``."""

from collections.abc import Mapping

import pytest
import torch

from backends.execution.result import Execution
from backends.torch.reference.dense import backpropagation, run_reference
from sim.engine.running.memory import memory_use
from tests.backends.delayed_runs import DELAYED

CPU = torch.device("cpu")


@pytest.mark.parametrize("name", DELAYED)
def test_weights_are_there_twice(results: Mapping[str, Execution], name: str) -> None:
    """Two versions of the weights, one of the gradients."""
    execution = results[name]
    for result in execution.ranks:
        by_kind = memory_use(execution.plan.program_of(result.rank)).peak_by_kind_bytes
        assert by_kind["parameter"] == 2 * by_kind["gradient"]


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
