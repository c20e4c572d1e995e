"""Errors of the topology room.

TopologyError (ValueError)    an impossible description, or a device or link that does not exist
"""

from typing import Final

MOST_SHOWN: Final = 80
"""Largest number of characters of a user's text in a message."""


class TopologyError(ValueError):
    """A broken rule, its key (``fabric.spines``; empty: no key) and the remedy."""

    def __init__(self, key: str, rule: str, remedy: str) -> None:
        super().__init__(f"{key}: {rule}; {remedy}" if key else f"{rule}; {remedy}")
        self.key = key
        self.rule = rule
        self.remedy = remedy


def quoted(value: object) -> str:
    """Return a user's value for a message, in Python's notation; long values are cut."""
    text = repr(value)
    return text if len(text) <= MOST_SHOWN else f"{text[: MOST_SHOWN - 4]} ..."
