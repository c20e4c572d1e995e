"""Methods that share sequences, run for real: numbers, and what goes wrong without one communication."""

from typing import Any

import pytest

from backends.torch.reference.dense import Reference
from sim.plan.checking.check import check
from sim.training.steps.builder import build_dense_training
from tests.backends.one_process import run_in_one_process
from tests.backends.runs import silenced
from tests.backends.sequence_runs import MANY_SEQUENCE_JOBS, MUTED_SEQUENCE_JOBS


@pytest.mark.parametrize("name", MANY_SEQUENCE_JOBS)
def test_shared_sequences_compute_the_numbers_of_the_dense_reference(name: str) -> None:
    """Every rank's loss, gradients and updated parameters are within 1e-9, all ranks run in one process."""
    plan = build_dense_training(MANY_SEQUENCE_JOBS[name], name)
    check(plan)
    reports = run_in_one_process(plan, MANY_SEQUENCE_JOBS[name])
    assert len(reports) == plan.mesh.size
    assert all(report.tolerance == 1e-9 and report.passed for report in reports.values()), [
        report.worst for report in reports.values()
    ]


@pytest.mark.parametrize("name", MUTED_SEQUENCE_JOBS)
def test_each_exchange_of_a_shared_sequence_is_missed_when_it_is_left_out(name: str) -> None:
    """Without one message or collective of each kind the numbers are far off."""
    job, references = MUTED_SEQUENCE_JOBS[name], dict[Any, Reference]()
    plan = build_dense_training(job, name)
    for what, mute in silenced(plan):
        reports = run_in_one_process(plan, job, references, mute)
        assert max(report.worst[1] for report in reports.values()) > 1e-3, what
