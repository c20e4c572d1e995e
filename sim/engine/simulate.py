"""A plan in, a simulated run out."""

from collections.abc import Callable, Mapping
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
from sim.engine.linking import link_collectives, link_messages
from sim.engine.loop import EventLoop
from sim.engine.run import SimulatedRun
from sim.engine.shape import TaskShape, analyse
from sim.engine.tables import tabulate
from sim.plan.op import Collective, Op, Send
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
    steps = _in_a_row(programs, num_steps)
    contention = find_contention(steps, priced)
    different = {id(program): program for program in steps.values()}
    shapes = {key: {name: analyse(task) for name, task in p.tasks.items()} for key, p in different.items()}
    single = frozenset[str]()
    if not coalesce:
        single = frozenset(name for program in plan.programs for name in program.tasks)
    while True:
        try:
            graph = _compile(plan, folding, steps, priced, contention, single, shapes)
        except NotCoalescableError as error:
            single |= {error.task}
            continue
        loop = EventLoop(graph)
        loop.run()
        refuse_deadlock(SimulatedRun(plan, folding, steps, priced, graph, loop))
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
        return folding.folded(op, rank, activity) if isinstance(op, Collective | Send) else activity

    return {name: PricedTask(tuple([price(op) for op in task.ops])) for name, task in program.tasks.items()}


def _compile(
    plan: Plan,
    folding: Folding,
    programs: Mapping[int, Program],
    priced: Mapping[int, Mapping[str, PricedTask]],
    contention: Contention,
    single: frozenset[str],
    shapes: Mapping[int, Mapping[str, TaskShape]],
) -> Graph:
    graph = Graph()
    tables = {
        rank: tabulate(
            program,
            priced[rank],
            shapes[id(program)],
            contention,
            single,
            joint=partial(folding.is_joint, plan.mesh, rank),
        )
        for rank, program in programs.items()
    }
    find_channels(graph, tables, plan.mesh, folding.stands_for)
    ranks = {rank: RankCompiler(graph, rank, program, tables[rank], contention) for rank, program in programs.items()}
    for compiler in ranks.values():
        compiler.compile()
    link_messages(graph, ranks, plan.mesh, folding.stands_for)
    link_collectives(graph, ranks, plan.mesh, folding.stands_for, contention.contended)
    return graph
