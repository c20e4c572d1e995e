"""Errors of the engine.

DeadlockError (RuntimeError)    the event queue ran empty with ops waiting; names rank, stream, op and peer
"""


class DeadlockError(RuntimeError):
    """A run that got stuck; the message names the waiting ops and what each waits for."""
