"""Nodes that fail and come back: written one by one, or drawn from a mean time between failures."""

from collections.abc import Iterator, Sequence

from msgspec import Struct

from sim.jobs.errors import JobsError
from sim.jobs.generate import generator


class Outage(Struct, frozen=True):
    """A node that is down from one instant to another; the jobs on it stop."""

    node: int
    start_s: float
    end_s: float

    def __post_init__(self) -> None:
        if self.node < 0 or not 0.0 <= self.start_s < self.end_s:
            rule = f"node {self.node} is down from {self.start_s:g} s to {self.end_s:g} s"
            raise JobsError("failures", rule, "write a node of the cluster, and a repair that takes time")


class Failures(Struct, frozen=True, kw_only=True):
    """The failures of a cluster's nodes: ``listed`` ones, and drawn ones with a mean time between those of a node.

    ``repair_s``: how long a drawn one lasts. ``save_every_s``: training time between two saved states of a rigid job;
    an elastic one saves after each epoch. What was done since is lost. ``mtbf_s``: None draws none.

    Failures(mtbf_s=30 * 86_400.0, repair_s=3_600.0)
    """

    listed: Sequence[Outage] = ()
    mtbf_s: float | None = None
    repair_s: float = 3_600.0
    save_every_s: float = 600.0
    seed: int = 0

    def of_node(self, node: int) -> Iterator[Outage]:
        """Yield the outages of a node in order of time, without end where they are drawn.

        The time from a repair to the next failure is exponential. A listed outage that begins during an earlier one is
        left out: the node is down already.
        """
        listed = sorted((each.start_s, each.end_s) for each in self.listed if each.node == node)
        drawn = self._drawn(node)
        place, next_drawn, up_s = 0, next(drawn, None), 0.0
        while place < len(listed) or next_drawn is not None:
            if next_drawn is None or (place < len(listed) and listed[place][0] <= next_drawn[0]):
                start_s, end_s = listed[place]
                place += 1
            else:
                (start_s, end_s), next_drawn = next_drawn, next(drawn, None)
            if start_s >= up_s:
                up_s = end_s
                yield Outage(node, start_s, end_s)

    def _drawn(self, node: int) -> Iterator[tuple[float, float]]:
        if self.mtbf_s is None:
            return
        random, up_s = generator(f"failures of node {node}", self.seed), 0.0
        while True:
            start_s = up_s + float(random.exponential(self.mtbf_s))
            up_s = start_s + self.repair_s
            yield start_s, up_s
