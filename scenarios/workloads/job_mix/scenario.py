"""A job mix as a scenario."""

from scenarios.workloads.workload import Scenario
from sim.jobs.policy import Policy
from sim.jobs.simulator import Mix


class MixScenario(Scenario, frozen=True, kw_only=True, eq=False):
    """Jobs, cluster and costs; and the policy."""

    mix: Mix
    policy: Policy
