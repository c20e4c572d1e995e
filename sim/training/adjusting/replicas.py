"""Data-parallel replicas that leave a session's mesh, and that join it.

A replica leaves by not being in the next plan; what it holds is given up, so that it cannot take part again with old
parameters. One that joins receives parameters and the optimizer's state from a replica that has stayed: the moves are
those of ``adjusted``. Both change the data-parallel degree, and with it the micro-batches of a step. The next job says
so.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace

from sim.plan.errors import SessionError
from sim.plan.session.residents import Residents
from sim.plan.words.mesh import Mesh
from sim.plan.words.program import Plan
from sim.training.adjusting.adjustment import adjusted


def without_replicas(ranks: Sequence[int], mesh: Mesh, axis: str, places: Collection[int]) -> tuple[int, ...]:
    """Return the ranks of a session that stay when the replicas at some places along an axis leave.

    ``ranks``: those on which the mesh lies so far.
    """
    return tuple(here for rank, here in enumerate(ranks) if mesh.coordinate(rank, axis) not in places)


def with_leavers(plan: Plan, ranks: Sequence[int], residents: Residents) -> Plan:
    """Return a plan on ``ranks``. All other ranks that hold anything leave, and what it needs is moved first.

        plan = with_leavers(build_dense_training(job, "one replica"), ranks=(0, 2), residents=session.residents)

    Raises SessionError where what the plan needs is held by ranks alone that leave.
    """
    leavers = frozenset(residents.left) - frozenset(ranks)
    return adjusted(replace(plan, ranks=tuple(ranks), leavers=leavers), residents)


def with_joiners(plan: Plan, ranks: Sequence[int], residents: Residents) -> Plan:
    """Return a plan on ``ranks``; those that hold nothing yet receive what they need from a replica that does.

        plan = with_joiners(build_dense_training(job, "two replicas"), ranks=(0, 1, 2, 3), residents=session.residents)

    Raises SessionError where a rank that holds something would idle: it leaves by ``with_leavers``.
    """
    idle = sorted(set(residents.left) - set(ranks))
    if idle:
        rule = f"rank {idle[0]} holds what earlier plans left, and does not take part"
        raise SessionError(f"plan {plan.name!r}: {rule}; let it leave first (with_leavers)")
    return adjusted(replace(plan, ranks=tuple(ranks)), residents)
