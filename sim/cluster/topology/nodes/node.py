"""The inside of a node: NVLink between devices, the PCIe tree, and the network adapters on it."""

from typing import Final, Literal

import numpy as np
from msgspec import Struct

from sim.cluster.topology.errors import TopologyError, quoted
from sim.cluster.topology.links import NONE, Cable, IntArray, LinkKind
from sim.cluster.topology.nodes.island import Drawing, Island, Path, back, numbers, path_table

Inside = Literal["nvswitch", "nvlink-mesh", "hybrid-cube-mesh", "nvlink-pairs", "pcie"]
INSIDES: Final[tuple[Inside, ...]] = ("nvswitch", "nvlink-mesh", "hybrid-cube-mesh", "nvlink-pairs", "pcie")

MOST_NVLINKS: Final = 1000
"""Largest number of NVLinks between two devices; an H100 has 18 in all."""

HYBRID_CUBE_MESH: Final = (
    (0, 1, 1),
    (0, 2, 1),
    (0, 3, 2),
    (0, 4, 2),
    (1, 2, 2),
    (1, 3, 1),
    (1, 5, 2),
    (2, 3, 2),
    (2, 6, 1),
    (3, 7, 1),
    (4, 5, 1),
    (4, 6, 1),
    (4, 7, 2),
    (5, 6, 2),
    (5, 7, 1),
    (6, 7, 2),
)
"""The NVLinks of a DGX-1 with V100: device, device, links between them; six at every device.

Source: the topology that NCCL reads from such a machine (NVIDIA/nccl issue 671, topo.xml) for GPUs 0 and 1, the other
rows by the symmetry of the two quads. Up to numbering, the graph is that of the SCCL tools' DGX-1 (Microsoft).
"""


class NodeLayout(Struct, frozen=True, kw_only=True):
    """One type of node.

    ``inside``: how devices are joined.
    ``nvlink``: for nvswitch, a device's link to the switch; for nvlink-pairs, all links of a pair together; for the
        meshes, one link of ``nvlinks`` (device, device, number).
    ``nodes_per_domain``: nodes that share one NVSwitch.
    ``port``: the kind of a device's link to the switch.
    ``host_link``: device to PCIe switch or socket.
    ``pcie``: all other links of the PCIe tree.
    ``pcie_switches``: of the whole node; 0: devices are below the sockets.
    ``socket_link``: joins two sockets.
    ``relay``: the path between two devices without NVLink: over one device joined to both (as NCCL's NVB paths), or
        over the host.
    """

    name: str
    num_devices: int
    inside: Inside
    nvlink: Cable | None = None
    nvlinks: tuple[tuple[int, int, int], ...] = ()
    nodes_per_domain: int = 1
    port: LinkKind = LinkKind.NVSWITCH
    pcie: Cable | None = None
    host_link: Cable | None = None
    pcie_switches: int = 0
    sockets: int = 1
    socket_link: Cable | None = None
    num_nics: int = 1
    nic: Cable | None = None
    nics_at_sockets: bool = False
    relay: Literal["neighbour", "host"] = "host"


def lay_out(layout: NodeLayout) -> Island:
    """Return the island of a node type, or of a domain of its nodes. Raises TopologyError for a broken rule."""
    _check(layout)
    drawing = Drawing()
    per_node = layout.num_devices
    num_devices = per_node * layout.nodes_per_domain
    for device in range(num_devices):
        drawing.vertex(f"gpu {device % per_node}", device // per_node)
    trees = [_Tree(layout, drawing, node) for node in range(layout.nodes_per_domain)]
    port_vertices = [vertex for tree in trees for vertex in tree.nics]
    near = [device // per_node * max(1, layout.num_nics) + _near(layout, device) for device in range(num_devices)]
    own = [
        trees[port // layout.num_nics].path(device, port_vertices[port])
        for device, port in enumerate(near)
        if port_vertices
    ]
    if layout.inside == "nvswitch" and layout.nvlink:
        up = _switch_links(layout, drawing, layout.nvlink)
        device_paths = np.stack(np.broadcast_arrays(up[:, None], up[None, :] ^ 1), axis=2)
        device_paths[np.arange(num_devices), np.arange(num_devices)] = NONE
        out_paths = _ways_over_switch(layout, trees, up, near, own)
    else:
        device_paths = path_table(_mesh_paths(layout, drawing, trees))
        out_paths = path_table([[trees[0].path(d, nic) for nic in port_vertices] for d in range(num_devices)])
    if _is_direct(layout):
        port_vertices, out_paths = [0], np.zeros((1, 1, 0), np.int32)
    return Island(
        name=layout.name,
        num_nodes=layout.nodes_per_domain,
        num_devices=num_devices,
        vertex_names=tuple(drawing.names),
        vertex_nodes=tuple(drawing.nodes),
        links=drawing.links(),
        port_vertices=numbers(port_vertices),
        nic=layout.nic if layout.num_nics else None,
        node_of_device=numbers(device // per_node for device in range(num_devices)),
        node_of_port=numbers(port // max(1, layout.num_nics) for port in range(len(port_vertices))),
        nearest_port=numbers(near if port_vertices else [-1] * num_devices),
        device_paths=device_paths,
        out_paths=out_paths,
        in_paths=np.where(out_paths == NONE, NONE, out_paths ^ 1).transpose(1, 0, 2)[:, :, ::-1],
        host_paths=path_table([[trees[device // per_node].up.get(device, [])] for device in range(num_devices)])[:, 0],
    )


def _is_direct(layout: NodeLayout) -> bool:
    """Return whether the network joins the devices themselves (a torus of devices)."""
    return layout.num_nics == 0 and layout.num_devices == 1 and layout.nodes_per_domain == 1


def _near(layout: NodeLayout, device: int) -> int:
    """Return the index of the adapter nearest to a device.

    Neighbours share an adapter, each has equally many devices.
    """
    return device % layout.num_devices * max(1, layout.num_nics) // layout.num_devices


class _Tree:
    """The PCIe tree of one node: devices and adapters below switches below one or two sockets."""

    def __init__(self, layout: NodeLayout, drawing: Drawing, node: int) -> None:
        self.first_device = node * layout.num_devices
        self.up: dict[int, Path] = {}
        self.over: dict[int, int] = {}
        """By vertex: the links up to its socket, and the number of that socket."""
        self.nics: list[int] = []
        self.between_sockets = -1
        if layout.pcie is None:
            return
        pcie, per = layout.pcie, layout.num_devices
        sockets = [drawing.vertex(f"socket {index}", node) for index in range(layout.sockets)]
        for index, socket in enumerate(sockets):
            self.up[socket], self.over[socket] = [], index
        if layout.sockets == 2 and layout.socket_link:
            self.between_sockets = drawing.connect(sockets[0], sockets[1], LinkKind.SOCKET, layout.socket_link)
        above = [sockets[device * layout.sockets // per] for device in range(per)]
        if layout.pcie_switches:
            switches = []
            for index in range(layout.pcie_switches):
                switches.append(drawing.vertex(f"pcie switch {index}", node))
                socket = sockets[index * layout.sockets // layout.pcie_switches]
                self._hang(drawing, switches[-1], socket, LinkKind.PCIE, pcie)
            below = [switches[device * layout.pcie_switches // per] for device in range(per)]
        else:
            below = above
        for device in range(per):
            kind = LinkKind.HOST if layout.host_link else LinkKind.PCIE
            self._hang(drawing, self.first_device + device, below[device], kind, layout.host_link or pcie)
        for index in range(layout.num_nics):
            self.nics.append(drawing.vertex(f"nic {index}", node))
            first = index * per // layout.num_nics
            parent = above[first] if layout.nics_at_sockets else below[first]
            self._hang(drawing, self.nics[-1], parent, LinkKind.PCIE, pcie)

    def _hang(self, drawing: Drawing, vertex: int, parent: int, kind: LinkKind, cable: Cable) -> None:
        self.up[vertex] = [drawing.connect(vertex, parent, kind, cable), *self.up[parent]]
        self.over[vertex] = self.over[parent]

    def path(self, source: int, target: int) -> Path:
        """Return the path between two vertices of the tree, only as far up as needed."""
        up, down = list(self.up[source]), back(self.up[target])
        if self.over[source] != self.over[target]:
            across = self.between_sockets ^ self.over[source]
            return [*up, across, *down]
        while up and down and up[-1] == down[0] ^ 1:
            up.pop()
            down.pop(0)
        return up + down


def _switch_links(layout: NodeLayout, drawing: Drawing, cable: Cable) -> IntArray:
    """Return the link of each device to an NVSwitch or similar switch, which is added here."""
    name = "nvswitch" if layout.port == LinkKind.NVSWITCH else "switch"
    switch = drawing.vertex(name, 0 if layout.nodes_per_domain == 1 else -1)
    count = layout.num_devices * layout.nodes_per_domain
    return numbers(drawing.connect(device, switch, layout.port, cable) for device in range(count))


def _ways_over_switch(
    layout: NodeLayout, trees: list[_Tree], up: IntArray, near: list[int], own: list[Path]
) -> IntArray:
    """Return the paths [devices, ports, longest]: over PCIe to a device's nearest adapter, over NVLink first to others.

    A path to another adapter goes over the first device whose nearest adapter that is (NCCL's PXN).
    """
    nics, per = layout.num_nics, layout.num_devices
    ports = range(nics * layout.nodes_per_domain)
    peers = numbers(port // nics * per + port % nics * per // nics for port in ports) if nics else numbers([])
    feeds = path_table([[own[peer]] for peer in peers.tolist()])[:, 0] if nics else np.zeros((0, 0), np.int32)
    width = max([2 + feeds.shape[1], *map(len, own)])
    ways = np.full((len(up), len(ports), width), NONE, np.int32)
    ways[:, :, 0], ways[:, :, 1] = up[:, None], up[peers] ^ 1
    ways[:, :, 2 : 2 + feeds.shape[1]] = feeds
    for device, path in enumerate(own):
        ways[device, near[device]] = [*path, *[NONE] * (width - len(path))]
    return ways


def _mesh_paths(layout: NodeLayout, drawing: Drawing, trees: list[_Tree]) -> list[list[Path]]:
    """Return the paths between every two devices of a node without NVSwitch."""
    bonds = _bonds(layout)
    direct: dict[tuple[int, int], int] = {}
    for (first, second), cable in bonds.items():
        direct[first, second] = drawing.connect(first, second, LinkKind.NVLINK, cable)
        direct[second, first] = direct[first, second] ^ 1
    widths = {pair: bonds[min(pair), max(pair)].bandwidth_bytes_per_s for pair in direct}
    count = range(layout.num_devices)
    return [[_mesh_path(layout, trees, direct, widths, s, t) for t in count] for s in count]


def _bonds(layout: NodeLayout) -> dict[tuple[int, int], Cable]:
    """Return the NVLinks between each pair of devices, combined to one cable."""
    if layout.nvlink is None:
        return {}
    if layout.inside == "nvlink-pairs":
        return {(first, first + 1): layout.nvlink for first in range(0, layout.num_devices, 2)}
    mesh = HYBRID_CUBE_MESH if layout.inside == "hybrid-cube-mesh" else layout.nvlinks
    counts: dict[tuple[int, int], int] = {}
    for first, second, count in mesh:
        pair = (min(first, second), max(first, second))
        counts[pair] = counts.get(pair, 0) + count
    return {pair: layout.nvlink.times(count) for pair, count in counts.items()}


def _mesh_path(
    layout: NodeLayout,
    trees: list[_Tree],
    direct: dict[tuple[int, int], int],
    widths: dict[tuple[int, int], float],
    source: int,
    target: int,
) -> Path:
    """Return the path between two devices: over NVLink, else over a neighbour, else over the host.

    Of several neighbours it takes the one with the widest bottleneck; of equals, the one with the widest link to the
    target, then the first. Source: the breadth-first search of NCCL's ncclTopoSetPaths (src/graph/paths.cc, NVB).
    """
    if source == target:
        return []
    if (source, target) in direct:
        return [direct[source, target]]
    over = [via for via in range(layout.num_devices) if (source, via) in direct and (via, target) in direct]
    if over and layout.relay == "neighbour":
        best = max(over, key=lambda v: (min(widths[source, v], widths[v, target]), widths[v, target], -v))
        return [direct[source, best], direct[best, target]]
    if layout.pcie is None:
        pair = f"devices {source} and {target}"
        raise TopologyError("pcie", f"nothing joins {pair}", "write pcie: {bandwidth: ..., latency: ...}")
    return trees[0].path(source, target)


def _check(layout: NodeLayout) -> None:
    """Raise TopologyError for the first broken rule."""
    _check_counts(layout)
    _check_links(layout)
    if layout.inside == "hybrid-cube-mesh" and layout.num_devices != 8:
        raise TopologyError("devices", "a hybrid cube mesh joins 8 devices", "write devices: 8")
    if layout.inside == "nvlink-pairs" and layout.num_devices % 2:
        raise TopologyError("devices", f"{layout.num_devices} devices make no pairs", "write an even number")
    _check_mesh(layout)


def _check_mesh(layout: NodeLayout) -> None:
    if (layout.inside == "nvlink-mesh") != bool(layout.nvlinks):
        rule, remedy = f"{layout.inside} has no list of links", "leave it out, or write inside: nvlink-mesh"
        if not layout.nvlinks:
            rule, remedy = f"{layout.inside} needs the list of its links", "write nvlinks: [[0, 1, 2], ...]"
        raise TopologyError("nvlinks", rule, remedy)
    for first, second, count in layout.nvlinks:
        low, high = sorted((first, second))
        if not (0 <= low < high < layout.num_devices and 0 < count <= MOST_NVLINKS):
            row = quoted([first, second, count])
            rule = f"{row} is not two devices of 0 to {layout.num_devices - 1} and a number up to {MOST_NVLINKS}"
            raise TopologyError("nvlinks", rule, "write [device, device, links between them]")


def _check_counts(layout: NodeLayout) -> None:
    per = layout.num_devices
    if layout.num_nics and per % layout.num_nics:
        rule = f"{layout.num_nics} adapters do not share {per} devices evenly"
        raise TopologyError("nics", rule, "write a number that divides devices")
    if not layout.num_nics and not _is_direct(layout) and layout.nic:
        raise TopologyError("nics", "there is a nic, and no adapter has it", "write nics: 1 or more")
    if layout.sockets not in {1, 2}:
        raise TopologyError("sockets", f"a node has 1 or 2 sockets, not {layout.sockets}", "write 1 or 2")
    switches = layout.pcie_switches
    if switches and (per % switches or switches % layout.sockets):
        rule = f"{switches} PCIe switches do not share {per} devices and {layout.sockets} sockets evenly"
        raise TopologyError("pcie_switches", rule, "write a number that divides devices, the same for each socket")
    if layout.sockets == 2 and per % 2 and per > 1:
        raise TopologyError("sockets", f"{per} devices do not share 2 sockets evenly", "write sockets: 1")
    if layout.nodes_per_domain > 1 and layout.inside != "nvswitch":
        raise TopologyError("nodes_per_domain", "only an NVSwitch joins several nodes", "write inside: nvswitch")


def _check_links(layout: NodeLayout) -> None:
    example = "{bandwidth: 300 GB/s, latency: 0.3 us}"
    if layout.inside != "pcie" and layout.nvlink is None:
        raise TopologyError("nvlink", f"{layout.inside} needs it", f"write nvlink: {example}")
    if layout.num_nics and layout.nic is None:
        raise TopologyError("nic", f"there are {layout.num_nics} adapters", f"write nic: {example}")
    if layout.pcie is None and (layout.num_nics or (layout.inside == "pcie" and layout.num_devices > 1)):
        raise TopologyError("pcie", "devices reach adapters and hosts over it", f"write pcie: {example}")
    if layout.sockets == 2 and layout.socket_link is None:
        raise TopologyError("socket_link", "two sockets need it", f"write socket_link: {example}")
