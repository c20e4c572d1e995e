"""Errors of executing plans with torch.

ExecutionError (RuntimeError)
├── OpError              an op failed; the message states rank, stream, op and micro-batch
│   └── CommunicationError   a peer did not answer
├── RankError            a rank ended early or does not answer; the message states the rank
└── JobError             an environment variable is missing or wrong, so this process cannot join its job
"""


class ExecutionError(RuntimeError):
    """A plan could not be run to its end."""


class OpError(ExecutionError):
    """An op failed; the message states rank, stream, op and micro-batch."""


class CommunicationError(OpError):
    """A collective, send or receive failed, most likely because a peer is gone."""


class RankError(ExecutionError):
    """A rank failed, was killed or does not answer; the message states the rank."""


class JobError(ExecutionError):
    """An environment variable has a wrong value, which the user must change.

    ``value``: the variable's value, None if it is not set.
    """

    def __init__(self, variable: str, value: str | None, rule: str, remedy: str) -> None:
        shown = variable if value is None else f"{variable}={value[:100]}"
        super().__init__(f"{shown}: {rule};\n    {remedy}")
