"""State in tiers of memory, run for real: numbers, memory, and what goes wrong without one movement."""

from errno import ENOSPC

import pytest
import torch
from msgspec.structs import replace

from backends.execution.errors import ExecutionError
from backends.torch.reference.references import References
from backends.torch.values import copying
from sim.plan.checking.check import check
from sim.plan.words.buffer import Scope
from sim.plan.words.op import Copy
from sim.training.spec.job import DenseTraining
from sim.training.steps.builder import build_dense_training
from tests.backends.one_process import ranks_after_a_step, run_in_one_process
from tests.backends.tiered_runs import ANGEL, CACHED, DEEPSPEED, DRIVES, ON_DEMAND, TIERED_JOBS


@pytest.mark.parametrize("name", TIERED_JOBS)
def test_tiers_of_memory_compute_the_numbers_of_the_dense_reference(references: References, name: str) -> None:
    """Every rank's loss, gradients and updated parameters are within 1e-9, all ranks run in one process."""
    plan = build_dense_training(TIERED_JOBS[name], name)
    check(plan)
    report = run_in_one_process(plan, TIERED_JOBS[name], references)
    assert {key.split(": ")[0] for key in report.errors} == {f"rank {rank}" for rank in range(plan.mesh.size)}
    assert report.tolerance == 1e-9
    assert report.passed, report.worst


@pytest.mark.parametrize("direction", ["load.", "offload."])
def test_each_direction_of_copies_is_missed_when_it_is_left_out(references: References, direction: str) -> None:
    """With parameters that do not come, or gradients that do not leave, the numbers are far off."""
    job = TIERED_JOBS["lifetimes, dp2, one micro-batch"]
    plan = build_dense_training(job, "muted")
    (program,) = plan.programs
    copies = {op.name for task in program.tasks.values() for op in task.ops if isinstance(op, Copy)}
    mute = frozenset(name for name in copies if name.startswith(direction))
    assert mute
    report = run_in_one_process(plan, job, references, mute)
    assert report.worst[1] > 1e-3


def test_a_gradient_that_does_not_reach_its_chunk_is_missed(references: References) -> None:
    """Where a copy into a chunk is left out, its parameter is reduced in the place of its gradient."""
    job = TIERED_JOBS["gradients in chunks that stay, one rank, tied"]
    plan = build_dense_training(job, "muted")
    (program,) = plan.programs
    name = next(op.name for task in program.tasks.values() for op in task.ops if op.name.startswith("into_chunk."))
    tasks = {
        key: replace(task, ops=tuple(op for op in task.ops if op.name != name)) for key, task in program.tasks.items()
    }
    report = run_in_one_process(replace(plan, programs=(replace(program, tasks=tasks),)), job, references)
    assert report.worst[1] > 1e-3


@pytest.mark.parametrize("name", ["deepspeed", "lifetimes", "lifetimes, some layers stay", "drives"])
def test_managers_end_with_the_same_bits(name: str) -> None:
    """Every persistent buffer of every rank has the bits that it has under ``on_demand``.

    These are the parameters, their gradients, the moments and the loss.
    """
    job = TIERED_JOBS["on demand, dp2"]
    memory = {"deepspeed": DEEPSPEED, "lifetimes": ANGEL, "lifetimes, some layers stay": CACHED, "drives": DRIVES}[name]
    expected, found = (
        persistent_tensors(replace(job, parallel=replace(job.parallel, memory=each))) for each in (ON_DEMAND, memory)
    )
    assert found.keys() == expected.keys()
    assert {"gradient_shard", "shard"} <= {buffer.partition(".")[0] for _, buffer in found}
    assert [key for key in found if not torch.equal(found[key], expected[key])] == []


def persistent_tensors(job: DenseTraining) -> dict[tuple[int, str], torch.Tensor]:
    """Return the buffers that last beyond a step, by rank and name, after one step."""
    found = {}
    for rank in ranks_after_a_step(build_dense_training(job, "bits")):
        for (name, _), slot in rank.schedule.slots.items():
            if rank.program.buffers[name].scope is Scope.PERSISTENT and slot.tensor is not None:
                found[rank.rank, name] = slot.tensor
    return found


def test_a_full_disk_is_an_error_that_names_buffer_and_folder(
    references: References, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that cannot have its bytes ends the run before any state is lost."""

    def full(*_: int) -> None:
        raise OSError(ENOSPC, "No space left on device")

    monkeypatch.setattr(copying, "posix_fallocate", full)
    job = TIERED_JOBS["state on drives, deepspeed, dp2"]
    with pytest.raises(ExecutionError, match=r"no file of [\d,]+ bytes in .*No space left on device; make room"):
        run_in_one_process(build_dense_training(job, "full"), job, references)
