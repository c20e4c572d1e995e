"""Large clusters: every route of a ring over all devices arrives."""

import numpy as np
import pytest

from sim.cluster.topology.parse import parse_topology

LINK = {"bandwidth": "50 GB/s", "latency": "1 us"}
CLUSTERS = {
    "fat tree of 8-GPU nodes": ({"nodes": "hgx-h100", "fabric": {"kind": "fat-tree", "radix": 74}}, 12_500),
    "rails": ({"base": "superpod-h100", "fabric": {"spines": 32}}, 12_500),
    "3d torus": ({"nodes": "torus-chip", "fabric": {"kind": "torus", "shape": [50, 50, 40], "link": LINK}}, 100_000),
    "dragonfly": (
        {"base": "dragonfly-a100", "fabric": {"routers_per_group": 32, "global_links_per_router": 16}}, 12_500,
    ),
    "domains of 576 devices": (
        {"nodes": {"base": "gb200-tray", "nodes_per_domain": 144}, "fabric": {"kind": "rail-optimised"}}, 25_056,
    ),
    "NVL72 racks": ({"base": "gb200-nvl72-pods"}, 25_002),
}  # fmt: skip


@pytest.mark.parametrize("name", CLUSTERS)
def test_a_ring_over_a_hundred_thousand_devices_arrives(name: str) -> None:
    """100,000 devices are laid out, and each of them reaches the next."""
    topology = parse_topology(*CLUSTERS[name])
    assert topology.num_devices >= 100_000
    ring = np.arange(topology.num_devices)
    routes = topology.routes(ring, np.roll(ring, -1))
    assert len(routes) == len(ring)
    assert (topology.source[routes.links[routes.indptr[:-1]]] == ring).all()
    assert (topology.target[routes.links[routes.indptr[1:] - 1]] == np.roll(ring, -1)).all()
