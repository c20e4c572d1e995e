"""The interface of backends, in types that need no torch.

A backend opens sessions (``sim.plan.session``). One plan alone, simulated or executed, is a session of one plan.
"""

from typing import Protocol

from sim.plan.session import protocol
from sim.plan.words.program import Plan
from traces import timeline as timelines


class Backend(Protocol):
    """Runs plans: by asking cost models, or by running the operations."""

    def session(self, num_ranks: int) -> "protocol.Session":
        """Return a session of so many ranks, to be entered."""
        ...

    def run(self, plan: Plan) -> "timelines.Timeline":
        """Return the timeline of one step of ``plan``."""
        ...
