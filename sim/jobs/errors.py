"""Errors of the jobs room.

JobsError (ValueError)    a job, a cluster or a policy that cannot be simulated; names the scenario key to change
"""


class JobsError(ValueError):
    """A job mix that breaks a rule: the scenario key to change, the broken rule, and the correction."""

    def __init__(self, key: str, rule: str, remedy: str) -> None:
        super().__init__(f"{key}: {rule}; {remedy}")
        self.key = key
        self.rule = rule
        self.remedy = remedy
