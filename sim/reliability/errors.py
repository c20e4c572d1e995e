"""Errors of the reliability room.

ReliabilityError (KeyedError)    failures or checkpoints that cannot be simulated
"""

from sim.errors import KeyedError


class ReliabilityError(KeyedError):
    """A reliability specification that breaks a rule."""
