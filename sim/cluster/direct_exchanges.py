"""Uneven all_to_alls in which each rank sends directly to each, many at once: seconds of links are linear in bytes."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray
from scipy.sparse import csr_array

from costmodels.collectives import stepwise
from costmodels.collectives.cost import exclusive_seconds
from costmodels.collectives.network import CollectiveCost
from sim.cluster.network import Network, Seat

Floats = NDArray[np.float64]


class Demands(Struct, frozen=True, eq=False):
    """What exchanges demand: latencies [exchange], then seconds of exclusive use of links [exchange, link].

    ``back_link_s``: the same for the way back, on which every rank sends what it received. Latencies are alike: that of
    the busiest rank or node, sending or receiving.
    """

    latencies_s: Floats
    link_s: Floats
    back_link_s: Floats


@dataclass(frozen=True)
class DirectExchanges:
    """The exchanges of one group of ranks on a network; each costs what ``Network.collective`` says by ``direct``."""

    network: Network
    group: Sequence[int]

    def demands(self, tables: Floats) -> Demands:
        """Return the demands of exchanges with bytes [exchange, source, target], which need not be whole."""
        seat = self._seat
        tables = tables[:, seat.order][:, :, seat.order]
        found = [stepwise.direct_exchange_costs(tables, seat.ranks_per_node, network) for network in seat.parameters]
        slowest = [_slowest(costs, seat) for costs in zip(*found, strict=True)]
        overheads = np.array([cost.wire_overhead for cost in slowest])
        link_s, back_link_s = (
            (self._seconds_per_byte @ each.reshape(len(tables), -1).T).T * overheads[:, None]
            for each in (tables, tables.transpose(0, 2, 1))
        )
        return Demands(np.array([cost.latency_s - cost.in_turn_s for cost in slowest]), link_s, back_link_s)

    @cached_property
    def _seat(self) -> Seat:
        return self.network.seat(self.group)

    @cached_property
    def _seconds_per_byte(self) -> csr_array:
        """Return the seconds of each link [link, pair] for a byte between two ranks; none of a rank to itself."""
        devices, topology = self._seat.devices, self.network.topology
        sources, targets = np.nonzero(~np.eye(len(devices), dtype=bool))
        routes = topology.routes(devices[sources], devices[targets])
        pairs = np.repeat(sources * len(devices) + targets, routes.num_hops)
        seconds = self.network.seconds_per_byte[routes.links]
        return csr_array((seconds, (routes.links, pairs)), shape=(topology.num_links, len(devices) ** 2))


def _slowest(costs: Sequence[CollectiveCost], seat: Seat) -> CollectiveCost:
    """Return the cost for the type of island on which an exchange takes longest."""
    each = zip(costs, seat.parameters, strict=True)
    times_s = [exclusive_seconds(cost, seat.ranks_per_node, network) for cost, network in each]
    return costs[times_s.index(max(times_s))]
