"""Policies that want durations, without them: a predictor says what elastic jobs have left.

The predictor is that of ONES, fitted to the epochs of jobs that are done: its beta is the mean number of epochs that a
job has left. The policy sees jobs of that length.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from msgspec.structs import replace

from sim.jobs.active import ActiveJob
from sim.jobs.job import Job
from sim.jobs.order import Ranking
from sim.jobs.policies.ones.history import History
from sim.jobs.policies.ones.predictor import features
from sim.jobs.policies.shown import decide_on
from sim.jobs.policy import Decision, Policy, View

REFIT_GROWTH: Final = 1.25


@dataclass(frozen=True)
class Predicted:
    """A policy whose jobs, all elastic, have predicted durations. State: the history, and that of the policy.

    ``past``: jobs whose epochs the history begins with. ``refit_growth``: of the history, from one fit to the next.
    """

    policy: Policy
    seed: int = 0
    past: Sequence[Job] = ()
    refit_growth: float = REFIT_GROWTH
    ranking: Ranking | None = None

    @property
    def name(self) -> str:
        """Return the name of the policy, and that durations are predicted."""
        return f"{self.policy.name} (predicted)"

    @property
    def watched_gpu_s(self) -> tuple[float, ...]:
        """Return the services that the policy watches."""
        return self.policy.watched_gpu_s

    def start(self) -> tuple[History, Any]:
        """Return the history of the past jobs, and the policy's state."""
        return History.of(self.past, self._random(0)), self.policy.start()

    def decide(self, state: tuple[History, Any], view: View) -> tuple[tuple[History, Any], Decision]:
        """Return what the policy decides on jobs of predicted length."""
        history, inner = state
        history = history.caught_up(view.active, self.refit_growth, self._random)
        shown = _as_predicted(history, view.active, view.now_s)
        inner, decision = decide_on(self.policy, inner, view, shown)
        return (history, inner), decision

    def _random(self, num_rows: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, num_rows])


def _as_predicted(history: History, jobs: Sequence[ActiveJob], now_s: float) -> list[ActiveJob]:
    """Return copies of jobs with the epochs that they have done and those that they are said to have left."""
    epochs = [each.epochs(now_s) for each in jobs]
    rows = np.array([features(each.job, done) for each, done in zip(jobs, epochs, strict=True)])
    rests = history.network.beta(rows).tolist()
    return [_lasting(each, done + rest) for each, done, rest in zip(jobs, epochs, rests, strict=True)]


def _lasting(each: ActiveJob, num_epochs: float) -> ActiveJob:
    job = each.job
    assert job.training is not None
    training = replace(job.training, num_epochs=num_epochs)
    duration_s = job.duration_s * num_epochs / job.training.num_epochs
    return dataclasses.replace(each, job=replace(job, training=training, duration_s=duration_s))
