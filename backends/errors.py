"""Errors of the backends room.

MissingBackendError (RuntimeError)    a backend whose library is not installed; the message says how to install it

Those of executing plans stand in backends/execution/errors.py.
"""


class MissingBackendError(RuntimeError):
    """A backend whose library is not installed."""
