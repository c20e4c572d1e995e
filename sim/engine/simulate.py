"""A plan in, a simulated run out."""

from collections.abc import Callable, Mapping
from functools import partial
from time import perf_counter

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


def simulate(
    plan: Plan, pricing: Pricing, *, fold: Callable[[Plan, Pricing], Folding] = fold, coalesce: bool = True
) -> SimulatedRun:
    """Return the run of one step of ``plan``.

    Raises CheckError where sends and receives do not match, DeadlockError where the run gets stuck.
    """
    with collector_paused():
        began_s = perf_counter()
        folding = fold(plan, pricing)
        run = _simulate_coalesced(plan, pricing, folding, coalesce=coalesce)
        run.wall_time_s = perf_counter() - began_s
    return run


def _simulate_coalesced(plan: Plan, pricing: Pricing, folding: Folding, *, coalesce: bool) -> SimulatedRun:
    """Simulate with as many tasks coalesced as their dependencies allow."""
    programs = {rank: plan.program_of(rank) for rank in folding.multiplicity}
    priced = {rank: _price(plan, pricing, folding, rank) for rank in programs}
    contention = find_contention(programs, priced)
    shapes = {id(program): {name: analyse(task) for name, task in program.tasks.items()} for program in plan.programs}
    single = frozenset[str]()
    if not coalesce:
        single = frozenset(name for program in plan.programs for name in program.tasks)
    while True:
        try:
            graph = _compile(plan, folding, programs, priced, contention, single, shapes)
        except NotCoalescableError as error:
            single |= {error.task}
            continue
        loop = EventLoop(graph)
        run = SimulatedRun(plan, folding, programs, priced, graph, loop, loop.run())
        refuse_deadlock(run)
        return run


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
