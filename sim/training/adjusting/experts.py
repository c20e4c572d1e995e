"""Moves of experts between ranks: copies that a step needs come before its own calls, others are given up.

job = with_replicas(job, placement, later=7)
plan = with_experts_moved(build_dense_training(job, "step 7"), session.residents)
"""

from collections.abc import Callable

import numpy as np
from msgspec.structs import replace

from sim.moe.balancing.replicas import Placed, Replicas
from sim.plan.session.observations import shapes_by_name
from sim.plan.session.protocol import Array, Seen
from sim.plan.session.residents import Residents
from sim.plan.words.buffer import Buffer
from sim.plan.words.op import Collective, Compute, Recv, Send
from sim.plan.words.program import Plan, Program
from sim.plan.words.stream import Purpose
from sim.training.adjusting.adjustment import ADJUSTMENT, adjusted
from sim.training.spec.job import DenseTraining
from sim.training.steps.builder import build_dense_training


def with_replicas(job: DenseTraining, replicas: Replicas | None, later: int = 0) -> DenseTraining:
    """Return a job with experts placed so, and with the routing of so many steps later; None: each on one rank.

    Raises SpecError if they do not fit.
    """
    experts = job.model.experts
    assert experts is not None
    return replace(job, model=replace(job.model, experts=replace(experts.later(later), replicas=replicas)))


def with_experts_moved(plan: Plan, residents: Residents, search_s: float = 0.0, *, in_background: bool = False) -> Plan:
    """Return a plan that begins with the moves of state that it needs, and gives up the copies without a use in it.

    ``search_s``: time of the host's search that finds the moves, which wait for it; nothing else does.
    ``in_background``: moves use only what other communication leaves of the links.
    """
    plan = with_copies_sent(plan, residents, search_s, in_background=in_background)
    return replace(plan, programs=tuple(_without_stale(plan, program, residents) for program in plan.programs))


def with_copies_sent(plan: Plan, residents: Residents, search_s: float = 0.0, *, in_background: bool = False) -> Plan:
    """Return a plan that begins with the moves of state that it needs, as ``with_experts_moved``; none is given up."""
    plan = adjusted(plan, residents)
    return replace(plan, programs=tuple(_after_search(program, search_s, in_background) for program in plan.programs))


def _after_search(program: Program, search_s: float, in_background: bool) -> Program:
    """Return a program whose moves wait for a search, on streams of the background if they yield."""
    task = program.tasks.get(ADJUSTMENT)
    if task is None:
        return program
    ops = task.ops
    if in_background:
        moves = Collective | Send | Recv
        ops = tuple(
            replace(op, stream=f"{Purpose.BACKGROUND}_{op.stream}") if isinstance(op, moves) else op for op in ops
        )
    streams = dict.fromkeys(op.stream for op in ops if isinstance(op, Collective | Send)) if search_s else {}
    waits = [Compute(f"search.{name}", "delay", (), (), {"duration_s": search_s}, name) for name in streams]
    return replace(program, tasks={**program.tasks, ADJUSTMENT: replace(task, ops=(*waits, *ops))})


def _without_stale(plan: Plan, program: Program, residents: Residents) -> Program:
    """Return a program that gives up the buffers which its ranks hold and it does not have."""
    stale: dict[str, Buffer] = {}
    for rank in plan.ranks_of(program):
        for source in residents.left.get(plan.session_ranks[rank], ()):
            stale |= {name: source.program.buffers[name] for name in sorted(source.names - program.buffers.keys())}
    if not stale:
        return program
    return replace(program, buffers={**stale, **program.buffers}, released=program.released | stale.keys())


def replica_steps(job: DenseTraining, observed: frozenset[str]) -> Callable[[Placed, Residents], Plan]:
    """Return the builder of a session's plans from placements.

    ``job``: of the first step; the routing of later ones goes on from it. ``observed``: buffers to see in every step.
    """

    def build(placed: Placed, residents: Residents) -> Plan:
        step = residents.num_plans
        plan = build_dense_training(with_replicas(job, placed.replicas, step), f"step {step}")
        plan = replace(plan, observed=observed)
        return with_experts_moved(plan, residents, placed.search_s, in_background=bool(placed.replicas.arriving))

    return build


class ForcedCounts:
    """The observations of a simulated session whose routing is forced: the counts that the plan itself states."""

    def seen(self, index: int, plan: Plan, duration_s: float) -> Seen:
        """Return the choices by expert, of every rank and micro-batch."""
        del index
        counts: dict[str, dict[int, Array]] = {}
        for name, ranks in shapes_by_name(plan).items():
            here = {session: rank for rank, session in enumerate(plan.session_ranks)}
            counts[name] = {
                session: np.broadcast_to(_forced(plan.program_of(here[session]), name), shape).astype(np.float64)
                for session, shape in ranks.items()
            }
        return Seen(duration_s, counts)


def _forced(program: Program, name: str) -> Array:
    """Return the choices by expert that the op which writes a buffer has. Raises KeyError for another buffer."""
    for task in program.tasks.values():
        for op in task.ops:
            if isinstance(op, Compute) and name in op.writes and op.attributes.get("forced"):
                return np.array(op.attributes["forced"], dtype=np.float64)
    raise KeyError(name)
