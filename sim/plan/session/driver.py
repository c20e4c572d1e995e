"""The loop of a policy: decide, build the plan, run it, observe."""

from collections.abc import Callable
from typing import Generic, TypeVar

from msgspec import Struct

from sim.plan.session.protocol import Policy, Session, StepResult
from sim.plan.session.residents import Residents
from sim.plan.words.program import Plan

State = TypeVar("State")
Decision = TypeVar("Decision")


class Turn(Struct, Generic[Decision], frozen=True):
    """One step of a policy: its decision, the plan built from the decision, and the result of the plan."""

    decision: Decision
    plan: Plan
    result: StepResult


def run_policy(
    session: Session, policy: Policy[State, Decision], build: Callable[[Decision, Residents], Plan], num_steps: int
) -> tuple[Turn[Decision], ...]:
    """Run a policy for ``num_steps`` steps in a started session; return its steps.

    ``build`` turns a decision into the next plan. It also gets the session's residents, so that it can add moves.

        turns = run_policy(session, policy, lambda decision, residents: adjusted(plan_of(decision), residents), 6)
    """
    state, seen = policy.start(), None
    turns: list[Turn[Decision]] = []
    for _ in range(num_steps):
        state, decision = policy.decide(state, seen)
        plan = build(decision, session.residents)
        result = session.step(plan)
        seen = result.seen
        turns.append(Turn(decision, plan, result))
    return tuple(turns)
