"""Uneven exchanges in which every member stands for the busiest one.

Each link of a group is in use as long as its busiest link is. So members are alike, and an exchange alone takes as long
as the uneven one does. Beside other traffic on the same links it may take longer: idle links count as busy.
"""

from collections.abc import Sequence

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from sim.cluster.link_use import LinkCost, LinkUse
from sim.cluster.network import Ints, Network
from sim.plan.facts.description import PairBytes

_KIND = "all_to_all"


class LevelledExchanges(Struct, frozen=True):
    """The costs of levelled exchanges on a network. Groups that lie on their nodes in the same way cost the same.

    ``algorithm``: of the exchanges. The size of an even exchange changes the proportions of its loads only where it
    changes the overhead.
    """

    network: Network
    algorithm: str
    _known: dict[tuple[object, ...], tuple[float, float]] = field(default_factory=dict)
    _even: dict[tuple[object, ...], LinkUse] = field(default_factory=dict)

    def cost(self, group: Sequence[int], pairs: PairBytes) -> LinkCost:
        """Return the cost of an exchange in one group of ranks."""
        latency_s, busiest_s = self._uneven(group, pairs)
        links, parts = self._in_proportion(np.array([group]), pairs).of_row(0)
        return LinkCost(latency_s, tuple(zip(links.tolist(), (parts * busiest_s).tolist(), strict=True)))

    def use(self, groups: Ints, pairs: PairBytes) -> LinkUse:
        """Return the loads on links of the same in several groups [groups, positions]."""
        busiest_s, unit = self._uneven(groups[0].tolist(), pairs)[1], self._in_proportion(groups, pairs)
        return replace(unit, seconds=unit.seconds * busiest_s, num_bytes=unit.num_bytes * busiest_s)

    def _in_proportion(self, groups: Ints, pairs: PairBytes) -> LinkUse:
        """Return the loads of an even exchange of as many bytes, scaled to 1 s on the first group's busiest link."""
        num_bytes = _even_bytes(pairs)
        key = groups.tobytes(), groups.shape, self.network.overheads(_KIND, num_bytes, groups, self.algorithm)
        if key not in self._even:
            even = self.network.collectives(_KIND, num_bytes, groups, self.algorithm)
            busiest_s = float(even.of_row(0)[1].max(initial=0.0)) or 1.0
            self._even[key] = replace(even, seconds=even.seconds / busiest_s, num_bytes=even.num_bytes / busiest_s)
        return self._even[key]

    def _uneven(self, group: Sequence[int], pairs: PairBytes) -> tuple[float, float]:
        """Return the latency of the uneven exchange, and the seconds on its busiest link."""
        key = (self.network.ranks_per_node(group), tuple(rank - group[0] for rank in group), pairs)
        if key not in self._known:
            cost = self.network.collective(_KIND, 0, group, self.algorithm, 0, pairs.array)
            self._known[key] = cost.latency_s, max((seconds for _, seconds in cost.links), default=0.0)
        return self._known[key]


def _even_bytes(pairs: PairBytes) -> int:
    """Return the bytes of a position where all send equally much: at least one to each, so that all links count."""
    return max(pairs.total // len(pairs.rows), len(pairs.rows))
