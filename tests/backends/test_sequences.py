"""Methods that share sequences, run for real: numbers, and what goes wrong without one communication."""

from collections.abc import Callable, Sequence

import pytest
from msgspec.structs import replace

from backends.torch.reference.references import References
from sim.plan.checking.check import check
from sim.plan.words.op import Collective, Op, Recv, Send
from sim.plan.words.program import Phase, Plan
from sim.training.steps.builder import build_dense_training
from tests.backends.one_process import run_in_one_process
from tests.backends.runs import silenced
from tests.backends.sequence_runs import MANY_SEQUENCE_JOBS, MUTED_SEQUENCE_JOBS


@pytest.mark.parametrize("name", MANY_SEQUENCE_JOBS)
def test_shared_sequences_compute_the_numbers_of_the_dense_reference(references: References, name: str) -> None:
    """Every rank's loss, gradients and updated parameters are within 1e-9, all ranks run in one process."""
    plan = build_dense_training(MANY_SEQUENCE_JOBS[name], name)
    check(plan)
    report = run_in_one_process(plan, MANY_SEQUENCE_JOBS[name], references)
    assert {key.split(": ")[0] for key in report.errors} == {f"rank {rank}" for rank in range(plan.mesh.size)}
    assert report.tolerance == 1e-9
    assert report.passed, report.worst


@pytest.mark.parametrize("name", MUTED_SEQUENCE_JOBS)
def test_each_exchange_of_a_shared_sequence_is_missed_when_it_is_left_out(references: References, name: str) -> None:
    """Without one message or collective of each kind the numbers are far off."""
    job = MUTED_SEQUENCE_JOBS[name]
    plan = build_dense_training(job, name)
    silent = dict(silenced(plan)) | (every_message(plan) if job.parallel.sequence.name == "ring_self_attention" else {})
    for what, mute in silent.items():
        report = run_in_one_process(plan, job, references, mute)
        assert report.worst[1] > 1e-3, what


@pytest.mark.parametrize("name", MUTED_SEQUENCE_JOBS)
def test_a_wrong_exchange_of_a_shared_sequence_is_noticed(references: References, name: str) -> None:
    """Keys where values belong, or messages that go around a ring the wrong way: the numbers are far off."""
    job = MUTED_SEQUENCE_JOBS[name]
    plan = build_dense_training(job, name)
    changes = (keys_for_values, *([backwards] if job.parallel.sequence.axes[0][1] > 2 else []))
    wrong = [turned for change in changes if (turned := altered(plan, change)) != plan]
    assert wrong
    for turned in wrong:
        report = run_in_one_process(turned, job, references)
        assert report.worst[1] > 1e-3


def every_message(plan: Plan) -> dict[str, frozenset[str]]:
    """Return both ends of every message around a ring of a plan of one program, by the name of its send."""
    (program,) = plan.programs
    sends = [op.name for task in program.tasks.values() for op in task.ops if isinstance(op, Send)]
    return {name: frozenset({name, name.replace(".send", ".recv")}) for name in sends}


def altered(plan: Plan, change: Callable[[Sequence[Op]], Sequence[Op]]) -> Plan:
    """Return a plan with the ops of its forwards changed."""
    programs = []
    for program in plan.programs:
        tasks = {
            key: replace(task, ops=tuple(change(task.ops))) if task.phase is Phase.FORWARD else task
            for key, task in program.tasks.items()
        }
        programs.append(replace(program, tasks=tasks))
    return replace(plan, programs=tuple(programs))


def keys_for_values(ops: Sequence[Op]) -> Sequence[Op]:
    """Return ops in which the collectives of keys and of values are mixed up."""
    found = [op for op in ops if isinstance(op, Collective) and op.stream.startswith("cp")]
    keys, values = found[-3:-1] if len(found) == 4 else (found or [None, None])[:2]
    if keys is None or values is None:
        return ops
    swapped = {keys.name: replace(keys, reads=values.reads), values.name: replace(values, reads=keys.reads)}
    return [swapped.get(op.name, op) for op in ops]


def backwards(ops: Sequence[Op]) -> Sequence[Op]:
    """Return ops whose messages go to the rank before where they went to the next."""
    return [replace(op, offset=-op.offset) if isinstance(op, Send | Recv) else op for op in ops]
