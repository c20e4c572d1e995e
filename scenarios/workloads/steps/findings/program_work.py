"""The work of all kernels that one rank's program calls: FLOP and bytes."""

from collections import Counter
from collections.abc import Sequence

from msgspec import Struct, field

from costmodels.kernels import Work
from sim.plan.facts.description import kernel_signature, kernel_work
from sim.plan.words.calls import Calls
from sim.plan.words.op import Compute
from sim.plan.words.program import Program


class ProgramWork(Struct, frozen=True):
    """FLOP by the papers' count, FLOP that devices execute, and bytes that kernels read and write."""

    flop: float
    executed_flop: float
    num_bytes: int


class KnownWork(Struct, frozen=True):
    """The work met so far: of kernels by ``kernel_signature``, and of tasks that programs share by their identity."""

    kernels: dict[tuple[object, ...], Work] = field(default_factory=dict)
    tasks: dict[int, dict[str, ProgramWork]] = field(default_factory=dict)


def program_work(program: Program, known: KnownWork) -> ProgramWork:
    """Return the work of one rank's program, recomputation included. Programs must live as long as ``known``."""
    works = known.tasks.get(id(program.tasks))
    if works is None:
        works = known.tasks[id(program.tasks)] = _task_works(program, known.kernels)
    counts = Calls.of(program.calls).counts()
    return _sum([_times(works[task], count) for task, count in counts.items()])


def _task_works(program: Program, known: dict[tuple[object, ...], Work]) -> dict[str, ProgramWork]:
    """Return the work of one call of each task: of distinct kernels, each as often as the task has it."""
    works: dict[int, Work] = {}
    for place, op in enumerate(program.distinct_ops.ops):
        if isinstance(op, Compute):
            key = kernel_signature(program, op)
            if key not in known:
                known[key] = kernel_work(program, op)
            works[place] = known[key]
    counts = {name: Counter(places) for name, places in program.distinct_ops.of_task.items()}
    return {
        name: _sum([_times(works[place], count) for place, count in found.items() if place in works])
        for name, found in counts.items()
    }


def _times(work: ProgramWork | Work, count: int) -> ProgramWork:
    """Return so many times a work."""
    return ProgramWork(count * work.flop, count * work.executed_flop, count * work.num_bytes)


def _sum(works: Sequence[ProgramWork]) -> ProgramWork:
    return ProgramWork(
        sum(work.flop for work in works), sum(work.executed_flop for work in works),
        sum(work.num_bytes for work in works),
    )  # fmt: skip
