"""FlexMoE's and FasterMoE's decisions for a scenario's steps, which follow from the forced routing before a run."""

from collections.abc import Sequence
from functools import lru_cache, partial

import numpy as np
from msgspec.structs import replace

from scenarios.workloads.training.placing.rates import groups_of, profiled_rates, shadow_policy
from sim.engine.prices.pricing import ClusterPricing
from sim.moe.balancing.fastermoe import FasterMoE
from sim.moe.balancing.flexmoe import FlexMoE
from sim.moe.balancing.placement_policy import MovingExperts
from sim.moe.balancing.policy_maker import PolicyMaker
from sim.moe.balancing.replicas import Placed, shared_out
from sim.moe.routing import Counts
from sim.plan.session.residents import Residents
from sim.plan.words.program import Plan
from sim.training.adjusting.experts import with_copies_sent, with_replicas
from sim.training.layers.rank_routing import group_counts
from sim.training.spec.job import DenseTraining
from sim.training.steps.builder import build_dense_training


def policy_of(job: DenseTraining, pricing: ClusterPricing) -> FlexMoE | FasterMoE:
    """Return the policy of a job whose experts move, or have shadows."""
    experts, ranks, moving = job.model.experts, job.parallel.expert_degree, moving_of(job)
    assert experts is not None
    rates, first = profiled_rates(job, pricing), shared_out(job.model.num_expert_layers, ranks, experts.num_experts)
    if moving.policy == "fastermoe":
        maker = shadow_policy(rates, job.model.hidden_size, experts.ffn_hidden_size / job.model.hidden_size)
        return FasterMoE(maker=maker, first=first, foreseen=partial(_of_group, job))
    slots = moving.slots or 2 * experts.num_experts // ranks
    return FlexMoE(
        maker=PolicyMaker(rates=rates, num_slots=slots, threshold=moving.threshold), first=first,
        groups=groups_of(job), first_layer=experts.first_dense_layers, in_background=True, every=moving.every,
    )  # fmt: skip


def placements_of(job: DenseTraining, pricing: ClusterPricing) -> tuple[Placed, ...]:
    """Return the placement of every step, as the policy decides it in a session."""
    policy = policy_of(job, pricing)
    if isinstance(policy, FasterMoE):
        return tuple(policy.decide(step, None)[1] for step in range(moving_of(job).steps))
    return _decided(job, policy)


@lru_cache(maxsize=4)
def _decided(job: DenseTraining, policy: FlexMoE) -> tuple[Placed, ...]:
    found, following = [Placed(policy.first)], policy.start()
    for step in range(moving_of(job).steps - 1):
        following, placed = policy.following(following, counts_at(job, step))
        found.append(placed)
    return tuple(found)


def _of_group(job: DenseTraining, step: int) -> Sequence[Counts]:
    """Return the choices by expert of every layer in a step and micro-batch, on the mean of the groups."""
    counts = group_counts(job.routing_later(step), job.parallel)
    return [*counts.sum(2).mean(1).astype(np.int64)]


def moving_of(job: DenseTraining) -> MovingExperts:
    """Return how experts move, of a job in which they do."""
    experts = job.model.experts
    assert experts is not None
    assert experts.moving is not None
    return experts.moving


def placed_job(job: DenseTraining, placed: Placed, step: int) -> DenseTraining:
    """Return the job of a step, counted from that of ``job``."""
    return with_replicas(job, placed.replicas, step)


def placed_plan(job: DenseTraining, placed: Placed, name: str) -> Plan:
    """Return the plan of a step, with the moves of its copies. ``job``: of that step.

    Copies that it has no use for are given up before it.
    """
    residents = Residents()
    if placed.replicas.arriving:
        before = with_replicas(job, replace(placed.replicas, arriving=()))
        residents = residents.after(build_dense_training(before, name))
    plan = with_copies_sent(build_dense_training(job, name), residents, placed.search_s, in_background=True)
    return replace(plan, barrier=True)


def counts_at(job: DenseTraining, step: int) -> tuple[Counts, ...]:
    """Return the choices [source, expert] of every layer in a step, of all groups and micro-batches together."""
    routing = with_replicas(job, None, step).routing
    assert routing is not None
    return tuple(group_counts(routing, job.parallel).sum(1) * job.num_microbatches)
