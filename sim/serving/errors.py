"""Errors of the serving room.

ServingError (ValueError)   a service that cannot be, such as a model that does not fit its devices
"""


class ServingError(ValueError):
    """A service that breaks a rule: dotted key, ``rule`` with both sides worked out, ``remedy`` to write."""

    def __init__(self, key: str, rule: str, remedy: str) -> None:
        super().__init__(f"{key}: {rule}; {remedy}")
        self.key = key
        self.rule = rule
        self.remedy = remedy
