"""The links of a CollNet collective: trees of switches that reduce and multicast (SHARP).

In networks with such switches a route depends on the target alone. So the routes from a column of members to one of
them form a tree. Data flow up the tree, are added where they meet, and flow down again. Every link carries one sum in
each direction.

Source: Graham et al. 2016, Scalable Hierarchical Aggregation Protocol (SHARP), COM-HPC, section III.
"""

import numpy as np
from numpy.typing import NDArray

from costmodels.collectives.flows import switch_parts
from sim.cluster.topology.topology import Topology

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


def reduction_trees(
    topology: Topology, kind: str, devices: Ints, ranks_per_node: tuple[int, ...]
) -> tuple[Ints, Ints, Floats]:
    """Return the load of CollNet collectives on the links between nodes, per byte of their payload.

    ``devices``: [groups, members], node by node, with equally many of each node.

    Returns three columns: the group, a link, and the fraction of the payload on the link; a link in several trees has a
    row for each tree.
    """
    groups, (members, trees) = len(devices), (len(ranks_per_node), ranks_per_node[0])
    columns = devices.reshape(groups, members, trees).transpose(0, 2, 1).reshape(groups * trees, members)
    roots = np.repeat(columns[:, 0], members - 1)
    routes = topology.routes(columns[:, 1:].ravel(), roots)
    tree = np.repeat(np.repeat(np.arange(groups * trees), members - 1), routes.num_hops)
    cells, below = np.unique(tree * topology.num_links + routes.links, return_counts=True)
    tree, links = cells // topology.num_links, cells % topology.num_links
    up, down = switch_parts(kind, below.astype(np.float64), ranks_per_node)
    rows = tree // trees
    both = np.concatenate([links, topology.reverse_of(links)])
    return np.concatenate([rows, rows]), both, np.concatenate([up, down])
