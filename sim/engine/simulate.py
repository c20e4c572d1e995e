"""A plan in, a simulated run out."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Final

from sim.engine.activity import Activity, Pricing
from sim.engine.channels import find_channels
from sim.engine.collector import collector_paused
from sim.engine.compiler import NotCoalescableError, RankCompiler
from sim.engine.contention import Contention, find_contention
from sim.engine.deadlock import refuse_deadlock
from sim.engine.folding import Folding, fold
from sim.engine.graph import Graph, PricedTask
from sim.engine.launching import launched
from sim.engine.linking import link_collectives, link_messages
from sim.engine.loop import EventLoop
from sim.engine.run import SimulatedRun
from sim.engine.shape import TaskShape, analyse
from sim.engine.tables import TaskTable, tabulate
from sim.engine.teams import Team, find_teams
from sim.plan.op import Collective, LinkOp, Op
from sim.plan.program import Plan, Program
from sim.plan.steps import repeated

NUMBERS_OF_STEPS: Final = (4, 8, 16)
"""How many steps are simulated where none waits for the others at its end, until two in a row take equally long."""


def simulate(
    plan: Plan, pricing: Pricing, *, fold: Callable[[Plan, Pricing], Folding] = fold, coalesce: bool = True
) -> SimulatedRun:
    """Return the run of one step of ``plan``.

    Without a barrier between steps it is a step in the middle of several: as many are simulated as it takes to see
    the steady period. Raises CheckError where sends and receives do not match, DeadlockError where the run gets stuck.
    """
    with collector_paused():
        began_s = perf_counter()
        folding = fold(plan, pricing)
        programs = {rank: plan.program_of(rank) for rank in folding.multiplicity}
        priced = {rank: _price(plan, pricing, folding, rank) for rank in programs}
        for num_steps in (1,) if plan.barrier else NUMBERS_OF_STEPS:
            run = _simulate_steps(plan, folding, programs, priced, num_steps, coalesce=coalesce)
            if run.is_steady:
                break
        run.wall_time_s = perf_counter() - began_s
    return run


@dataclass(frozen=True, slots=True)
class _Job:
    """What every attempt to compile takes: ``shapes`` by a program's identity and task, ``teams`` by rank."""

    plan: Plan
    folding: Folding
    programs: Mapping[int, Program]
    priced: Mapping[int, Mapping[str, PricedTask]]
    contention: Contention
    shapes: Mapping[int, Mapping[str, TaskShape]]
    teams: Mapping[int, tuple[int, ...]]


def _job(
    plan: Plan, folding: Folding, programs: Mapping[int, Program], priced: Mapping[int, Mapping[str, PricedTask]]
) -> _Job:
    """Find out who may meet whom, and what tasks look like."""
    classes_of = partial(folding.classes_of, plan.mesh)
    contention = find_contention(
        programs, priced, lambda rank, op: classes_of(rank, op)[0] if isinstance(op, Collective) else rank
    )
    different = {id(program): program for program in programs.values()}
    shapes = {key: {name: analyse(task) for name, task in p.tasks.items()} for key, p in different.items()}
    teams = find_teams(programs, priced, contention, classes_of)
    return _Job(plan, folding, programs, priced, contention, shapes, teams)


def _simulate_steps(
    plan: Plan,
    folding: Folding,
    programs: Mapping[int, Program],
    priced: Mapping[int, Mapping[str, PricedTask]],
    num_steps: int,
    *,
    coalesce: bool,
) -> SimulatedRun:
    """Simulate that many steps in a row, with as many tasks coalesced as their dependencies allow."""
    job = _job(plan, folding, _in_a_row(programs, num_steps), priced)
    single = frozenset[str]()
    if not coalesce:
        single = frozenset(name for program in plan.programs for name in program.tasks)
    while True:
        try:
            graph = _compile(job, single)
        except NotCoalescableError as error:
            single |= {error.task}
            continue
        loop = EventLoop(graph)
        loop.run()
        refuse_deadlock(SimulatedRun(plan, folding, job.programs, priced, graph, loop))
        return SimulatedRun(plan, folding, programs, priced, graph, loop, num_steps)


def _in_a_row(programs: Mapping[int, Program], num_steps: int) -> Mapping[int, Program]:
    """Return the program of several steps of every rank; ranks with one program share it."""
    if num_steps == 1:
        return programs
    several = {key: repeated(p, num_steps) for key, p in {id(p): p for p in programs.values()}.items()}
    return {rank: several[id(program)] for rank, program in programs.items()}


def _price(plan: Plan, pricing: Pricing, folding: Folding, rank: int) -> dict[str, PricedTask]:
    program = plan.program_of(rank)

    def price(op: Op) -> Activity:
        activity = pricing.price(plan, program, op, rank)
        return folding.folded(op, rank, activity) if isinstance(op, LinkOp) else activity

    launches_s = {name: pricing.launches_s(task) for name, task in program.tasks.items()}
    return {
        name: PricedTask(launched(task, launches_s[name], [price(op) for op in task.ops]), launches_s[name])
        for name, task in program.tasks.items()
    }


def _compile(job: _Job, single: frozenset[str]) -> Graph:
    """Return the graph with calls as blocks, but those of the ``single`` tasks.

    Raises NotCoalescableError, naming one more such task.
    """
    graph, mesh, folding, contention = Graph(), job.plan.mesh, job.folding, job.contention
    tables = {rank: _tables(job, rank, single) for rank in job.programs}
    find_channels(graph, tables, mesh, folding.stands_for)
    teams = {ranks: Team(graph, ranks) for ranks in job.teams.values()}
    ranks = {
        rank: RankCompiler(graph, rank, program, tables[rank], contention, teams.get(job.teams.get(rank, ())))
        for rank, program in job.programs.items()
    }
    for compiler in ranks.values():
        compiler.compile()
    for team in teams.values():
        task = team.finish()
        if task is not None:
            raise NotCoalescableError(task)
    link_messages(graph, ranks, mesh, folding.stands_for)
    link_collectives(graph, ranks, mesh, folding.stands_for, contention.contended)
    return graph


def _tables(job: _Job, rank: int, single: frozenset[str]) -> dict[str, TaskTable]:
    """Return a simulated rank's tables."""
    program = job.programs[rank]
    return tabulate(
        program,
        job.priced[rank],
        job.shapes[id(program)],
        job.contention,
        single,
        joint=lambda op: len(job.folding.classes_of(job.plan.mesh, rank, op)) > 1,
        in_team=rank in job.teams,
    )
