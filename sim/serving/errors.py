"""Errors of the serving room.

ServingError (KeyedError)   a service that cannot be, such as a model that does not fit its devices
"""

from sim.errors import KeyedError


class ServingError(KeyedError):
    """A service that breaks a rule."""
