"""What is not backpropagation, run for real: the numbers of its own definition, and nothing else."""

from collections.abc import Mapping

import pytest

from backends.execution.result import Execution
from backends.torch.launching.timeline import timeline
from sim.engine.running.memory import memory_use
from tests.backends import delayed_runs, local_runs
from tests.backends.delayed_runs import DELAYED, TWO_RUNS
from tests.backends.local_runs import LOCAL, STEPS
from tests.backends.test_execution import simulated, streams

ONE_STEP = {**DELAYED, **LOCAL}
WEIGHTS = ("layer0.fc1.weight", "head.weight")
DELAYED_BUFFERS = {f"{name}{kind}" for name in WEIGHTS for kind in ("", ".newest", ".gradient")}
LOCAL_BUFFERS = {"auxiliary0.weight", "auxiliary0.norm.weight", "head.weight", "final_norm.weight"}
COMPARED = dict.fromkeys([*DELAYED, TWO_RUNS], DELAYED_BUFFERS) | dict.fromkeys([*LOCAL, STEPS], LOCAL_BUFFERS)


@pytest.mark.parametrize("name", COMPARED)
def test_plan_computes_what_the_algorithm_is(results: Mapping[str, Execution], name: str) -> None:
    """Losses, gradients and parameters (of delayed updates both versions) are within 1e-9 of torch's autograd.

    Also after several steps, and after a drained pipeline in between.
    """
    report = results[name].check
    assert report is not None
    assert report.tolerance == 1e-9
    assert report.passed, report.worst
    assert {"loss", *COMPARED[name]} <= {key.split(": ", 1)[1] for key in report.errors}


@pytest.mark.parametrize("name", [*delayed_runs.WRONG, *local_runs.WRONG])
def test_check_notices_what_is_not_the_definition(results: Mapping[str, Execution], name: str) -> None:
    """Another algorithm, a version or a message or a sum left out, or a wrong gradient is far from the reference."""
    report = results[name].check
    assert report is not None
    assert not report.passed
    assert report.worst[1] > 1e-4


@pytest.mark.parametrize("name", ONE_STEP)
def test_executed_ops_and_memory_are_the_simulated_ones(results: Mapping[str, Execution], name: str) -> None:
    """The same ops in the same order per stream, and the same peak."""
    execution = results[name]
    real = timeline(execution.plan, execution.ranks)
    assert streams(real) == streams(simulated(execution.plan, ONE_STEP[name]))
    for result in execution.ranks:
        assert result.memory.peak_bytes == memory_use(execution.plan.program_of(result.rank)).peak_bytes
