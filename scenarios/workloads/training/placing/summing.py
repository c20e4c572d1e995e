"""Steps in which experts move, one after the other, as sums of calls."""

from msgspec.structs import replace

from scenarios.workloads.training.placing.decisions import moving_of
from scenarios.workloads.training.placing.rows import TakenStep, taken
from sim.engine.prices.pricing import ClusterPricing
from sim.moe.balancing.flexmoe import FlexMoE
from sim.moe.balancing.replicas import Placed, Replicas
from sim.moe.routing import of_ranks
from sim.moe.statistics import max_over_mean, shares
from sim.planner.moving.load import PlacedStep
from sim.planner.moving.steps import StepSums
from sim.training.spec.job import DenseTraining


def summed_steps(job: DenseTraining, policy: FlexMoE, pricing: ClusterPricing) -> tuple[list[TakenStep], list[Placed]]:
    """Return all steps of a job whose experts move, and their placements: the policy's decisions, and their times.

    Raises SpecError for a job whose steps are no sums of calls.
    """
    sums, state, placed = StepSums(job, pricing), policy.start(), Placed(policy.first)
    steps, placements = list[TakenStep](), list[Placed]()
    shown, kept = placed.replicas, _without_tables(placed.replicas)
    for step in range(moving_of(job).steps):
        counts = job.routing_later(step).counts
        replicas, by_expert = placed.replicas, counts.sum(1)
        of_step = PlacedStep(counts, replicas.table, replicas.on_the_way, placed.search_s)
        step_s, loads = sums.step_s(of_step), max_over_mean(of_step.rows.sum(2))
        fixed = max_over_mean(of_ranks(by_expert, replicas.num_ranks))
        steps.append(taken(step_s, placed, loads, fixed, shares(by_expert)))
        if replicas is not shown:
            shown, kept = replicas, _without_tables(replicas)
        placements.append(replace(placed, replicas=kept))
        state, placed = policy.following(state, [*(counts * job.num_microbatches)])
    return steps, placements


def _without_tables(replicas: Replicas) -> Replicas:
    """Return the same placement without what was derived from it, which would fill the memory over many steps."""
    return Replicas(replicas.vexperts, replicas.arriving)
