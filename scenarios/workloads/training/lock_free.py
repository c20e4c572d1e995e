"""The steps of a training whose update goes at its own pace, from the plan of a synchronous step."""

from collections.abc import Mapping
from math import ceil
from statistics import fmean
from typing import Final

from msgspec.structs import replace

from backends.simulated import SimulatedBackend
from scenarios.summaries.steps.step import LockFreeUpdate
from sim.engine.findings.timeline import timeline
from sim.engine.prices.activity import Activity, Pricing, Resource, is_link
from sim.memory.lock_free_run import LockFreeRun, UnitTimes, run_lock_free
from sim.plan.words.buffer import Tier
from sim.plan.words.op import Compute, Copy
from sim.plan.words.program import Plan, Program, Task
from traces.timeline import Timeline

_SWEEPS: Final = 12
_FEWEST, _MOST = 40, 1000
"""Iterations that are simulated: as many as so many sweeps take, within bounds; the second half is steady."""
_UPDATE: Final = "optimizer."
"""Begins the names of tasks that update a unit."""
_ARRIVAL: Final = "accumulate."
"""Begins the names of ops after which the host has a unit's gradient."""


def lock_free_update(plan: Plan, pricing: Pricing, max_staleness: int | None) -> LockFreeUpdate:
    """Return what becomes of the steps of a plan whose updates on drives go at their own pace.

    Forwards and backwards are simulated without these updates. Of the rank with the longest sweep, the times of reads,
    updates and writes are those that they take while all ranks of its node read and write: they do not slow the passes
    down.
    """
    passes = replace(plan, programs=tuple(_without_sweep(program) for program in plan.programs))
    run = SimulatedBackend(pricing).simulate(passes)
    passed = timeline(run, "op")
    links = _drives_of_ranks(plan, pricing)
    units = max(
        (_units(plan, rank, pricing, _arrivals_s(passed, rank), links.count(links[rank])) for rank in run.programs),
        key=_sweep_s,
    )
    iteration_s = run.iteration_time_s
    num_iterations = min(max(ceil(_SWEEPS * _sweep_s(units) / iteration_s), _FEWEST), _MOST)
    free = run_lock_free(units, iteration_s, num_iterations, max_staleness)
    synchronous = run_lock_free(units, iteration_s, _FEWEST, 0)
    return _summary(free, synchronous, max_staleness, iteration_s, _sweep_s(units))


def _summary(
    free: LockFreeRun, synchronous: LockFreeRun, max_staleness: int | None, passes_s: float, sweep_s: float
) -> LockFreeUpdate:
    gradients = free.steady(free.gradients)
    return LockFreeUpdate(
        max_staleness=max_staleness,
        iteration_time_s=free.step_s(),
        passes_s=passes_s,
        sweep_s=sweep_s,
        synchronous_s=synchronous.step_s(),
        gradients_per_update=fmean(gradients),
        most_gradients_per_update=max(gradients),
        most_staleness=max(free.steady(free.staleness)),
    )


def _sweep_s(units: list[UnitTimes]) -> float:
    """Return the time of reads and writes, which share the drive, or of updates, if that is longer."""
    return max(sum(u.read_s + u.write_s for u in units), sum(u.update_s for u in units))


def _without_sweep(program: Program) -> Program:
    """Return a program without the updates of state on drives."""
    calls = tuple(call for call in program.calls if not _reads_drive(program, program.tasks[call.task]))
    return program.calling(calls)


def _reads_drive(program: Program, task: Task) -> bool:
    return any(isinstance(op, Copy) and _on_drive(program, op.reads) for op in task.ops)


def _on_drive(program: Program, names: tuple[str, ...]) -> bool:
    return program.buffers[names[0]].tier is Tier.NVME


def _drives_of_ranks(plan: Plan, pricing: Pricing) -> list[Resource | None]:
    """Return a link of its node that each rank's reads from drives use; None of a rank without state on drives."""
    found: list[Resource | None] = []
    for rank in range(plan.mesh.size):
        program = plan.program_of(rank)
        ops = (op for task in program.tasks.values() for op in task.ops)
        read = next((op for op in ops if isinstance(op, Copy) and _on_drive(program, op.reads)), None)
        demands = () if read is None else pricing.price(plan, program, read, rank).demands
        found.append(next((resource for resource, _ in demands if is_link(resource)), None))
    return found


def _together_s(activity: Activity, num_ranks: int) -> float:
    """Return how long a read, an update or a write lasts while so many ranks of a node do the same."""
    shared_s = max((seconds for resource, seconds in activity.demands if is_link(resource)), default=0.0)
    return activity.latency_s + max(activity.occupancy_s, num_ranks * shared_s)


def _units(
    plan: Plan, rank: int, pricing: Pricing, arrivals_s: Mapping[str, float], num_on_node: int
) -> list[UnitTimes]:
    """Return the times of a rank's units with state on drives, in the order of updates.

    ``num_on_node``: ranks with the same drives.
    """
    program, found = plan.program_of(rank), []
    for name, task in program.tasks.items():
        if not _reads_drive(program, task):
            continue
        read_s = update_s = write_s = 0.0
        for op in task.ops:
            price = pricing.price(plan, program, op, rank)
            if isinstance(op, Copy) and _on_drive(program, op.reads):
                read_s += _together_s(price, num_on_node)
            elif isinstance(op, Copy) and _on_drive(program, op.writes):
                write_s += _together_s(price, num_on_node)
            elif isinstance(op, Compute):
                update_s += _together_s(price, num_on_node)
        unit = name.removeprefix(_UPDATE)
        times = UnitTimes(unit=unit, gradient_s=arrivals_s[unit], read_s=read_s, update_s=update_s, write_s=write_s)
        found.append(times)
    return found


def _arrivals_s(shown: Timeline, rank: int) -> dict[str, float]:
    """Return when the host of a rank has all of a step's gradient of each unit, from the step's begin."""
    found: dict[str, float] = {}
    for row in shown.select(rank=rank):
        name = shown.name.at(int(row)).rpartition("/")[2]
        if name.startswith(_ARRIVAL):
            unit = name.removeprefix(_ARRIVAL)
            found[unit] = max(found.get(unit, 0.0), float(shown.end_s[row]))
    return found
