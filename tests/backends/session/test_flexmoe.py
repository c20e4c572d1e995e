"""FlexMoE as a policy: one object in simulation and execution, and training that replicas do not change."""

from itertools import pairwise

import pytest
from msgspec.structs import replace

from backends.execution.request import ExecutionRequest
from backends.execution.result import CheckReport, Execution
from backends.simulated import SimulatedBackend
from backends.torch.backend import TorchBackend
from sim.moe.balancing.estimate import Rates
from sim.moe.balancing.flexmoe import FlexMoE
from sim.moe.balancing.placement_policy import MovingExperts
from sim.moe.balancing.policy_maker import PolicyMaker
from sim.moe.balancing.replicas import Placed, shared_out
from sim.moe.skew import Skew
from sim.plan.session.driver import Turn, run_policy
from sim.plan.session.protocol import Session
from sim.plan.words.op import Compute, Send
from sim.plan.words.program import Plan
from sim.training.adjusting.adjustment import ADJUSTMENT
from sim.training.adjusting.experts import ForcedCounts, replica_steps
from tests.backends.expert_runs import exact
from tests.backends.jobs import training
from tests.backends.session.session_policies import simulated_backend

STEPS, RANKS = 20, 2
JOB = training(
    model=exact(
        routing=Skew(zipf=1.5, swap_probability=0.9, fluctuation=0.6, memory_steps=2.0), top_k=1,
        moving=MovingExperts(steps=STEPS),
    ),
    data_degree=2, expert_degree=2, batch=(8, 2),
)  # fmt: skip
RATES = Rates(tokens_per_s=4e3, token_bytes=64, link_bytes_per_s=1e9, reduce_bytes_per_s=1e9, gradient_bytes=1e3)
FIXED = shared_out(2, RANKS, 4)
AT_ONCE = FlexMoE(maker=PolicyMaker(rates=RATES, num_slots=4, threshold=1.1), first=FIXED, groups=((0, 1),))
POLICY = replace(AT_ONCE, in_background=True)


def steps(session: Session, policy: FlexMoE) -> tuple[Turn[Placed], ...]:
    """Return the turns of a policy in a session."""
    return run_policy(session, policy, replica_steps(JOB, policy.observed), STEPS)


@pytest.fixture(scope="module")
def executed() -> tuple[tuple[Turn[Placed], ...], list[CheckReport]]:
    """Return what two started processes did with the policy, and the check of every step."""
    checks: list[CheckReport] = []

    def keep(execution: Execution) -> None:
        assert execution.check is not None
        checks.append(execution.check)

    def checked(plan: Plan) -> ExecutionRequest:
        return ExecutionRequest(plan=plan, check_against=JOB, timing="step")

    with TorchBackend().session(RANKS, request_of=checked, on_step=keep) as session:
        return steps(session, POLICY), checks


def test_training_with_moving_replicas_is_that_of_the_dense_model(executed) -> None:
    """Loss, gradients and weights of each of 20 steps are equal to 1e-9, while replicas come, move and go.

    Copies travel in the background: in that step they get no tokens, and take part in its update.
    """
    moving, checks = executed
    assert any(turn.decision.replicas.num_arriving for turn in moving)
    placements = [turn.decision.replicas for turn in moving]
    assert len(set(placements)) > 5
    held = [{(n, rank, e) for n in (0, 1) for rank in (0, 1) for e in p.held(n, rank)} for p in placements]
    pairs = list(pairwise(held))
    assert any(after - before for before, after in pairs)
    assert any(before - after for before, after in pairs)
    assert len(checks) == STEPS
    for check, copies in zip(checks, held, strict=True):
        assert check.passed
        compared = {name.removeprefix(f"rank {rank}: ") for rank in range(RANKS) for name in check.errors}
        assert {f"layer{n}.experts.fc1.weight.part{e}" for n, _, e in copies} <= compared


def test_one_policy_decides_alike_in_simulation_and_execution(executed) -> None:
    """Decisions, ops and bytes of all 20 steps are those of the execution; moves are ops of the plan."""
    moving, _ = executed
    prices = simulated_backend(None).pricing
    with SimulatedBackend(prices, observations=ForcedCounts()).session(RANKS) as session:
        simulated = steps(session, POLICY)
    assert [turn.decision for turn in simulated] == [turn.decision for turn in moving]
    for ours, theirs in zip(simulated, moving, strict=True):
        assert ours.result.work == theirs.result.work
    tasks = [{name for program in turn.plan.programs for name in program.tasks} for turn in simulated]
    assert ADJUSTMENT not in tasks[0]
    assert any(ADJUSTMENT in names for names in tasks)


def test_copies_in_the_background_delay_less_than_moves_at_the_beginning() -> None:
    """A step that begins with its moves waits for them; with copies in the background none is slower than that."""
    prices = simulated_backend(None).pricing
    times = []
    for policy in (POLICY, AT_ONCE):
        with SimulatedBackend(prices, observations=ForcedCounts()).session(RANKS) as session:
            turns = run_policy(session, policy, replica_steps(JOB, policy.observed), 2)
        moves = [op for task in (p.tasks.get(ADJUSTMENT) for p in turns[1].plan.programs) if task for op in task.ops]
        waits = [op for op in moves if isinstance(op, Compute) and op.name.startswith("search.")]
        assert {op.attributes["duration_s"] for op in waits} == {turns[1].decision.search_s}
        assert {op.stream for op in waits} == {op.stream for op in moves if isinstance(op, Send)}
        times.append(turns[1].result.duration_s)
    assert times[0] < times[1]
