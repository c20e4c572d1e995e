"""What a policy is shown in place of the jobs: copies that know less; and what policies measure of jobs that run."""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from sim.jobs.active import ActiveJob
from sim.jobs.policy import Decision, Policy, View

Speeds = Mapping[int, Mapping[int, float]]
"""Measured samples per second of each job, by its index, on numbers of GPUs."""


def decide_on(policy: Policy, state: Any, view: View, shown: Sequence[ActiveJob]) -> tuple[Any, Decision]:
    """Return what a policy decides that sees copies of all jobs; the changes are of the jobs themselves."""
    known = {each.index: each for each in view.active}
    seen = replace(
        view,
        waiting=[each for each in shown if not each.is_running],
        running={each.index: each for each in shown if each.is_running},
        ordered=None,
    )
    state, decision = policy.decide(state, seen)
    changes = [replace(change, job=known[change.job.index]) for change in decision.changes]
    return state, Decision(changes, decision.wake_s)


def measured_speeds(before: Speeds, view: View) -> dict[int, Mapping[int, float]]:
    """Return the measured speeds of the jobs that are not done, with those that the running ones have now."""
    found = {each.index: before.get(each.index, {}) for each in view.active}
    for index, each in view.running.items():
        if view.now_s > each.ready_s and found[index].get(each.num_gpus) != each.work_per_s:
            found[index] = {**found[index], each.num_gpus: each.work_per_s}
    return found
