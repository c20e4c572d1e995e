"""A job mix as a scenario."""

from dataclasses import dataclass

from scenarios.workloads.workload import Scenario
from sim.jobs.policy import Policy
from sim.jobs.simulator import Mix


@dataclass(frozen=True, slots=True, kw_only=True)
class MixScenario(Scenario):
    """Jobs, cluster and costs; and the policy."""

    mix: Mix
    policy: Policy
