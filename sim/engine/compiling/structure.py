"""From a priced plan to its structure: the compiled graph that holds for all prices that leave it as it is.

Compiling and pricing are two passes. A structure is compiled once, for the prices at hand; ``priced`` gives its nodes
other prices. Runs of one plan under many prices (fits, drawn errors, step times of a service) share a structure.
"""

from collections.abc import Mapping
from functools import partial

from msgspec import Struct

from sim.engine.compiling.channels import find_channels
from sim.engine.compiling.compiler import KnownBlocks, NotCoalescableError, RankCompiler
from sim.engine.compiling.contention import Contention, find_contention
from sim.engine.compiling.copies import compile_ranks
from sim.engine.compiling.graph import Graph, PricedTask
from sim.engine.compiling.linking import link_collectives, link_messages
from sim.engine.compiling.repricing import Priced, repriced
from sim.engine.compiling.shape import TaskShape
from sim.engine.compiling.tables import KnownTasks, TaskTable, tabulate
from sim.engine.compiling.teams import Team, find_teams
from sim.engine.folding.folding import Folding
from sim.plan.words.program import Plan, Program

Shapes = Mapping[int, Mapping[str, TaskShape]]
"""The shapes of the tasks of every program of a plan, by the program's identity and the task's name."""


class Structure(Struct, frozen=True):
    """A compiled plan. ``graph`` has the prices that it was compiled under; ``tables`` are by simulated rank."""

    programs: Mapping[int, Program]
    tables: Mapping[int, Mapping[str, TaskTable]]
    graph: Graph

    def priced(self, prices: Priced) -> Graph:
        """Return the graph under other prices, which must leave it as it is (see ``structure_of``)."""
        return repriced(self.graph, self.tables, self.programs, prices)


def compiled(
    plan: Plan,
    folding: Folding,
    programs: Mapping[int, Program],
    prices: Priced,
    shapes: Shapes,
    known: KnownTasks,
    *,
    coalesce: bool,
    all_received: bool = True,
) -> Structure:
    """Return the structure of a plan with as many tasks coalesced as their dependencies allow.

    ``programs``: by simulated rank, the plan's own, shorter ones, or several steps of each in a row, with the plan's
    own tasks. ``known``: of these, from what was compiled before. ``all_received``: no program ends before it receives
    what another one sends.
    """
    job = _job(plan, folding, programs, prices, shapes, known, all_received=all_received)
    single = frozenset[str]()
    if not coalesce:
        single = frozenset(name for program in plan.programs for name in program.tasks)
    while True:
        try:
            return _compile(job, single)
        except NotCoalescableError as error:
            single |= {error.task}


class _Job(Struct, frozen=True):
    """What every attempt to compile takes: ``shapes`` by a program's identity and task, ``teams`` by rank."""

    plan: Plan
    folding: Folding
    programs: Mapping[int, Program]
    priced: Mapping[int, Mapping[str, PricedTask]]
    contention: Contention
    shapes: Mapping[int, Mapping[str, TaskShape]]
    known: KnownTasks
    teams: Mapping[int, tuple[int, ...]]
    all_received: bool


def _job(
    plan: Plan,
    folding: Folding,
    programs: Mapping[int, Program],
    priced: Mapping[int, Mapping[str, PricedTask]],
    shapes: Mapping[int, Mapping[str, TaskShape]],
    known: KnownTasks,
    *,
    all_received: bool,
) -> _Job:
    """Find out who may meet whom; ``shapes``: of the plan's own programs, whose tasks those of several steps share."""
    classes_of = partial(folding.classes_of, plan.mesh)
    contention = find_contention(programs, priced, lambda rank, op: classes_of(rank, op)[0])
    by_program = {id(program): shapes[id(plan.program_of(rank))] for rank, program in programs.items()}
    teams = find_teams(programs, priced, contention, classes_of)
    return _Job(plan, folding, programs, priced, contention, by_program, known, teams, all_received)


def _compile(job: _Job, single: frozenset[str]) -> Structure:
    """Return the graph with calls as blocks, but those of the ``single`` tasks.

    Raises NotCoalescableError, naming one more such task.
    """
    graph, mesh, folding, contention = Graph(), job.plan.mesh, job.folding, job.contention
    tables = {rank: _tables(job, rank, single) for rank in job.programs}
    find_channels(graph, tables, job.programs, mesh, folding.stands_for)
    teams = {ranks: Team(graph, ranks) for ranks in job.teams.values()}
    known = KnownBlocks()
    ranks = {
        rank: RankCompiler(graph, rank, program, tables[rank], contention, known, teams.get(job.teams.get(rank, ())))
        for rank, program in job.programs.items()
    }
    compile_ranks(graph, list(ranks.values()))
    for team in teams.values():
        task = team.finish()
        if task is not None:
            raise NotCoalescableError(task)
    link_messages(graph, ranks, mesh, folding.stands_for, all_received=job.all_received)
    link_collectives(graph, ranks, mesh, folding.stands_for, contention.contended)
    return Structure(job.programs, tables, graph)


def _tables(job: _Job, rank: int, single: frozenset[str]) -> dict[str, TaskTable]:
    """Return a simulated rank's tables."""
    program = job.programs[rank]
    return tabulate(
        program,
        job.priced[rank],
        job.shapes[id(program)],
        job.contention,
        single,
        job.known,
        joint=lambda op: len(job.folding.classes_of(job.plan.mesh, rank, op)) > 1,
        in_team=rank in job.teams,
    )
