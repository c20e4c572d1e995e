"""Errors of the backends room.

MissingBackendError (RuntimeError)    a backend whose library is not installed; the message says how to install it

The torch backend's own errors stand in backends/torch/errors.py, which needs no torch.
"""


class MissingBackendError(RuntimeError):
    """A backend whose library is not installed."""
