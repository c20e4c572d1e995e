"""Activities: whatever takes time."""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Protocol

from sim.plan.op import Op
from sim.plan.program import Plan, Program

Resource = Hashable
"""A thing that activities share: ("compute", rank), ("nic_out", node, index), ..."""


@dataclass(frozen=True, slots=True)
class Activity:
    """A latency, then demands: seconds of exclusive use of each resource.

    Alone it lasts ``latency_s`` + the largest demand; that is the roofline for a kernel and the
    alpha-beta model for a message.
    """

    latency_s: float = 0.0
    demands: tuple[tuple[Resource, float], ...] = ()

    @property
    def occupancy_s(self) -> float:
        """Return the time it uses its resources when alone."""
        return max((seconds for _, seconds in self.demands), default=0.0)

    @property
    def duration_s(self) -> float:
        """Return how long it lasts when alone."""
        return self.latency_s + self.occupancy_s


class Pricing(Protocol):
    """Says what every op demands; the only link between a plan and a cluster."""

    def price(self, plan: Plan, program: Program, op: Op, rank: int, *, folded: bool) -> Activity:
        """Return what ``op`` demands when ``rank`` runs it.

        ``folded``: the rank stands for its whole role, so its demand on what it shares with other
        ranks of the role must include theirs. A message's latency passes after the sender is free; a
        collective names the resources of ``rank`` alone, and the engine joins the members' demands.
        """
        ...
