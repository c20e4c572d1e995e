"""Means over all ranks of a run."""

from collections.abc import Mapping

from sim.engine.running.run import SimulatedRun


def mean_over_ranks(run: SimulatedRun, per_rank: Mapping[int, float]) -> float:
    """Return the mean over all ranks; a simulated rank counts once for each rank that it stands for."""
    return sum(value * run.folding.multiplicity[rank] for rank, value in per_rank.items()) / run.plan.mesh.size
