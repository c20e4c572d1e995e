"""Errors of the engine.

DeadlockError (RuntimeError)    the event queue ran empty with ops waiting; names rank, stream, op and peer
"""


class DeadlockError(RuntimeError):
    """A deadlocked run. The message names each waiting op and the op or message that it waits for."""
