"""Errors of the torch backend.

ExecutionError (RuntimeError)
├── OpError              an op failed; the message names rank, stream, op and micro-batch
│   └── CommunicationError   a peer did not answer
├── RankError            a rank ended early or does not answer; the message names it
└── JobError             a variable of the environment does not describe a job that this process could join
"""


class ExecutionError(RuntimeError):
    """A plan could not be run to its end."""


class OpError(ExecutionError):
    """An op failed; the message names rank, stream, op and micro-batch."""


class CommunicationError(OpError):
    """A collective, send or receive failed, most likely because a peer is gone."""


class RankError(ExecutionError):
    """A rank failed, was killed or does not answer; the message names it."""


class JobError(ExecutionError):
    """A variable of the environment with a wrong value; the user must change it.

    ``value``: the variable's value, None if it is not set.
    """

    def __init__(self, variable: str, value: str | None, rule: str, remedy: str) -> None:
        shown = variable if value is None else f"{variable}={value[:100]}"
        super().__init__(f"{shown}: {rule};\n    {remedy}")
