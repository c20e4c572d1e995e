"""Errors of the reliability room.

ReliabilityError (ValueError)    failures or checkpoints that cannot be simulated; names the scenario key to change
"""


class ReliabilityError(ValueError):
    """A reliability specification that breaks a rule.

    ``key``: the scenario key to change (``reliability.checkpoint.interval``).
    ``rule``: the broken rule, with both sides worked out.
    ``remedy``: the correction.
    """

    def __init__(self, key: str, rule: str, remedy: str) -> None:
        super().__init__(f"{key}: {rule}; {remedy}")
        self.key = key
        self.rule = rule
        self.remedy = remedy
