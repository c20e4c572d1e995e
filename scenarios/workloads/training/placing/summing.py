"""Steps in which experts move, one after the other, as sums of calls."""

from scenarios.workloads.training.placing.decisions import moving_of
from scenarios.workloads.training.placing.rows import TakenStep, taken
from sim.engine.prices.pricing import ClusterPricing
from sim.moe.balancing.flexmoe import FlexMoE
from sim.moe.balancing.replicas import Placed
from sim.moe.routing import of_ranks
from sim.moe.statistics import max_over_mean, shares
from sim.planner.moving.load import PlacedStep
from sim.planner.moving.steps import StepSums
from sim.training.spec.job import DenseTraining


def summed_steps(job: DenseTraining, policy: FlexMoE, pricing: ClusterPricing) -> tuple[list[TakenStep], Placed]:
    """Return all steps of a job whose experts move, and where experts lie in the last one.

    Raises SpecError for a job whose steps are no sums of calls.
    """
    sums, state, placed, steps = StepSums(job, pricing), policy.start(), Placed(policy.first), list[TakenStep]()
    while True:
        routing, replicas = job.routing_later(len(steps)), placed.replicas
        of_step = PlacedStep(routing.counts, replicas.table, replicas.on_the_way, placed.search_s)
        step_s, loads = sums.step_s(of_step), max_over_mean(of_step.rows.sum(2))
        fixed = max_over_mean(of_ranks(routing.by_expert, replicas.num_ranks))
        steps.append(taken(step_s, placed, loads, fixed, shares(routing.by_expert)))
        if len(steps) == moving_of(job).steps:
            return steps, placed
        state, placed = policy.following(state, [*(routing.counts * job.num_microbatches)])
