"""The one seam between a plan and what runs it."""

from typing import Protocol

from sim.plan.words.program import Plan
from traces.timeline import Timeline


class Backend(Protocol):
    """Turns a plan into a timeline: by asking cost models, or by running the operations."""

    def run(self, plan: Plan) -> Timeline:
        """Return the timeline of one step of ``plan``."""
        ...
