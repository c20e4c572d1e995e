"""Errors of the training room.

SpecError (KeyedError)    a model or strategy that cannot be built
└── MicrobatchError       a number of micro-batches that the schedule cannot run; knows the nearest above that it can
"""

from sim.errors import KeyedError


class SpecError(KeyedError):
    """A model or a strategy that breaks a rule."""


class MicrobatchError(SpecError):
    """A number of micro-batches that the schedule cannot run; ``num_valid`` is one that it can."""

    def __init__(self, key: str, rule: str, remedy: str, num_valid: int) -> None:
        super().__init__(key, rule, remedy)
        self.num_valid = num_valid

    def naming(self, key: str, value: int) -> SpecError:
        """Return the error with the key that decides on the number of micro-batches, and its right value."""
        return SpecError(self.key, self.rule, f"{self.remedy}: write {key}: {value}")
