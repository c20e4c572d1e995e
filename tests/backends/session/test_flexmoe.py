"""FlexMoE as a policy: one object in simulation and execution, and training that replicas do not change."""

from itertools import pairwise

import numpy as np
import pytest

from backends.simulated import SimulatedBackend
from backends.torch.backend import TorchBackend
from sim.moe.balancing.estimate import Rates
from sim.moe.balancing.flexmoe import FlexMoE
from sim.moe.balancing.policy_maker import PolicyMaker
from sim.moe.balancing.replicas import Replicas, shared_out
from sim.moe.skew import Skew
from sim.plan.session.driver import Turn, run_policy
from sim.plan.session.protocol import Session
from sim.training.adjusting.adjustment import ADJUSTMENT
from sim.training.adjusting.experts import ForcedCounts, replica_steps
from tests.backends.expert_runs import exact
from tests.backends.jobs import training
from tests.backends.session.session_policies import simulated_backend

STEPS, RANKS = 20, 2
JOB = training(
    model=exact(routing=Skew(zipf=1.5, swap_probability=0.9, fluctuation=0.6, memory_steps=2.0), top_k=1),
    data_degree=2, expert_degree=2, batch=(8, 2),
)  # fmt: skip
RATES = Rates(tokens_per_s=4e3, token_bytes=64, link_bytes_per_s=1e9, reduce_bytes_per_s=1e9, gradient_bytes=1e3)
FIXED = shared_out(2, RANKS, 4)
POLICY = FlexMoE(maker=PolicyMaker(rates=RATES, num_slots=4, threshold=1.1), first=FIXED, groups=((0, 1),))
WEIGHTS = frozenset({"layer0.router.weight", "layer1.router.weight", "loss"})


class Fixed:
    """Leaves experts where they are."""

    observed = frozenset[str]()

    def start(self) -> Replicas:
        """Return the placement without replicas."""
        return FIXED

    def decide(self, state: Replicas, _: object) -> tuple[Replicas, Replicas]:
        """Return the same placement again."""
        return state, state


def steps(session: Session, policy: FlexMoE | Fixed, seen: frozenset[str] = WEIGHTS) -> tuple[Turn[Replicas], ...]:
    """Return the turns of a policy in a session."""
    return run_policy(session, policy, replica_steps(JOB, policy.observed | seen), STEPS)


@pytest.fixture(scope="module")
def executed() -> tuple[tuple[Turn[Replicas], ...], tuple[Turn[Replicas], ...]]:
    """Return what two started processes did with the policy, and without."""
    with TorchBackend().session(RANKS) as session:
        moving = steps(session, POLICY)
    with TorchBackend().session(RANKS) as session:
        return moving, steps(session, Fixed())


def test_training_with_moving_replicas_is_that_without(executed) -> None:
    """Losses of 20 steps and the routers' weights after each are equal to 1e-9, while replicas come, move and go."""
    moving, fixed = executed
    placements = [turn.decision for turn in moving]
    assert len(set(placements)) > 5
    held = [{(n, rank, e) for n in (0, 1) for rank in (0, 1) for e in p.held(n, rank)} for p in placements]
    pairs = list(pairwise(held))
    assert any(after - before for before, after in pairs)
    assert any(before - after for before, after in pairs)
    for ours, theirs in zip(moving, fixed, strict=True):
        for name in WEIGHTS:
            for rank, values in theirs.result.observed[name].items():
                np.testing.assert_allclose(ours.result.observed[name][rank], values, rtol=1e-9, atol=1e-12)


def test_one_policy_decides_alike_in_simulation_and_execution(executed) -> None:
    """Decisions, ops and bytes of all 20 steps are those of the execution; moves are ops of the plan."""
    moving, _ = executed
    prices = simulated_backend(None).pricing
    with SimulatedBackend(prices, observations=ForcedCounts()).session(RANKS) as session:
        simulated = steps(session, POLICY, frozenset())
    assert [turn.decision for turn in simulated] == [turn.decision for turn in moving]
    for ours, theirs in zip(simulated, moving, strict=True):
        assert ours.result.work == theirs.result.work
    tasks = [{name for program in turn.plan.programs for name in program.tasks} for turn in simulated]
    assert ADJUSTMENT not in tasks[0]
    assert any(ADJUSTMENT in names for names in tasks)
