"""What real runs of layers with experts show besides the reference's numbers."""

from collections.abc import Mapping

import numpy as np
import pytest

from backends.execution.result import Execution
from backends.torch.reference.references import References
from sim.plan.checking.check import check
from sim.plan.words.op import Collective
from sim.training.steps.builder import build_dense_training
from tests.backends.expert_runs import EXACT_ALONE, EXCHANGING, GATES, RELAYED, REPLICATED, exchanges
from tests.backends.one_process import run_in_one_process
from tests.backends.runs import SILENT


def test_some_choices_are_dropped_and_others_are_not(results: Mapping[str, Execution]) -> None:
    """The runs that reproduce the reference leave out choices, and not the same ones everywhere."""
    spec, microbatch_size = EXCHANGING.model.experts, EXCHANGING.training.microbatch_size
    assert spec is not None
    dropped = spec.num_experts * spec.capacity(EXCHANGING.model.sequence_length * microbatch_size)
    parts = [float(np.mean(values == dropped)) for rank in results["slots"].ranks for values in rank.values.values()]
    assert 0.0 < max(parts) < 0.6
    assert len(set(parts)) > 1


def test_every_exchange_is_left_out_in_turn(results: Mapping[str, Execution]) -> None:
    """Per layer two forward and two backward; without any one of them the check fails, as another test says."""
    found = list(exchanges(results["slots"].plan))
    assert len(found) == 4 * EXCHANGING.model.num_layers
    assert {task.split(".")[0] for task, _ in found} == {"forward", "backward"}
    assert {f"without all_to_all {name} (experts)" for _, name in found} <= set(SILENT)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("name", EXACT_ALONE | GATES | RELAYED | REPLICATED)
def test_routing_computes_the_numbers_of_the_dense_reference(references: References, name: str) -> None:
    """Loss, gradients and parameters are within 1e-9 on every rank, whatever routing, gate and replicas."""
    job = (EXACT_ALONE | GATES | RELAYED | REPLICATED)[name]
    plan = build_dense_training(job, name)
    check(plan)
    num_steps = 4 if name.startswith("bias") else 1  # biases begin as zeros
    report = run_in_one_process(plan, job, references, num_steps=num_steps)
    assert {key.split(": ")[0] for key in report.errors} == {f"rank {rank}" for rank in range(plan.mesh.size)}
    assert report.tolerance == 1e-9
    assert report.passed, report.worst


@pytest.mark.usefixtures("one_thread")
def test_an_exchange_of_rows_is_missed_when_it_is_left_out(references: References) -> None:
    """Without one of the uneven exchanges the numbers are far from the reference."""
    job = EXACT_ALONE["ep2 x tp2 sp"]
    plan = build_dense_training(job, "exact")
    tasks = plan.programs[0].tasks.values()
    uneven = [op.name for task in tasks for op in task.ops if isinstance(op, Collective) and op.sizes]
    assert len(uneven) == 4 * job.model.num_layers
    for name in (uneven[0], uneven[-1]):
        report = run_in_one_process(plan, job, references, frozenset({name}))
        assert report.worst[1] > 1e-3, name


@pytest.mark.usefixtures("one_thread")
def test_a_sum_over_replicas_is_missed_when_it_is_left_out(references: References) -> None:
    """Without the sum of gradients over the holders of an expert the numbers are far from the reference."""
    job = REPLICATED["replicas, ep4, one expert gets most, one none"]
    plan = build_dense_training(job, "replicas")
    tasks = [task for program in plan.programs for task in program.tasks.values()]
    sums = {op.name for task in tasks for op in task.ops if isinstance(op, Collective) and op.members}
    assert sums
    report = run_in_one_process(plan, job, references, frozenset(sums))
    assert report.worst[1] > 1e-3
