"""The simulation of steps in which experts move, one after the other; the last one in full, or the first."""

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from backends.simulated import SimulatedBackend
from scenarios.reading.documents.located import located
from scenarios.workloads.effort import Announce
from scenarios.workloads.steps.pricing import locating_algorithms
from scenarios.workloads.steps.running import SimulatedStep, simulate
from scenarios.workloads.training.placing.decisions import moving_of, placed_job, policy_of
from scenarios.workloads.training.placing.rows import TakenStep, placement_summary, taken
from scenarios.workloads.training.placing.summing import summed_steps
from scenarios.workloads.training.scenario import TrainingScenario
from scenarios.workloads.workload import Detail
from sim.engine.running.collector import collector_paused
from sim.moe.balancing.fastermoe import FasterMoE
from sim.moe.balancing.flexmoe import FlexMoE
from sim.moe.balancing.replicas import Placed
from sim.moe.statistics import max_over_mean, shares
from sim.plan.session.driver import Turn, run_policy
from sim.plan.session.protocol import Policy, Session
from sim.training.adjusting.experts import ForcedCounts, replica_steps
from sim.training.layers.rank_routing import loads_of_ranks
from sim.training.spec.job import DenseTraining


@collector_paused()
def simulate_moving(
    scenario: TrainingScenario, *, detail: Detail | None = None, fold: bool = True, announce: Announce | None = None
) -> SimulatedStep:
    """Return the last step of a scenario whose experts move, or the first, with a row for each step in the summary.

    Raises ScenarioError for a job whose steps are to be sums of calls and cannot be.
    """
    job, moving = scenario.dense_job, moving_of(scenario.dense_job)
    policy = policy_of(job, scenario.pricing())
    if moving.step_times == "sums" and isinstance(policy, FlexMoE):
        with located(scenario.document), locating_algorithms(scenario.document, scenario.algorithms):
            steps, placed = summed_steps(job, policy, scenario.pricing())
    else:
        turns = simulated_turns(scenario, policy, fold=fold)
        steps, placed = _taken(job, turns), turns[-1].decision
    is_first = moving.in_full == "first"
    chosen = _first_of_busiest(scenario) if is_first else last_step(scenario, placed)
    found = simulate(chosen, detail=detail, fold=fold, announce=announce)
    error = None
    if moving.step_times == "sums" and not is_first:
        error = steps[-1].duration_s / found.summary.iteration_time_s - 1.0
    maker = policy.maker if isinstance(policy, FlexMoE) else None
    placement = placement_summary(job, maker, steps, error)
    return replace(found, summary=replace(found.summary, placement=placement))


def _first_of_busiest(scenario: TrainingScenario) -> TrainingScenario:
    """Return the scenario of the first step, in which no expert has copies, with the busiest rank in place of all."""
    job, experts = scenario.dense_job, scenario.dense_job.model.experts
    assert experts is not None
    busiest = replace(experts, moving=None, rank_load="busiest")
    return replace(scenario, job=replace(job, model=replace(job.model, experts=busiest)))


def simulated_turns(
    scenario: TrainingScenario, policy: FlexMoE | FasterMoE, *, fold: bool = True
) -> tuple[Turn[Placed], ...]:
    """Return all steps of a scenario whose experts move, run by a policy in a simulated session."""
    job, backend = scenario.dense_job, SimulatedBackend(scenario.pricing(), fold, observations=ForcedCounts())
    with (
        locating_algorithms(scenario.document, scenario.algorithms),
        backend.session(scenario.cluster.world_size) as session,
    ):
        return moving_turns(session, policy, job)


def moving_turns(session: Session, policy: FlexMoE | FasterMoE, job: DenseTraining) -> tuple[Turn[Placed], ...]:
    """Return all steps of a job whose experts move, in a started session."""
    either: Policy[Any, Placed] = policy  # each has a state of its own
    return run_policy(session, either, replica_steps(job, policy.observed), moving_of(job).steps)


def last_step(scenario: TrainingScenario, placed: Placed) -> TrainingScenario:
    """Return the scenario at its last step, in which experts lie so."""
    job = placed_job(scenario.dense_job, placed, moving_of(scenario.dense_job).steps - 1)
    return replace(scenario, job=job, placed=placed)


def _taken(job: DenseTraining, turns: Sequence[Turn[Placed]]) -> list[TakenStep]:
    """Return what was taken down of each step."""
    found = []
    for step, turn in enumerate(turns):
        placed = placed_job(job, turn.decision, step)
        routing, experts = placed.routing, placed.model.experts
        assert routing is not None
        assert experts is not None
        fixed = replace(placed, model=replace(placed.model, experts=replace(experts, replicas=None)))
        loads, stayed = (max_over_mean(loads_of_ranks(each)) for each in (placed, fixed))
        found.append(taken(turn.result.duration_s, turn.decision, loads, stayed, shares(routing.by_expert)))
    return found
