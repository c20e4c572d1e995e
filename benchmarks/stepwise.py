"""Simulation of a ring all_reduce message by message. The messages of a round share links max-min fairly.

A round ends with its last message, as in ``tests.sim.cluster.stepwise_network``. That module simulates any step list;
this one simulates rings only, whose rounds are arrays.
"""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from costmodels.collectives.cost import _cheapest as cheapest
from costmodels.collectives.flows import collective_flows
from costmodels.collectives.network import NetworkParameters
from sim.cluster.network import Network
from sim.cluster.nominal import Library
from sim.cluster.topology.parse import parse_topology
from sim.cluster.topology.topology import Topology
from tests.sim.cluster.stepwise_network import SAME, fair_rates

NUM_RANKS: Final = 1024
NUM_BYTES: Final = 2**30
_CABLE: Final = {"bandwidth": "50 GB/s", "latency": "0.5 us"}
CLUSTER: Final[Mapping[str, Any]] = {
    "nodes": {"devices": 1, "inside": "pcie", "nics": 1, "nic": _CABLE, "pcie": {"bandwidth": "64 GB/s"}},
    "fabric": {
        "kind": "fat-tree", "leaf_ports": 32, "leaves_per_pod": 8, "spines_per_pod": 8, "cores_per_spine": 8,
    },
}  # fmt: skip


def cluster() -> Topology:
    """Return a three-level fat tree of 1,024 nodes with one device each."""
    return parse_topology(CLUSTER, NUM_RANKS)


def ring_all_reduce_s(topology: Topology, num_bytes: int) -> tuple[float, int]:
    """Return the seconds of a ring over all devices, and the number of its messages."""
    ranks = np.arange(topology.num_devices)
    routes = topology.routes(ranks, np.roll(ranks, -1))
    finite = np.isfinite(topology.bandwidth_bytes_per_s)
    links = [routes[rank][finite[routes[rank]]] for rank in ranks.tolist()]
    latencies_s = np.array([topology.latency_s[routes[rank]].sum() for rank in ranks.tolist()])
    num_rounds, now_s = 2 * (len(ranks) - 1), 0.0
    for _ in range(num_rounds):
        now_s = round_s(topology, links, latencies_s, num_bytes / len(ranks), now_s)
    return now_s, num_rounds * len(ranks)


def round_s(
    topology: Topology, links: list[np.ndarray], latencies_s: np.ndarray, message_bytes: float, now_s: float
) -> float:
    """Return the arrival time of the last message of a round that begins now, in seconds."""
    under_way, arrived_s = np.arange(len(links)), now_s
    left = np.full(len(links), message_bytes)
    while len(under_way):
        rates = fair_rates([links[i] for i in under_way.tolist()], topology.bandwidth_bytes_per_s)
        ends_s = now_s + left / rates
        then_s = float(ends_s.min())
        left = left - rates * (then_s - now_s)
        done = ends_s <= then_s * SAME
        arrived_s = max(arrived_s, then_s + float(latencies_s[under_way[done]].max()))
        now_s, under_way, left = then_s, under_way[~done], left[~done]
    return arrived_s


def network_of(topology: Topology) -> Network:
    """Return the network of a cluster, without software latencies."""
    parameters = NetworkParameters(
        intra_bandwidth_bytes_per_s=1.0, intra_latency_s=0.0, inter_bandwidth_bytes_per_s=5e10, inter_latency_s=0.0
    )
    return Network(topology, np.arange(topology.num_devices), (Library(parameters),))


def one_activity_s(network: Network, num_bytes: int) -> float:
    """Return the seconds of the same all_reduce as one activity, priced without caches."""
    for function in (cheapest, collective_flows):
        function.cache_clear()
    cost = network.collective("all_reduce", num_bytes, range(network.topology.num_devices), "ring")
    return cost.latency_s + max(seconds for _, seconds in cost.links)
