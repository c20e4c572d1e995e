"""Uneven exchanges in which every member stands for the busiest one.

Each link of a group is in use as long as its busiest link is. So members are alike, and an exchange alone takes as long
as the uneven one does. Beside other traffic on the same links it may take longer: idle links count as busy.
"""

from collections.abc import Sequence

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from sim.cluster.link_use import LinkUse
from sim.cluster.network import Ints, LinkCost, Network

_KIND = "all_to_all"
Table = Sequence[Sequence[int]]
"""The bytes that each position of a group sends to each."""


class LevelledExchanges(Struct, frozen=True):
    """The costs of levelled exchanges on a network. Groups that lie on their nodes in the same way cost the same.

    ``algorithm``: of the exchanges.
    """

    network: Network
    algorithm: str
    _known: dict[tuple[object, ...], tuple[float, float]] = field(default_factory=dict)

    def cost(self, group: Sequence[int], table: Table) -> LinkCost:
        """Return the cost of an exchange in one group of ranks."""
        latency_s, busiest_s = self._uneven(group, table)
        even = self.network.collective(_KIND, _even_bytes(table), group, self.algorithm)
        stretch = _stretch(busiest_s, np.array([seconds for _, seconds in even.links]))
        return LinkCost(latency_s, tuple((link, seconds * stretch) for link, seconds in even.links))

    def use(self, groups: Ints, table: Table) -> LinkUse:
        """Return the loads on links of the same in several groups [groups, positions]."""
        even = self.network.collectives(_KIND, _even_bytes(table), groups, self.algorithm)
        stretch = _stretch(self._uneven(groups[0].tolist(), table)[1], even.of_row(0)[1])
        return replace(even, seconds=even.seconds * stretch, num_bytes=even.num_bytes * stretch)

    def _uneven(self, group: Sequence[int], table: Table) -> tuple[float, float]:
        """Return the latency of the uneven exchange, and the seconds on its busiest link."""
        key = (self.network.ranks_per_node(group), tuple(rank - group[0] for rank in group), table)
        if key not in self._known:
            cost = self.network.collective(_KIND, 0, group, self.algorithm, 0, table)
            self._known[key] = cost.latency_s, max((seconds for _, seconds in cost.links), default=0.0)
        return self._known[key]


def _stretch(busiest_s: float, even_s: np.ndarray) -> float:
    """Return by what an even exchange's times are multiplied, so that its busiest link is in use as long."""
    each_s = float(even_s.max(initial=0.0))
    return busiest_s / each_s if each_s else 0.0


def _even_bytes(table: Table) -> int:
    """Return the bytes of a position where all send equally much: at least one to each, so that all links count."""
    sizes = np.array(table)
    return max(int(sizes.sum()) // len(sizes), len(sizes))
