"""Activities: whatever takes time."""

from collections.abc import Collection, Hashable, Iterator, Sequence
from functools import cached_property
from operator import itemgetter
from typing import Protocol, TypeGuard, overload

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from sim.cached import unlocked_property
from sim.engine.prices.traffic import Exchange, Load, Wanted
from sim.plan.words.op import Op
from sim.plan.words.program import Plan, Program, Task

Resource = Hashable
"""A thing that activities share: ("compute", rank), ("link", number), ..."""


def is_link(resource: Resource) -> TypeGuard[tuple[str, int]]:
    """Return whether a resource is a link of the cluster, which ranks may share; others belong to one rank."""
    return isinstance(resource, tuple) and resource[0] == "link"


Demand = tuple[Resource, float]


class LinkDemands(Sequence[Demand]):
    """The demands of one activity on links, as columns: large groups have thousands of them, and folding sums them."""

    def __init__(self, links: NDArray[np.int64], seconds: NDArray[np.float64]) -> None:
        self.links, self.seconds = links, seconds

    def __len__(self) -> int:
        return len(self.links)

    @overload
    def __getitem__(self, index: int) -> Demand: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Demand]: ...
    def __getitem__(self, index: int | slice) -> Demand | Sequence[Demand]:
        return tuple(self)[index]

    def __iter__(self) -> Iterator[Demand]:
        return zip((("link", link) for link in self.links.tolist()), self.seconds.tolist(), strict=True)


class Activity(Struct, frozen=True, dict=True):
    """A latency, then demands: seconds of exclusive use of some resources. A demand is more than 0.

    Alone it lasts ``latency_s`` + the largest demand. That is the roofline for a kernel and the alpha-beta model for a
    message. An activity may stand for several equal ones. Then its demands are their sums, ``single_s`` is the time of
    one of them without the others (0: the largest demand), and it lasts the longer of the two. ``yields``: it uses only
    what other activities leave of its resources. Many ops share one, so what follows from it is found once.
    """

    latency_s: float = 0.0
    demands: Sequence[Demand] = ()
    single_s: float = 0.0
    yields: bool = False

    @unlocked_property
    def occupancy_s(self) -> float:
        """Return how long it uses its resources alone: the largest demand, or ``single_s`` if that is longer."""
        if type(self.demands) is LinkDemands:
            return max(self.single_s, float(self.demands.seconds.max()))
        longest_s = self.single_s
        for _, seconds in self.demands:
            if seconds > longest_s:  # noqa: PLR1730 - a call of ``max`` takes longer
                longest_s = seconds
        return longest_s

    @unlocked_property
    def duration_s(self) -> float:
        """Return how long it lasts when alone."""
        return self.latency_s + self.occupancy_s

    @property
    def single_duration_s(self) -> float:
        """Return how long it lasts when alone, without the others that it may stand for."""
        return self.latency_s + (self.single_s or self.occupancy_s)

    @property
    def listed(self) -> "Activity":
        """Return the same with its demands in a tuple, for those who look at each of them again and again."""
        return self._listed if isinstance(self.demands, LinkDemands) else self

    @cached_property
    def _listed(self) -> "Activity":
        return replace(self, demands=tuple(self.demands))

    @unlocked_property
    def uses_links(self) -> bool:
        """Return whether it demands links of the cluster."""
        return type(self.demands) is LinkDemands or any(map(is_link, map(itemgetter(0), self.demands)))


class Pricing(Protocol):
    """Prices of ops: the only link between a plan and a cluster."""

    def price(self, plan: Plan, program: Program, op: Op, rank: int) -> Activity:
        """Return the activity of ``op`` on ``rank``, which is that of all ops alike (``Program.distinct_ops``).

        A message's latency passes after the sender is free; a collective's demands are those of its whole group,
        whichever of its ranks is asked. Links are resources ("link", number).
        """
        ...

    def expect(self, plan: Plan, ranks: Collection[int], wanted: Wanted | None = None) -> None:
        """Hear that all ops of these ranks will be priced, or those of ``wanted`` tasks: what they share, at once."""
        ...

    def launches_s(self, task: Task) -> tuple[float, ...]:
        """Return the host time that launching each op of a task takes; empty: it takes none."""
        ...

    def rank_kinds(self, plan: Plan) -> NDArray[np.int64]:
        """Return a number per rank, the same for ranks whose devices are alike."""
        ...

    def link_kinds(self) -> NDArray[np.int32]:
        """Return a number per link, the same for links that are alike."""
        ...

    def network_links(self) -> NDArray[np.bool_]:
        """Return a mask of the links between switches. Slower links before them may keep them from ever being full."""
        ...

    def link_images(self, ranks_to: NDArray[np.int64]) -> NDArray[np.int32] | None:
        """Return where each link goes if rank r goes to ``ranks_to[r]``, so that messages load the links to which the
        links go that they loaded before, and as long. Links that no message between ranks uses stay. None: unknown.
        """
        ...

    def lie_alike(self, groups: NDArray[np.int64]) -> bool:
        """Return whether groups lie on nodes alike, position by position, so that collectives go the same ways in all.

        Groups of devices of other types may still differ.
        """
        ...

    def loads(self, plan: Plan, exchanges: Iterator[Exchange]) -> Iterator[tuple[Exchange, Load]]:
        """Yield the loads of exchanges on links; of several with the same proportions only the first."""
        ...
