"""Plans that are alike: a plan for another batch has other calls, and other numbers in some kernels."""

from msgspec.structs import replace

from sim.plan.words.op import Compute, Op
from sim.plan.words.program import Plan, Program, Task


def with_equal_ops(one: Plan, other: Plan) -> bool:
    """Return whether two plans have equal programs but for their calls, and for attributes of their kernels.

    What waits for what inside a task, and which ranks may be alike, then is the same.
    """
    pairs = list(zip(one.programs, other.programs, strict=False))
    return len(one.programs) == len(other.programs) and one.mesh == other.mesh and all(_alike(*pair) for pair in pairs)


def _alike(one: Program, other: Program) -> bool:
    return (
        one.role == other.role
        and one.released == other.released
        and list(one.tasks) == list(other.tasks)
        and one.buffers == other.buffers
        and all(_like(task, other.tasks[name]) for name, task in one.tasks.items())
    )


def _like(one: Task, other: Task) -> bool:
    if one == other:
        return True
    if (one.phase, one.stage, len(one.ops)) != (other.phase, other.stage, len(other.ops)):
        return False
    return all(a == b or _same_work(a, b) for a, b in zip(one.ops, other.ops, strict=True))


def _same_work(one: Op, other: Op) -> bool:
    """Return whether two kernels differ in attributes alone."""
    if not (isinstance(one, Compute) and isinstance(other, Compute)):
        return False
    return replace(one, attributes=other.attributes) == other
