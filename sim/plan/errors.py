"""Errors of the plan language.

PlanError (ValueError)
├── LayoutError      a tensor cannot lie over the mesh as asked
├── CheckError       a plan that could not run, with rank, stream, op and peer
├── SessionError     a plan that does not go on from what earlier plans of a session left
└── RecordingError   a file of recorded observations that cannot be read, or that is of other plans
"""


class PlanError(ValueError):
    """A plan that breaks a rule of the plan language."""


class LayoutError(PlanError):
    """A tensor cannot lie over the mesh in the layout asked for."""


class CheckError(PlanError):
    """A plan that could not run; the message names role, stream, op and peer."""


class SessionError(PlanError):
    """A plan that does not go on from what earlier plans of a session left; the message names rank and buffer."""


class RecordingError(PlanError):
    """A recording that cannot be read, or that is of other plans."""
