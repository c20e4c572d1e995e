"""Errors of the topology room.

TopologyError (ValueError)    a description that no cluster can be built of, or a device or link that is not there
"""


class TopologyError(ValueError):
    """A broken rule, the key that breaks it (``fabric.spines``; empty: no key) and what to write instead."""

    def __init__(self, key: str, rule: str, remedy: str) -> None:
        super().__init__(f"{key}: {rule}; {remedy}" if key else f"{rule}; {remedy}")
        self.key = key
        self.rule = rule
        self.remedy = remedy
