"""The seam between what decides and what runs: session, policy, and what passes between them.

A policy decides from what it has seen; a builder turns the decision into the next plan; a session runs that plan, in
simulation or for real. Persistent buffers live on from plan to plan, by name and rank.

    with SimulatedBackend(pricing).session(num_ranks=4) as session:
        turns = run_policy(session, policy, build, num_steps=6)
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from sim.plan.facts.rank_work import RankWork
from sim.plan.session.residents import Residents
from sim.plan.words.program import Plan

State = TypeVar("State")
Decision_co = TypeVar("Decision_co", covariant=True)

Array = NDArray[np.float64]
"""The values of an observed buffer; one that lives per micro-batch has these as its first dimension."""
Observed = Mapping[str, Mapping[int, Array]]
"""Values by buffer and by rank of the session."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What a policy may decide by: how long the step took, and the buffers that its plan asked to see."""

    duration_s: float
    observed: Observed = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StepResult:
    """What came of one plan. ``duration_s``: from its common start to the end of its last rank, by the session's clock.

    ``seen``: what the policy sees. Its duration is ``duration_s``, or the recorded one where a recording is replayed.
    ``work``: what each of the plan's ranks did, by its rank in the session.
    """

    duration_s: float
    seen: Seen
    work: Mapping[int, RankWork]

    @property
    def observed(self) -> Observed:
        """Return the values of the buffers that the plan asked to see."""
        return self.seen.observed


class Session(Protocol):
    """Ranks that run one plan after the other. ``num_ranks``: how many there are, each of a plan's or idle."""

    @property
    def num_ranks(self) -> int:
        """Return the number of ranks of the session."""
        ...

    @property
    def residents(self) -> Residents:
        """Return which persistent buffers the plans so far have left on which rank."""
        ...

    def step(self, plan: Plan) -> StepResult:
        """Run a plan to its end and return what came of it.

        Raises CheckError for a plan that could not run, SessionError for one that does not go on from what earlier
        plans left.
        """
        ...

    def close(self) -> None:
        """End the session. Its buffers are gone."""
        ...

    def __enter__(self) -> Self:
        """Start the session."""
        ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        """End the session."""
        ...


class Policy(Protocol[State, Decision_co]):
    """Decides, step by step, by what it has seen; it knows neither a simulator nor a device.

    It is pure: the same state and the same sight give the same decision. A policy that draws numbers keeps its seed,
    or the state of its generator, in its state.
    """

    def start(self) -> State:
        """Return the state before the first step."""
        ...

    def decide(self, state: State, seen: Seen | None) -> tuple[State, Decision_co]:
        """Return the next state and the decision on the next step. ``seen``: of the step before; None at the first."""
        ...
