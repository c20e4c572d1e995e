"""Errors of the torch backend.

ExecutionError (RuntimeError)
├── OpError              an op failed; the message names rank, stream, op and micro-batch
│   └── CommunicationError   a peer did not answer
└── RankError            a rank ended early; the message names it
"""


class ExecutionError(RuntimeError):
    """A plan could not be run to its end."""


class OpError(ExecutionError):
    """An op failed; the message names rank, stream, op and micro-batch."""


class CommunicationError(OpError):
    """A collective, send or receive failed, most likely because a peer is gone."""


class RankError(ExecutionError):
    """A rank failed or was killed; the message names it."""
