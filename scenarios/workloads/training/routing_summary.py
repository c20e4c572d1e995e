"""From a job with a forced routing and its simulated step to how evenly experts and ranks are loaded."""

import numpy as np

from scenarios.summaries.steps.mean_rank import mean_exposed_s
from scenarios.summaries.steps.routing import RoutingSummary
from scenarios.summaries.steps.step import StepSummary
from sim.engine.findings.breakdown import EXPERT_WAIT
from sim.moe.statistics import max_over_mean, shares
from sim.training.layers import rank_routing
from sim.training.spec.job import TrainingJob


def routing_summary(job: TrainingJob, summary: StepSummary) -> RoutingSummary | None:
    """Return how a forced routing loads the job's experts; None where none is forced."""
    routing, experts = job.routing, job.model.experts
    if routing is None or experts is None:
        return None
    of_rank = max_over_mean(rank_routing.loads_of_ranks(job))
    layer = int(np.argmax(of_rank))
    waiting_s = mean_exposed_s(summary.roles).get(EXPERT_WAIT, 0.0)
    return RoutingSummary(
        dispatch=experts.dispatch,
        waiting_fraction=waiting_s / summary.iteration_time_s if experts.rank_load == "own" else None,
        expert_max_over_mean=float(max_over_mean(routing.by_expert).mean()),
        rank_max_over_mean=float(of_rank.mean()),
        kept_fraction=job.kept_fraction,
        uneven_layer=layer + experts.first_dense_layers,
        layer_shares=tuple(shares(routing.by_expert)[layer].tolist()),
    )
