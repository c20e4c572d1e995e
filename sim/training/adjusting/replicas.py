"""Data-parallel replicas that leave or join a session's mesh.

A replica that leaves is absent from the next plan. It gives up its buffers, so it cannot return with old parameters. A
replica that joins receives parameters and optimizer state from a replica that stayed, by the moves of ``adjusted``.
Both change the data-parallel degree, and with it the micro-batches of a step; the next job states them.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from sim.plan.errors import SessionError
from sim.plan.session.residents import Residents
from sim.plan.words.program import Plan
from sim.training.adjusting.adjustment import adjusted


def with_leavers(plan: Plan, ranks: Sequence[int], residents: Residents) -> Plan:
    """Return a plan on ``ranks`` that begins with the moves it needs; all other ranks with buffers leave.

        plan = with_leavers(build_dense_training(job, "one replica"), ranks=(0, 2), residents=session.residents)

    Raises SessionError if only leaving ranks hold a buffer that the plan needs.
    """
    leavers = frozenset(residents.left) - frozenset(ranks)
    return adjusted(replace(plan, ranks=tuple(ranks), leavers=leavers), residents)


def with_joiners(plan: Plan, ranks: Sequence[int], residents: Residents) -> Plan:
    """Return a plan on ``ranks``; new ranks receive the buffers that they need from a replica that holds them.

        plan = with_joiners(build_dense_training(job, "two replicas"), ranks=(0, 1, 2, 3), residents=session.residents)

    Raises SessionError if a rank with buffers would idle: it must leave by ``with_leavers``.
    """
    idle = sorted(set(residents.left) - set(ranks))
    if idle:
        rule = f"rank {idle[0]} holds what earlier plans left, and does not take part"
        raise SessionError(f"plan {plan.name!r}: {rule}; let it leave first (with_leavers)")
    return adjusted(replace(plan, ranks=tuple(ranks)), residents)
