"""Errors of the jobs room.

JobsError (KeyedError)    a job, a cluster or a policy that cannot be simulated
"""

from sim.errors import KeyedError


class JobsError(KeyedError):
    """A job mix that breaks a rule."""
