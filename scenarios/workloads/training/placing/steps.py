"""The simulation of steps in which experts move, one after the other; the last one in full."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from backends.simulated import SimulatedBackend
from scenarios.summaries.steps.placement import PlacedStep, PlacementSummary
from scenarios.workloads.effort import Announce
from scenarios.workloads.steps.pricing import locating_algorithms
from scenarios.workloads.steps.running import SimulatedStep, simulate
from scenarios.workloads.training.placing.decisions import moving_of, placed_job, policy_of
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
    policy = policy_of(scenario.dense_job, scenario.pricing())
    turns = simulated_turns(scenario, policy, fold=fold)
    found = simulate(last_step(scenario, turns), detail=detail, fold=fold, announce=announce)
    return dataclasses.replace(
        found, summary=dataclasses.replace(found.summary, placement=_summary(scenario.dense_job, policy, turns))
    )


def simulated_turns(scenario: TrainingScenario, policy: FlexMoE, *, fold: bool = True) -> tuple[Turn[Placed], ...]:
    """Return all steps of a scenario whose experts move, run by a policy in a simulated session."""
    job, backend = scenario.dense_job, SimulatedBackend(scenario.pricing(), fold, observations=ForcedCounts())
    with (
        locating_algorithms(scenario.document, scenario.algorithms),
        backend.session(scenario.cluster.world_size) as session,
    ):
        return run_policy(session, policy, replica_steps(job, policy.observed), moving_of(job).steps)


def last_step(scenario: TrainingScenario, turns: Sequence[Turn[Placed]]) -> TrainingScenario:
    """Return the scenario at the last of some steps, with the placements of all."""
    placements = tuple(turn.decision for turn in turns)
    job = placed_job(scenario.dense_job, placements[-1], len(turns) - 1)
    return dataclasses.replace(scenario, job=job, placements=placements)


def _summary(job: DenseTraining, policy: FlexMoE, turns: Sequence[Turn[Placed]]) -> PlacementSummary:
    experts = job.model.experts
    assert experts is not None
    jobs = [placed_job(job, turn.decision, step) for step, turn in enumerate(turns)]
    layer = int(np.argmax(max_over_mean(loads_of_ranks(jobs[-1]))))
    times_s = [turn.result.duration_s for turn in turns]
    return PlacementSummary(
        policy=moving_of(job).policy,
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
        num_copies=replicas.num_copies,
        num_arriving=replicas.num_arriving,
        num_changes=placed.num_changes,
        search_s=placed.search_s,
        fixed_max_over_mean=float(max_over_mean(loads_of_ranks(fixed)).mean()),
        rank_max_over_mean=float(max_over_mean(loads_of_ranks(job)).mean()),
        expert_shares=tuple(shares(routing.by_expert)[layer].tolist()),
    )
