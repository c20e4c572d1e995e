"""The simulation of steps in which experts move, one after the other; the last one in full."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from backends.simulated import SimulatedBackend
from scenarios.summaries.steps.placement import PlacedStep, PlacementSummary
from scenarios.workloads.effort import Announce
from scenarios.workloads.steps.pricing import locating_algorithms
from scenarios.workloads.steps.running import SimulatedStep, simulate
from scenarios.workloads.training.placing.decisions import num_steps, placed_job, policy_of, step_of_routing
from scenarios.workloads.training.scenario import TrainingScenario
from scenarios.workloads.workload import Detail
from sim.engine.running.collector import collector_paused
from sim.moe.balancing.flexmoe import FlexMoE
from sim.moe.balancing.replicas import Placed
from sim.moe.statistics import max_over_mean, shares
from sim.plan.session.driver import Turn, run_policy
from sim.training.adjusting.experts import ForcedCounts, replica_steps
from sim.training.layers.rank_routing import loads_of_ranks
from sim.training.spec.job import DenseTraining


@collector_paused()
def simulate_moving(
    scenario: TrainingScenario, *, detail: Detail | None = None, fold: bool = True, announce: Announce | None = None
) -> SimulatedStep:
    """Return the last step of a scenario whose experts move, with a row for each of its steps in the summary."""
    job, pricing = scenario.dense_job, scenario.pricing()
    policy = policy_of(job, pricing)
    build = replica_steps(job, policy.observed, step_of_routing(job))
    backend = SimulatedBackend(pricing, fold, observations=ForcedCounts())
    with (
        locating_algorithms(scenario.document, scenario.algorithms),
        backend.session(scenario.cluster.world_size) as session,
    ):
        turns = run_policy(session, policy, build, num_steps(job))
    placements = tuple(turn.decision for turn in turns)
    last = replace(scenario, job=placed_job(job, placements[-1], len(turns) - 1), placements=placements)
    found = simulate(last, detail=detail, fold=fold, announce=announce)
    return replace(found, summary=replace(found.summary, placement=_summary(job, policy, turns)))


def _summary(job: DenseTraining, policy: FlexMoE, turns: Sequence[Turn[Placed]]) -> PlacementSummary:
    experts = job.model.experts
    assert experts is not None
    assert experts.moving is not None
    jobs = [placed_job(job, turn.decision, step) for step, turn in enumerate(turns)]
    layer = int(np.argmax(max_over_mean(loads_of_ranks(jobs[-1]))))
    times_s = [turn.result.duration_s for turn in turns]
    return PlacementSummary(
        policy=experts.moving.policy,
        slots=policy.maker.num_slots,
        threshold=policy.maker.threshold,
        mean_time_s=sum(times_s) / len(times_s),
        layer=layer + experts.first_dense_layers,
        steps=tuple(_step(of_step, turn, layer) for of_step, turn in zip(jobs, turns, strict=True)),
    )


def _step(job: DenseTraining, turn: Turn[Placed], layer: int) -> PlacedStep:
    """Return a step's row; its job has the placement and the routing of the step."""
    placed, routing, experts = turn.decision, job.routing, job.model.experts
    assert routing is not None
    assert experts is not None
    replicas = placed.replicas
    fixed = replace(job, model=replace(job.model, experts=replace(experts, replicas=None)))
    return PlacedStep(
        duration_s=turn.result.duration_s,
        num_copies=sum(
            len(replicas.held(n, rank)) for n in range(len(replicas.vexperts)) for rank in range(replicas.num_ranks)
        ),
        num_arriving=replicas.num_arriving,
        num_changes=placed.num_changes,
        search_s=placed.search_s,
        fixed_max_over_mean=float(max_over_mean(loads_of_ranks(fixed)).mean()),
        rank_max_over_mean=float(max_over_mean(loads_of_ranks(job)).mean()),
        expert_shares=tuple(shares(routing.by_expert)[layer].tolist()),
    )
