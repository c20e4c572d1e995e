"""The rows of steps in which experts move, for the summary of the last one."""

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from scenarios.summaries.steps.placement import PlacedStep, PlacementSummary
from scenarios.workloads.training.placing.decisions import moving_of
from sim.moe.balancing.policy_maker import PolicyMaker
from sim.moe.balancing.replicas import Placed
from sim.training.spec.job import DenseTraining

Floats = NDArray[np.float64]


class TakenStep(Struct, frozen=True, eq=False):
    """What is taken down of a step.

    ``num_copies``: of experts, ``num_arriving`` of them on their way; ``num_changes``, ``search_s``: see ``Placed``.
    ``loads``, ``fixed_loads`` [layer]: largest over mean load of the ranks, as experts lie and if they had stayed.
    ``shares`` [layer, expert]: of the choices.
    """

    duration_s: float
    num_copies: int
    num_arriving: int
    num_changes: int
    search_s: float
    loads: Floats
    fixed_loads: Floats
    shares: Floats


def taken(duration_s: float, placed: Placed, loads: Floats, fixed_loads: Floats, shares: Floats) -> TakenStep:
    """Return what is taken down of a step with such a placement."""
    replicas = placed.replicas
    numbers = replicas.num_copies, replicas.num_arriving, placed.num_changes, placed.search_s
    return TakenStep(duration_s, *numbers, loads, fixed_loads, shares)


def placement_summary(
    job: DenseTraining, maker: PolicyMaker | None, steps: Sequence[TakenStep], sums_error: float | None
) -> PlacementSummary:
    """Return the summary of a job's steps.

    ``maker``: FlexMoE's; FasterMoE has none. ``sums_error``: see ``PlacementSummary``.
    """
    experts, moving = job.model.experts, moving_of(job)
    assert experts is not None
    layer = int(np.argmax(steps[-1].loads))
    return PlacementSummary(
        policy=moving.policy,
        slots=None if maker is None else maker.num_slots,
        threshold=None if maker is None else maker.threshold,
        mean_time_s=sum(step.duration_s for step in steps) / len(steps),
        sums_error=sums_error,
        layer=layer + experts.first_dense_layers,
        steps=tuple(_row(step, layer) for step in steps),
    )


def _row(step: TakenStep, layer: int) -> PlacedStep:
    return PlacedStep(
        duration_s=step.duration_s,
        num_copies=step.num_copies,
        num_arriving=step.num_arriving,
        num_changes=step.num_changes,
        search_s=step.search_s,
        fixed_max_over_mean=float(step.fixed_loads.mean()),
        rank_max_over_mean=float(step.loads.mean()),
        expert_shares=tuple(step.shares[layer].tolist()),
    )
