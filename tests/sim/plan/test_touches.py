"""The reads and writes of a program's ops as numbers."""

from hypothesis import given, settings

from sim.plan.words.buffer import Scope
from sim.plan.words.op import Op, reads_from_outside
from sim.plan.words.program import Plan, Program
from sim.plan.words.touches import NEVER, Touches
from tests.examples import examples
from tests.sim.strategies import dense_plans


def of_ops(ops: tuple[Op, ...]) -> dict[str, tuple[int, int, int, int, bool]]:
    """Return, by buffer, the first and last op that touch it, the last that read and write it, and what comes first."""
    found: dict[str, tuple[int, int, int, int, bool]] = {}
    needed = reads_from_outside(ops)
    for name in {name for op in ops for name in (*op.reads, *op.writes)}:
        reads, writes = ([j for j, op in enumerate(ops) if name in side(op)] for side in (_reads, _writes))
        every = sorted({*reads, *writes})
        found[name] = (every[0], every[-1], max(reads, default=NEVER), max(writes, default=NEVER), name in needed)
    return found


def _reads(op: Op) -> tuple[str, ...]:
    return op.reads


def _writes(op: Op) -> tuple[str, ...]:
    return op.writes


def as_found(program: Program) -> list[dict[str, tuple[int, int, int, int, bool]]]:
    """Return the same of every task, as the numbers say it."""
    uses, names = program.touches.uses, [*program.buffers]
    found: list[dict[str, tuple[int, int, int, int, bool]]] = [{} for _ in program.tasks]
    for task, buffer, *ops, reads_first in zip(
        *(column.tolist() for column in (uses.task, uses.buffer, uses.first, uses.last, uses.last_read)),
        *(column.tolist() for column in (uses.last_write, uses.reads_first)), strict=True,
    ):  # fmt: skip
        first, last, last_read, last_write = (op - program.touches.first_op[task] if op >= 0 else op for op in ops)
        found[task][names[buffer]] = (first, last, last_read, last_write, reads_first)
    return found


@settings(max_examples=examples(10), deadline=None)
@given(plan=dense_plans())
def test_numbers_say_what_ops_do(plan: Plan) -> None:
    """Each row of uses is that of its task and buffer, and each read and write knows its own."""
    for program in plan.programs:
        touches = program.touches
        assert as_found(program) == [of_ops(task.ops) for task in program.tasks.values()]
        assert (touches.uses.buffer[touches.uses.of_touch] == touches.buffer).all()
        assert (touches.uses.task[touches.uses.of_touch] == touches.task).all()
        for scope in Scope:
            flags = [buffer.scope is scope for buffer in program.buffers.values()]
            assert touches.is_of[scope].tolist() == [*flags, False]


def test_a_program_without_ops_touches_nothing() -> None:
    """There are no rows then."""
    assert Touches.of({}, []).uses.by_task(Touches.of({}, []).uses.reads_first)[0].size == 0
