"""Meshes of several axes run for real: numbers, ops and memory, and what goes wrong."""

from collections.abc import Mapping

import pytest
from msgspec.structs import replace

from backends.execution.result import Execution
from backends.torch.launching.timeline import timeline
from backends.torch.reference.references import References
from sim.engine.running.memory import memory_use
from sim.plan.checking.check import check
from sim.plan.words.op import Collective, CollectiveKind, Op
from sim.plan.words.program import Plan
from sim.training.steps.builder import build_dense_training
from tests.backends.mesh_runs import AS_RINGS, MANY_JOBS, MUTED_JOBS, WIDE_JOBS, WRONG_ROOTS
from tests.backends.one_process import run_in_one_process
from tests.backends.runs import silenced
from tests.backends.test_execution import simulated, streams


@pytest.mark.parametrize("name", WIDE_JOBS)
def test_plan_reproduces_the_dense_reference_in_float64(wide_results: Mapping[str, Execution], name: str) -> None:
    """Loss, every gradient and every updated parameter of every rank are within 1e-9."""
    report = wide_results[name].check
    assert report is not None
    assert report.tolerance == 1e-9
    assert report.passed, report.worst


@pytest.mark.parametrize("name", WIDE_JOBS)
def test_executed_timeline_has_the_simulated_ops_in_order(wide_results: Mapping[str, Execution], name: str) -> None:
    """Stream by stream the same ops in the same order, with the same bytes and FLOP; no two overlap."""
    execution = wide_results[name]
    real = timeline(execution.plan, execution.ranks)
    real.check_streams()
    assert streams(real) == streams(simulated(execution.plan, WIDE_JOBS[name]))


@pytest.mark.parametrize("name", WIDE_JOBS)
def test_executed_memory_equals_the_simulated_account(wide_results: Mapping[str, Execution], name: str) -> None:
    """Peak, peak by kind, and the bytes before, inside and after every call agree to the byte."""
    execution = wide_results[name]
    for result in execution.ranks:
        expected, memory = memory_use(execution.plan.program_of(result.rank)), result.memory
        assert dict(memory.peak_by_kind_bytes) == dict(expected.peak_by_kind_bytes)
        assert memory.before_bytes == expected.before_bytes.tolist()
        assert memory.most_bytes == expected.peak_bytes_of.tolist()
        assert memory.after_bytes == expected.after_bytes


@pytest.mark.parametrize("name", AS_RINGS)
def test_collectives_sent_message_by_message_give_the_same_numbers(
    wide_results: Mapping[str, Execution], name: str
) -> None:
    """Broadcasts and reduces by their step lists, from every root, compute what the library's compute."""
    report = wide_results[f"{name} as rings"].check
    assert report is not None
    assert report.passed, report.worst


@pytest.mark.parametrize("what", WRONG_ROOTS)
def test_check_notices_a_wrong_root(results: Mapping[str, Execution], what: str) -> None:
    """A block that comes from, or goes to, the rank of another step makes numbers that are far from the reference."""
    report = results[f"wrong root: {what}"].check
    assert report is not None
    assert not report.passed
    assert report.worst[1] > 1e-3


def test_a_wrong_root_of_each_axis_is_noticed_with_depth(references: References) -> None:
    """On [2, 2, 2], a broadcast or a reduce along either axis from, or to, the rank of another step is far off."""
    job, wrong = MUTED_JOBS["2.5d"], dict[tuple[str, str], str]()
    plan = build_dense_training(job, "wrong root")
    (program,) = plan.programs
    for op in collectives(plan):
        if op.kind in {CollectiveKind.BROADCAST, CollectiveKind.REDUCE}:
            wrong[op.axes[0], op.kind] = op.name
    assert len(wrong) == 4
    for what, name in wrong.items():
        tasks = {
            key: replace(task, ops=tuple(_from_next(op) if op.name == name else op for op in task.ops))
            for key, task in program.tasks.items()
        }
        report = run_in_one_process(replace(plan, programs=(replace(program, tasks=tasks),)), job, references)
        assert report.worst[1] > 1e-3, what


def _from_next(op: Op) -> Op:
    """Return a collective with the other of two roots."""
    assert isinstance(op, Collective)
    return replace(op, root=1 - op.root)


@pytest.mark.parametrize("name", MANY_JOBS)
def test_a_plan_for_many_ranks_computes_the_numbers_of_the_dense_reference(references: References, name: str) -> None:
    """Every rank's loss, gradients and updated parameters are within 1e-9, all ranks run in one process."""
    plan = build_dense_training(MANY_JOBS[name], name)
    check(plan)
    report = run_in_one_process(plan, MANY_JOBS[name], references)
    assert {key.split(": ")[0] for key in report.errors} == {f"rank {rank}" for rank in range(plan.mesh.size)}
    assert report.tolerance == 1e-9
    assert report.passed, report.worst


@pytest.mark.parametrize("name", MUTED_JOBS)
def test_each_kind_of_communication_on_a_mesh_is_missed_when_it_is_left_out(references: References, name: str) -> None:
    """Gathers, broadcasts, sums along each axis, those over depth too: without one the numbers are far off."""
    job = MUTED_JOBS[name]
    plan = build_dense_training(job, name)
    kinds = dict(silenced(plan))
    assert {axis for axis, _ in job.parallel.tensor.axes} <= {axis for op in collectives(plan) for axis in op.axes}
    for what, mute in kinds.items():
        report = run_in_one_process(plan, job, references, mute)
        assert report.worst[1] > 1e-3, what


def collectives(plan: Plan) -> list[Collective]:
    """Return every collective of a plan of one program."""
    return [op for task in plan.programs[0].tasks.values() for op in task.ops if isinstance(op, Collective)]
