"""A plan in, a simulated run out."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import Final

from sim.engine.compiling.channels import find_channels
from sim.engine.compiling.compiler import NotCoalescableError, RankCompiler
from sim.engine.compiling.contention import Contention, find_contention
from sim.engine.compiling.graph import Graph, PricedTask
from sim.engine.compiling.linking import link_collectives, link_messages
from sim.engine.compiling.repricing import repriced, same_structure
from sim.engine.compiling.shape import TaskShape, analyse
from sim.engine.compiling.tables import TaskTable, tabulate
from sim.engine.compiling.teams import Team, find_teams
from sim.engine.folding.folding import Folding, fold
from sim.engine.prices.activity import Activity, Pricing
from sim.engine.prices.launching import launched
from sim.engine.running.collector import collector_paused
from sim.engine.running.deadlock import refuse_deadlock
from sim.engine.running.loop import EventLoop
from sim.engine.running.run import SimulatedRun
from sim.plan.words.op import Collective, LinkOp, Op
from sim.plan.words.program import Plan, Program, Task
from sim.plan.words.steps import repeated

NUMBERS_OF_STEPS: Final = (4, 8, 16)
"""How many steps are simulated where none waits for the others at its end, until two in a row take equally long."""


Fold = Callable[[Plan, Pricing], Folding]


def simulate(plan: Plan, pricing: Pricing, *, fold: Fold = fold, coalesce: bool = True) -> SimulatedRun:
    """Return the run of one step of ``plan``.

    Without a barrier between steps it is a step in the middle of several: as many are simulated as it takes to see
    the steady period. Raises CheckError where sends and receives do not match, DeadlockError where the run gets stuck.
    """
    return Simulation(plan, fold, coalesce).run(pricing)


@dataclass
class Simulation:
    """A plan to be simulated under one price after the other: it is compiled again only where prices ask for it.

    Each run is to the last bit what ``simulate`` returns. It holds what the last one was compiled to.
    """

    plan: Plan
    fold: Fold = fold
    coalesce: bool = True
    _folding: Folding | None = None
    _priced: Mapping[int, Mapping[str, PricedTask]] = field(default_factory=dict)
    _compiled: dict[int, "_Compiled"] = field(default_factory=dict)
    _shapes: dict[int, Mapping[str, TaskShape]] = field(default_factory=dict)

    def run(self, pricing: Pricing) -> SimulatedRun:
        """Return the run of one step under some prices. Raises as ``simulate``."""
        with collector_paused():
            began_s = perf_counter()
            folding = self.fold(self.plan, pricing)
            programs = {rank: self.plan.program_of(rank) for rank in folding.multiplicity}
            self._shapes = self._shapes or {id(p): _shapes(p) for p in self.plan.programs}
            priced = {rank: _price(self.plan, pricing, folding, rank, self._shapes) for rank in programs}
            if self._folding is None or not (
                folding.same_as(self._folding) and same_structure(programs, self._priced, priced)
            ):
                self._compiled = {}
            self._folding, self._priced = folding, priced
            for num_steps in (1,) if self.plan.barrier else NUMBERS_OF_STEPS:
                run = self._run_steps(programs, num_steps)
                if run.is_steady:
                    break
            run.wall_time_s = perf_counter() - began_s
        return run

    def _run_steps(self, programs: Mapping[int, Program], num_steps: int) -> SimulatedRun:
        """Simulate that many steps in a row."""
        assert self._folding is not None
        known = self._compiled.get(num_steps)
        if known is None:
            in_a_row = _in_a_row(programs, num_steps)
            job = _job(self.plan, self._folding, in_a_row, self._priced, self._shapes)
            known = self._compiled[num_steps] = _compile_coalesced(job, coalesce=self.coalesce)
            graph = known.graph
        else:
            graph = repriced(known.graph, known.tables, known.programs, self._priced)
        loop = EventLoop(graph)
        loop.run()
        refuse_deadlock(SimulatedRun(self.plan, self._folding, known.programs, self._priced, graph, loop))
        return SimulatedRun(self.plan, self._folding, programs, self._priced, graph, loop, num_steps)


def _shapes(program: Program) -> dict[str, TaskShape]:
    return {name: analyse(task) for name, task in program.tasks.items()}


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
    plan: Plan,
    folding: Folding,
    programs: Mapping[int, Program],
    priced: Mapping[int, Mapping[str, PricedTask]],
    shapes: Mapping[int, Mapping[str, TaskShape]],
) -> _Job:
    """Find out who may meet whom; ``shapes``: of the plan's own programs, whose tasks those of several steps share."""
    classes_of = partial(folding.classes_of, plan.mesh)
    contention = find_contention(
        programs, priced, lambda rank, op: classes_of(rank, op)[0] if isinstance(op, Collective) else rank
    )
    by_program = {id(program): shapes[id(plan.program_of(rank))] for rank, program in programs.items()}
    teams = find_teams(programs, priced, contention, classes_of)
    return _Job(plan, folding, programs, priced, contention, by_program, teams)


@dataclass(frozen=True, slots=True)
class _Compiled:
    """A graph and what it was compiled from, by simulated rank."""

    programs: Mapping[int, Program]
    tables: Mapping[int, Mapping[str, TaskTable]]
    graph: Graph


def _compile_coalesced(job: _Job, *, coalesce: bool) -> _Compiled:
    """Compile with as many tasks coalesced as their dependencies allow."""
    single = frozenset[str]()
    if not coalesce:
        single = frozenset(name for program in job.plan.programs for name in program.tasks)
    while True:
        try:
            return _compile(job, single)
        except NotCoalescableError as error:
            single |= {error.task}


def _in_a_row(programs: Mapping[int, Program], num_steps: int) -> Mapping[int, Program]:
    """Return the program of several steps of every rank; ranks with one program share it."""
    if num_steps == 1:
        return programs
    several = {key: repeated(p, num_steps) for key, p in {id(p): p for p in programs.values()}.items()}
    return {rank: several[id(program)] for rank, program in programs.items()}


def _price(
    plan: Plan, pricing: Pricing, folding: Folding, rank: int, shapes: Mapping[int, Mapping[str, TaskShape]]
) -> dict[str, PricedTask]:
    program = plan.program_of(rank)

    def folded(op: Op, activity: Activity) -> Activity:
        return folding.folded(op, rank, activity) if isinstance(op, LinkOp) else activity

    def priced(name: str, task: Task) -> PricedTask:
        launches_s, waits = pricing.launches_s(task), shapes[id(program)][name].predecessors
        alone = [pricing.price(plan, program, op, rank) for op in task.ops]
        late = launched(waits, launches_s, alone)  # as late as each rank's own, whoever else is like it
        return PricedTask(tuple(map(folded, task.ops, late)), launches_s)

    return {name: priced(name, task) for name, task in program.tasks.items()}


def _compile(job: _Job, single: frozenset[str]) -> _Compiled:
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
    return _Compiled(job.programs, tables, graph)


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
