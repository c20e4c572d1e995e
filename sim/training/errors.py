"""Errors of the training room.

SpecError (ValueError)    a model or strategy that cannot be built; names the scenario key to change
"""


class SpecError(ValueError):
    """A specification that breaks a rule.

    ``key`` is the scenario key to change (``parallel.tensor.degree``), ``rule`` what it breaks with both
    sides worked out, ``remedy`` what to write instead.
    """

    def __init__(self, key: str, rule: str, remedy: str) -> None:
        super().__init__(f"{key}: {rule}; {remedy}")
        self.key = key
        self.rule = rule
        self.remedy = remedy
