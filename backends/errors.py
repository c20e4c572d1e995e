"""Errors of the backends room.

MissingBackendError (RuntimeError)    a backend whose library is not installed; the message says how to install it
LostProcessError (RuntimeError)       a process that worked for this one ended before its work was done

Those of executing plans stand in backends/execution/errors.py.
"""


class MissingBackendError(RuntimeError):
    """A backend whose library is not installed."""


class LostProcessError(RuntimeError):
    """A process that worked for this one, and ended before its work was done."""
