"""The work of all kernels that one rank's program calls: FLOP and bytes."""

from collections.abc import Sequence

from msgspec import Struct, field

from costmodels.kernels import Work
from sim.plan.facts.description import kernel_signature, kernel_work
from sim.plan.words.calls import Calls
from sim.plan.words.op import Compute
from sim.plan.words.program import Program, Task


class ProgramWork(Struct, frozen=True):
    """FLOP by the papers' count, FLOP that devices execute, and bytes that kernels read and write."""

    flop: float
    executed_flop: float
    num_bytes: int

    def times(self, count: int) -> "ProgramWork":
        """Return the work of so many calls."""
        return ProgramWork(count * self.flop, count * self.executed_flop, count * self.num_bytes)


class KnownWork(Struct, frozen=True):
    """The work met so far: of kernels by ``kernel_signature``, and of tasks that programs share by their identity."""

    kernels: dict[tuple[object, ...], Work] = field(default_factory=dict)
    tasks: dict[int, dict[str, ProgramWork]] = field(default_factory=dict)


def program_work(program: Program, known: KnownWork) -> ProgramWork:
    """Return the work of one rank's program, recomputation included. Programs must live as long as ``known``."""
    works = known.tasks.get(id(program.tasks))
    if works is None:
        works = {name: _task_work(program, task, known.kernels) for name, task in program.tasks.items()}
        known.tasks[id(program.tasks)] = works
    counts = Calls.of(program.calls).counts()
    return _sum([works[task].times(count) for task, count in counts.items()])


def _task_work(program: Program, task: Task, known: dict[tuple[object, ...], Work]) -> ProgramWork:
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
