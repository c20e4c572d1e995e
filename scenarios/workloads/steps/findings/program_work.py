"""The work of all kernels that one rank's program calls: FLOP and bytes."""

from collections.abc import Sequence

from msgspec import Struct

from costmodels.kernels import Work
from sim.plan.facts.description import kernel_signature, kernel_work
from sim.plan.words.calls import Calls
from sim.plan.words.op import Compute
from sim.plan.words.program import Program, Task

KnownWork = dict[tuple[object, ...], Work]
"""The work of kernels met so far, by ``kernel_signature``: layers have the same kernels, so each is worked out once."""


class ProgramWork(Struct, frozen=True):
    """FLOP by the papers' count, FLOP that devices execute, and bytes that kernels read and write."""

    flop: float
    executed_flop: float
    num_bytes: int

    def times(self, count: int) -> "ProgramWork":
        """Return the work of so many calls."""
        return ProgramWork(count * self.flop, count * self.executed_flop, count * self.num_bytes)


def program_work(program: Program, known: KnownWork) -> ProgramWork:
    """Return the work of one rank's program, recomputation included."""
    works = {name: _task_work(program, task, known) for name, task in program.tasks.items()}
    counts = Calls.of(program.calls).counts()
    return _sum([works[task].times(count) for task, count in counts.items()])


def _task_work(program: Program, task: Task, known: KnownWork) -> ProgramWork:
    works = []
    for op in task.ops:
        if isinstance(op, Compute):
            key = kernel_signature(program, op)
            if key not in known:
                known[key] = kernel_work(program, op)
            works.append(known[key])
    return _sum(works)


def _sum(works: Sequence[ProgramWork | Work]) -> ProgramWork:
    return ProgramWork(
        sum(work.flop for work in works), sum(work.executed_flop for work in works),
        sum(work.num_bytes for work in works),
    )  # fmt: skip
