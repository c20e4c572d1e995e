"""Where links go when devices change places, held against the routes of all pairs."""

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from sim.cluster.topology.links import NONE
from sim.cluster.topology.parse import parse_topology
from sim.cluster.topology.permuting import permutation
from sim.cluster.topology.symmetry import link_images
from sim.cluster.topology.topology import Topology
from tests.examples import examples
from tests.sim.cluster.topology_graphs import SINGLE, SWITCHED, TREE, cluster, fat_tree, torus
from tests.sim.topology_strategies import clusters


def takes_routes_to_routes(topology: Topology, devices_to: NDArray[np.int64], images: NDArray[np.int32]) -> bool:
    """Return whether the route of any two devices goes, hop by hop, to the route of the devices to which they go."""
    sources, targets = np.divmod(np.arange(topology.num_devices**2), topology.num_devices)
    hops = topology.hops(sources, targets)
    return np.array_equal(
        topology.hops(devices_to[sources], devices_to[targets]), np.where(hops == NONE, NONE, images[hops])
    )


def rotated(num_devices: int, step: int, block: int) -> NDArray[np.int64]:
    """Return where devices go by so many steps in each block of them."""
    devices = np.arange(num_devices)
    first = devices // block * block
    size = np.minimum(block, num_devices - first)
    return first + (devices - first + step) % size


@settings(max_examples=examples(60), deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_links_go_where_routes_go(data: Any) -> None:
    """On clusters of every kind: where links are said to go somewhere, all routes go there, and no two links to one."""
    topology = data.draw(clusters(data.draw(st.sampled_from([8, 16, 24])))).cluster.topology
    num = topology.num_devices
    for step in (n for n in range(1, num) if num % n == 0):
        devices_to = rotated(num, step, data.draw(st.sampled_from([num, *(n for n in range(2, num) if num % n == 0)])))
        if (images := link_images(topology, devices_to)) is not None:
            assert takes_routes_to_routes(topology, devices_to, images)
            assert sorted(images.tolist()) == list(range(topology.num_links))


RAILS = {"kind": "rail-optimised", "nodes_per_leaf": 2, "spines": 2}
POOR_RAILS = RAILS | {"cross_rail": "spine"}
LEAVES = {"kind": "leaf-spine", "leaf_ports": 8, "spines": 4}


@pytest.mark.parametrize(
    ("topology", "step", "block"),
    [
        (cluster(SWITCHED, 6, kind="switch"), 4, 24),
        (cluster(SWITCHED, 6, kind="switch"), 1, 4),
        (cluster(SWITCHED, 6, **LEAVES), 8, 24),
        (cluster(SWITCHED, 6, **LEAVES), 1, 4),
        (cluster(SWITCHED, 6, **RAILS), 8, 24),
        (cluster(SWITCHED, 6, **POOR_RAILS), 8, 24),
        (cluster(TREE, 4, kind="switch"), 8, 32),
        (fat_tree(4), 4, 16),
        (cluster(SWITCHED, 1), 1, 4),
    ],
    ids=["nodes", "places", "leaves", "places-on-leaves", "rails", "rails-over-spines", "pcie", "pods", "no-network"],
)  # fmt: skip
def test_symmetry_is_found(topology: Topology, step: int, block: int) -> None:
    """Nodes on one switch, leaves, pods and devices of a switched node may all change places in turn."""
    devices_to = rotated(topology.num_devices, step, block)
    images = link_images(topology, devices_to)
    assert images is not None
    assert takes_routes_to_routes(topology, devices_to, images)


@pytest.mark.parametrize(
    ("topology", "step", "block"),
    [
        (cluster(SWITCHED, 6, kind="switch"), 1, 24),
        (cluster(SWITCHED, 6, **LEAVES), 4, 24),
        (cluster(SINGLE, 6, kind="leaf-spine", leaf_ports=3, spines=2), 1, 3),
        (fat_tree(4), 2, 16),
        (torus(4, 4), 4, 16),
        (cluster(TREE, 4, kind="switch"), 1, 8),
        (cluster(SWITCHED, 6, **RAILS), 4, 24),
    ],
    ids=["across-nodes", "across-leaves", "one-way", "across-pods", "torus", "adapters", "across-leaves-of-rails"],
)
def test_where_routes_break_nothing_is_said(topology: Topology, step: int, block: int) -> None:
    """Devices that leave their node, or leaf, alone, or that take another way: no links go anywhere; nor on a torus."""
    assert link_images(topology, rotated(topology.num_devices, step, block)) is None


def test_unlike_nodes_do_not_change_places() -> None:
    """Nodes of two types: those of one go to each other, and not to the other."""
    groups = [{"count": 4, "type": SWITCHED}, {"count": 2, "type": SWITCHED | {"nics": 2}}]
    topology = parse_topology({"nodes": groups, "fabric": {"kind": "switch"}}, 6)
    assert link_images(topology, rotated(24, 4, 24)) is None
    within = rotated(24, 4, 16)
    images = link_images(topology, within)
    assert images is not None
    assert takes_routes_to_routes(topology, within, images)


def test_a_permutation_is_known_by_parts_of_it() -> None:
    """Numbers that are not named stay; -1 is none of them; nothing goes to two places, and no two to one."""
    found = permutation(np.array([0, 1, -1, 0]), np.array([1, 0, -1, 1]), 4)
    assert found is not None
    assert found.tolist() == [1, 0, 2, 3]
    for before, after in (([0, 0], [0, 1]), ([0, 1], [2, 2]), ([0], [1]), ([0], [-1]), ([-1], [0])):
        assert permutation(np.array(before), np.array(after), 4) is None
