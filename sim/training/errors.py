"""Errors of the training room.

SpecError (ValueError)    a model or strategy that cannot be built; names the scenario key to change
└── MicrobatchError       a number of micro-batches that the schedule cannot run; knows the nearest above that it can
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


class MicrobatchError(SpecError):
    """A number of micro-batches that the schedule cannot run; ``num_valid`` is one that it can."""

    def __init__(self, key: str, rule: str, remedy: str, num_valid: int) -> None:
        super().__init__(key, rule, remedy)
        self.num_valid = num_valid

    def naming(self, key: str, value: int) -> SpecError:
        """Return the error with the key that decides on the number of micro-batches, and its right value."""
        return SpecError(self.key, self.rule, f"{self.remedy}: write {key}: {value}")
