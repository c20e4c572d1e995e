"""The loop of a policy: decide, build, run, see."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from sim.plan.session.protocol import Policy, Session, StepResult
from sim.plan.session.residents import Residents
from sim.plan.words.program import Plan

State = TypeVar("State")
Decision = TypeVar("Decision")


@dataclass(frozen=True, slots=True)
class Turn(Generic[Decision]):
    """One step of a policy: what it decided, the plan that was built from it, and what came of that."""

    decision: Decision
    plan: Plan
    result: StepResult


def run_policy(
    session: Session, policy: Policy[State, Decision], build: Callable[[Decision, Residents], Plan], num_steps: int
) -> tuple[Turn[Decision], ...]:
    """Return so many steps of a policy in a session that has been started.

    ``build`` turns a decision into the next plan; it is told what lies where, so that it can move what must be moved.

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
