"""Prices of messages between workers and parameter servers, and of what servers do with rows.

A server lies in the memory of a node's host, beside the workers of that node. Its messages to other nodes take the
route of the node's first device in use; between a worker and the server of its own node no link is used. A request
to all servers is one activity: its demands are those of all its messages.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from costmodels.host import memory_bytes_per_s
from sim.engine.prices.activity import Activity
from sim.engine.prices.pricing import ClusterPricing

Floats = NDArray[np.float64]
Direction = Literal["to_servers", "from_servers"]

_LARGE_BYTES = 1_000_000_000
"""A message whose time on a link, less that of an empty one, gives the link's time per byte."""


class _Way(Struct, frozen=True, eq=False):
    """The links between a worker and all servers, in one direction.

    ``per_byte_s``, ``per_message_s``: [links, servers]; ``latencies_s``: of each server.
    """

    links: Sequence[int]
    per_byte_s: Floats
    per_message_s: Floats
    latencies_s: Floats


@dataclass(frozen=True)
class ServerPricing:
    """Prices for workers, one on each device of the cluster, and a server on each of its first ``num_servers`` nodes.

    Resources: links ("link", number), and ("host_memory", node), which the node's server and workers share.
    ``row_bytes_per_s``: the rate at which a server gathers rows or adds to them; None: that of the host's memory.
    """

    pricing: ClusterPricing
    num_workers: int
    num_servers: int
    row_bytes_per_s: float | None = None
    _ways: dict[tuple[int, Direction], _Way] = field(default_factory=dict, repr=False)

    def message(self, worker: int, direction: Direction, num_bytes: Floats) -> Activity:
        """Return the messages between a worker and the servers; ``num_bytes``: of each server, 0: only a latency."""
        key = worker, direction
        if key not in self._ways:
            self._ways[key] = self._way(worker, direction)
        way = self._ways[key]
        seconds = (way.per_byte_s * num_bytes + way.per_message_s).sum(axis=1).tolist()
        demands = tuple((("link", link), busy_s) for link, busy_s in zip(way.links, seconds, strict=True) if busy_s > 0)
        return Activity(float(way.latencies_s.max()), demands)

    def rows(self, num_bytes: Floats) -> Activity:
        """Return what the servers do to gather rows of so many bytes each, or to add to them: a read and a write."""
        seconds = (2 * num_bytes / memory_bytes_per_s(self.pricing.cluster.node.host)).tolist()
        stated_s = 0.0 if self.row_bytes_per_s is None else float(num_bytes.max()) / self.row_bytes_per_s
        demands = ((("host_memory", node), busy_s) for node, busy_s in enumerate(seconds) if busy_s > 0)
        return Activity(max(stated_s - max(seconds), 0.0), tuple(demands))

    def sum_of_all(self, num_bytes: int) -> Activity:
        """Return the all_reduce of all workers."""
        if self.num_workers == 1:
            return Activity()
        cost = self.pricing.network.collective("all_reduce", num_bytes, range(self.num_workers))
        return Activity(cost.latency_s, tuple((("link", link), busy_s) for link, busy_s in cost.links))

    def _way(self, worker: int, direction: Direction) -> _Way:
        """Return the links between a worker and all servers, and the times on them."""
        cluster, network = self.pricing.cluster, self.pricing.network
        per_node = cluster.devices_per_node
        others = np.array([node for node in range(self.num_servers) if node != worker // per_node], dtype=np.int64)
        ends = np.full(len(others), worker), others * per_node
        sources, targets = ends if direction == "to_servers" else ends[::-1]
        empty, full = (network.messages(size, sources, targets) for size in (0, _LARGE_BYTES))
        links = np.unique(full.links)
        per_byte_s, per_message_s = (np.zeros((len(links), self.num_servers)) for _ in range(2))
        latencies_s = np.zeros(self.num_servers)
        latencies_s[others] = empty.latencies_s
        places = np.searchsorted(links, full.links), others[full.rows]
        per_message_s[np.searchsorted(links, empty.links), others[empty.rows]] = empty.seconds
        per_byte_s[places] = (full.seconds - per_message_s[places]) / _LARGE_BYTES
        return _Way(links=links.tolist(), per_byte_s=per_byte_s, per_message_s=per_message_s, latencies_s=latencies_s)
