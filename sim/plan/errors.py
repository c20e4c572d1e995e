"""Errors of the plan language.

PlanError (ValueError)
├── LayoutError      a tensor cannot lie over the mesh as asked
└── CheckError       a plan that could not run, with rank, stream, op and peer
"""


class PlanError(ValueError):
    """A plan that breaks a rule of the plan language."""


class LayoutError(PlanError):
    """A tensor cannot lie over the mesh in the layout asked for."""


class CheckError(PlanError):
    """A plan that could not run; the message names role, stream, op and peer."""
