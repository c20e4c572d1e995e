"""Session, policy, and the values that they exchange.

A policy decides from its observations. A builder turns the decision into the next plan. A session runs that plan,
simulated or on real devices. Persistent buffers survive from plan to plan, by name and rank.

    with SimulatedBackend(pricing).session(num_ranks=4) as session:
        turns = run_policy(session, policy, build, num_steps=6)
"""

from collections.abc import Mapping
from types import TracebackType
from typing import Protocol, Self, TypeVar

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from sim.plan.facts.rank_work import RankWork
from sim.plan.session import residents as persistent
from sim.plan.words.program import Plan

State = TypeVar("State")
Decision_co = TypeVar("Decision_co", covariant=True)

Array = NDArray[np.float64]
"""The values of an observed buffer; if it exists per micro-batch, micro-batches are the first dimension."""
Observed = Mapping[str, Mapping[int, Array]]
"""Values by buffer and by rank of the session."""


class Seen(Struct, frozen=True):
    """The observations of a step: its duration, and the values of its plan's observed buffers."""

    duration_s: float
    observed: Observed = field(default_factory=dict)


class StepResult(Struct, frozen=True):
    """The result of one plan. ``duration_s``: from the common start to the last rank's end, by the session's clock.

    ``seen``: the observations for the policy. Their duration is ``duration_s``, or the recorded one in a replay.
    ``work``: the work of each of the plan's ranks, by its rank in the session.
    """

    duration_s: float
    seen: Seen
    work: Mapping[int, RankWork]

    @property
    def observed(self) -> Observed:
        """Return the values of the plan's observed buffers."""
        return self.seen.observed


class Session(Protocol):
    """Ranks that run one plan after the other. Ranks without a part in a plan idle."""

    @property
    def num_ranks(self) -> int:
        """Return the number of ranks of the session."""
        ...

    @property
    def residents(self) -> "persistent.Residents":
        """Return the persistent buffers that earlier plans left on each rank."""
        ...

    def step(self, plan: Plan) -> StepResult:
        """Run a plan to its end and return the result.

        Raises CheckError for an invalid plan, SessionError for a plan that does not fit the buffers left by earlier
        plans.
        """
        ...

    def close(self) -> None:
        """End the session and free its buffers."""
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
    """A function from observations to decisions, step by step; it knows neither simulator nor device.

    It is pure: the same state and observations give the same decision. A policy with random numbers keeps its seed, or
    its generator's state, in its state.
    """

    def start(self) -> State:
        """Return the state before the first step."""
        ...

    def decide(self, state: State, seen: Seen | None) -> tuple[State, Decision_co]:
        """Return the next state and the decision on the next step.

        ``seen``: observations of the last step; None at first.
        """
        ...
