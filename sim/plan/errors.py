"""Errors of the plan language.

PlanError (ValueError)
├── LayoutError      a layout that a tensor cannot have
├── CheckError       a plan that cannot run, with rank, stream, op and peer
├── SessionError     a plan that does not fit the buffers left by earlier plans of a session
└── RecordingError   a recording that cannot be read, or that belongs to other plans
"""


class PlanError(ValueError):
    """A plan that breaks a rule of the plan language."""


class LayoutError(PlanError):
    """A tensor cannot lie over the mesh in the layout asked for."""


class CheckError(PlanError):
    """A plan that could not run; the message names role, stream, op and peer."""


class SessionError(PlanError):
    """A plan that does not fit the buffers left by earlier plans of a session; the message names rank and buffer."""


class RecordingError(PlanError):
    """A recording that cannot be read, or that is of other plans."""
