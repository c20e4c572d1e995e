"""Errors of the routing room.

RoutingError (ValueError)   a routing that no step of a given shape can have
"""


class RoutingError(ValueError):
    """A routing that breaks a rule: ``rule`` with both sides worked out, ``remedy`` what to write instead."""

    def __init__(self, rule: str, remedy: str) -> None:
        super().__init__(f"{rule}; {remedy}")
        self.rule = rule
        self.remedy = remedy
