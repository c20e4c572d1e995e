"""The machine of a scenario: nodes of the hardware catalogue, and how they are joined."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from operator import itemgetter

from msgspec import Struct
from msgspec.structs import replace

from costmodels.calibration import document as calibration
from costmodels.collectives.network import COLLNET
from costmodels.collectives.traffic import TRAFFIC
from costmodels.errors import CatalogueError
from costmodels.hardware import DeviceSpec, NodeSpec, StorageSpec, list_nodes, load_node
from scenarios.errors import ScenarioError, suggestion
from scenarios.reading.clusters import profile_file
from scenarios.reading.clusters.plain import AS_CATALOGUED, NetworkFactors, completed, network_factors
from scenarios.reading.documents import named_file
from scenarios.reading.documents.yaml_tree import Document, KeyPath
from scenarios.reading.schema.cluster import ClusterSection, NetworkSection, StragglerSection
from scenarios.reading.schema.values import MAX_WORLD_SIZE
from scenarios.reading.sections.section import values_of
from sim.cluster.cluster import below_one_switch
from sim.cluster.topology import parse
from sim.cluster.topology.errors import TopologyError
from sim.cluster.topology.topology import Topology

TOPOLOGY: KeyPath = ("cluster", "topology")
PROFILE: KeyPath = ("cluster", "profile")


class ClusterSpec(Struct, frozen=True, kw_only=True):
    """The machine of a scenario: ``num_nodes`` nodes of the hardware catalogue, most often all of type ``node``.

    ``devices_per_node``: how many of each node's devices the job uses, at most all. ``wiring``: the links, None for
    one switch below all nodes. ``node_types``: where there are several, each with its number of nodes, in node order;
    ``node`` is the first then. ``jitter``: by family of kernels, how much devices of one type differ. ``calibrated``:
    the profile of a file, None for the packaged one of each device. ``network``: how fast the links of a node are,
    as multiples of the catalogue's or the profile's; a wiring has its own. ``device_price_usd_per_s``: None for that of
    the catalogue. ``storage``: drives of a node for training state.
    """

    node: str
    num_nodes: int
    devices_per_node: int
    node_types: tuple[tuple[str, int], ...] = ()
    jitter: tuple[tuple[str, float], ...] = ()
    wiring: Topology | None = None
    calibrated: "calibration.CalibratedProfile | None" = None
    network: NetworkFactors = AS_CATALOGUED
    device_price_usd_per_s: float | None = None
    storage: StorageSpec | None = None

    @property
    def price_usd_per_s(self) -> float | None:
        """Return the price of all devices together; None where that of some is not known."""
        if self.device_price_usd_per_s is not None:
            return self.world_size * self.device_price_usd_per_s
        counts = dict(self.node_types) or {self.node: self.num_nodes}
        prices = {name: load_node(name).device.price_usd_per_s for name in counts}
        known = [price * counts[name] for name, price in prices.items() if price is not None]
        return self.devices_per_node * sum(known) if len(known) == len(counts) else None

    @property
    def node_spec(self) -> NodeSpec:
        """Return the hardware of ``node``: measured rates in place of the catalogue's, and the scenario's network."""
        node = _node_spec(self.node, self.calibrated, self.network)
        return replace(node, host=replace(node.host, storage=self.storage)) if self.storage else node

    @property
    def device_types(self) -> tuple[DeviceSpec, ...]:
        """Return the catalogue's devices, one of each type of node."""
        return tuple(load_node(name).device for name in dict(self.node_types) or (self.node,))

    @property
    def world_size(self) -> int:
        """Return the number of devices."""
        return self.num_nodes * self.devices_per_node

    @property
    def devices_per_island(self) -> int:
        """Return the number of devices of a node, or of a domain of nodes that share an NVSwitch."""
        return self.devices_per_node if self.wiring is None else self.world_size // self.wiring.num_islands

    @property
    def num_nics(self) -> int:
        """Return the number of network adapters."""
        if self.wiring is None:
            return self.num_nodes * load_node(self.node).nics_per_node
        has_adapters = self.wiring.fabric is None or not self.wiring.fabric.direct
        return len(self.wiring.ports) if has_adapters else 0


def cluster_spec(document: Document, section: ClusterSection) -> ClusterSpec:
    """Return a scenario's machine. Raises ScenarioError where its keys do not go together."""
    refuse_many(document, section.num_nodes, section.devices_per_node or 1)
    network, topology = network_factors(document, section), None
    description = completed(section.topology, section.node)
    if description is not None:
        if section.node is not None:
            _hardware(document, section.node)
        with locating(document, TOPOLOGY):
            topology = parse.parse_topology(description, section.num_nodes)
    types = _node_types(document, section, description)
    used = _least_devices(document, section, types[0][0], topology)
    calibrated = _calibrated(document, section, types)
    refuse_many(document, section.num_nodes, used)
    if topology is None and (section.stragglers or section.oversubscription > 1.0):
        node = _node_spec(types[0][0], calibrated, network)
        topology = below_one_switch(node, section.num_nodes, section.oversubscription)
    if topology is not None:
        topology = with_stragglers(document, section.stragglers, topology)
    return ClusterSpec(
        node=types[0][0],
        num_nodes=section.num_nodes,
        devices_per_node=used,
        node_types=tuple(types) if len({name for name, _ in types}) > 1 else (),
        jitter=tuple(_jitter(section).items()),
        wiring=topology,
        calibrated=calibrated,
        network=network,
        device_price_usd_per_s=section.device_price,
    )


def _node_spec(name: str, calibrated: "calibration.CalibratedProfile | None", network: NetworkFactors) -> NodeSpec:
    node = load_node(name)
    return network.applied_to(node if calibrated is None else calibrated.node_spec(node))


def forced_algorithms(document: Document, section: NetworkSection, cluster: ClusterSpec) -> dict[str, str]:
    """Return the algorithms that a scenario forces, by kind of collective.

    Raises ScenarioError for one that its kind does not have, and for CollNet on switches that do not reduce.
    """
    fabric = None if cluster.wiring is None else cluster.wiring.fabric
    chosen = {kind: name for kind, name in values_of(section.algorithm).items() if name != "auto"}
    for kind, name in chosen.items():
        key = f"network.algorithm.{kind}"
        if name not in TRAFFIC[kind]:
            rule = f"{kind} has no algorithm {name!r}"
            raise ScenarioError(document.origin(key.split(".")), key, rule, suggestion(name, ("auto", *TRAFFIC[kind])))
        if name in COLLNET and (fabric is None or not fabric.reduces):
            rule = f"{name} needs switches between nodes that reduce, and this cluster has none"
            remedy = "write auto, or in_network_reduction: true in cluster.topology.fabric"
            raise ScenarioError(document.origin(key.split(".")), key, rule, remedy)
    return chosen


@contextmanager
def locating(document: Document, prefix: KeyPath) -> Iterator[None]:
    """Give a TopologyError raised inside the origin of the key that it names below ``prefix``."""
    try:
        yield
    except TopologyError as error:
        is_inside = prefix[-1] == "topology"
        parts: KeyPath = (*prefix, *_parts(error.key)) if is_inside else prefix
        key = ".".join(str(part) for part in prefix) + (f".{error.key}" if error.key and is_inside else "")
        raise ScenarioError(document.origin(parts), key, error.rule, error.remedy) from error


def _parts(key: str) -> KeyPath:
    """Return the parts of a key such as ``nodes[1].type.nics``."""
    found = re.findall(r"\[(\d+)\]|([^.\[\]]+)", key)
    return tuple(int(index) if index else name for index, name in found)


def refuse_many(document: Document, num_nodes: int, used: int) -> None:
    """Raise ScenarioError if these nodes and devices are more than can be simulated."""
    if num_nodes * used > MAX_WORLD_SIZE:
        key, product = "cluster.num_nodes", f"{num_nodes:,} nodes x {used} devices = {num_nodes * used:,}"
        rule, remedy = f"{product} is more than {MAX_WORLD_SIZE:,}", f"write at most {MAX_WORLD_SIZE // used:,} nodes"
        raise ScenarioError(document.origin(key.split(".")), key, rule, remedy)


# --- which devices -----------------------------------------------------------------------------------------


def _node_types(document: Document, section: ClusterSection, topology: object) -> list[tuple[str, int]]:
    """Return the hardware of the nodes, in node order: name in the catalogue, and how many nodes.

    ``topology``: its description, with the keys of ``node`` that it lacks.
    """
    if topology is None:
        if section.node is None:
            rule, remedy = "the key is required and missing", "add node: to cluster, or topology: superpod-h100"
            raise ScenarioError(document.origin(("cluster",)), "cluster.node", rule, remedy)
        _hardware(document, section.node)
        return [(section.node, section.num_nodes)]
    known, layouts = list_nodes(), parse.layout_names(topology, section.num_nodes)
    return [(_type_of(document, section.node, name, known), count) for name, count in layouts]


def _type_of(document: Document, node: str | None, layout: str, known: tuple[str, ...]) -> str:
    """Return the hardware of nodes of a layout: that of its name, or for a layout without hardware ``cluster.node``."""
    if layout in known:
        if node not in {None, layout}:
            rule = f"the topology's nodes are {layout}, and this is {node}"
            remedy = f"leave it out, or write topology: {{base: ..., nodes: {node}}}"
            raise ScenarioError(document.origin(("cluster", "node")), "cluster.node", rule, remedy)
        return layout
    if node is None:
        what = f"layout {layout!r}" if layout else "a node that is written out"
        rule = f"the hardware catalogue does not say which devices {what} holds"
        remedy = "add node: to cluster, whose devices they are (simulate list nodes)"
        raise ScenarioError(document.origin(TOPOLOGY), "cluster.topology", rule, remedy)
    return node


def _hardware(document: Document, name: str) -> NodeSpec:
    try:
        return load_node(name)
    except CatalogueError as error:
        rule, _, remedy = str(error).rpartition("; ")
        raise ScenarioError(document.origin(("cluster", "node")), "cluster.node", rule, remedy) from error


def devices_of_nodes(topology: Topology) -> dict[str, int]:
    """Return how many devices a node of each layout has."""
    counts: dict[str, int] = {}
    for island in topology.islands:
        of_one = island.num_devices // island.num_nodes
        counts[island.name] = min(counts.get(island.name, of_one), of_one)
    return counts


def refuse_missing_devices(document: Document, section: ClusterSection, counts: Mapping[str, int]) -> None:
    """Raise ScenarioError where more devices of every node are to be used than some node has."""
    used, key = section.devices_per_node, "cluster.devices_per_node"
    name, least = min(counts.items(), key=itemgetter(1))
    if used is not None and used > least:
        rule = f"{used} devices of each node, where a {name} has {least}"
        raise ScenarioError(document.origin(key.split(".")), key, rule, f"write at most {least}")


def _least_devices(document: Document, section: ClusterSection, node: str, topology: Topology | None) -> int:
    """Return how many devices every node has. Raises ScenarioError where more are to be used, or nodes differ."""
    counts = {node: load_node(node).devices_per_node} if topology is None else devices_of_nodes(topology)
    least, most = min(counts.values()), max(counts.values())
    if section.devices_per_node is None and least != most:
        rule = f"nodes have {least} to {most} devices, and each has to give as many as the others"
        remedy = f"write devices_per_node: {least}"
        raise ScenarioError(document.origin(("cluster",)), "cluster.devices_per_node", rule, remedy)
    refuse_missing_devices(document, section, counts)
    return section.devices_per_node or least


def _calibrated(
    document: Document, section: ClusterSection, types: list[tuple[str, int]]
) -> "calibration.CalibratedProfile | None":
    """Return the profile of the file that a scenario names, if it names one."""
    if section.profile is None:
        return None
    found = profile_file.read_profile(
        named_file.named_file(document, PROFILE, section.profile, profile_file.PROFILE_HINT)
    )
    names = sorted({name for name, _ in types})
    key, origin = "cluster.profile", document.origin(PROFILE)
    if not all(found.holds_for(name) for name in names):
        rule = f"the profile is one of {found.node}, and the cluster has {', '.join(names)}"
        raise ScenarioError(origin, key, rule, "name a profile of this node, or leave it out")
    if found.measured is not None and section.topology is not None:
        rule = "the profile has measured links, and topology describes other ones"
        raise ScenarioError(origin, key, rule, "leave one of the two out")
    return found


def _jitter(section: ClusterSection) -> dict[str, float]:
    """Return the spread of each family of kernels that has one."""
    spread: dict[str, float] = values_of(section.jitter)
    spread["attention_backward"] = spread["attention"]
    return {family: sigma for family, sigma in spread.items() if sigma > 0}


# --- which links -------------------------------------------------------------------------------------------


def with_stragglers(document: Document, entries: tuple[StragglerSection, ...], topology: Topology) -> Topology:
    """Return the topology with a scenario's stragglers. Raises ScenarioError for one that names no device or link."""
    numbers = _device_numbers(topology) if any(isinstance(entry.device, str) for entry in entries) else {}
    for index, entry in enumerate(entries):
        where: KeyPath = ("cluster", "stragglers", index)
        if (entry.device is None) == (entry.link is None):
            rule, remedy = "a straggler is a device or a link", "write one of device: and link:"
            raise ScenarioError(document.origin(where), f"cluster.stragglers[{index}]", rule, remedy)
        kind = "device" if entry.link is None else "link"
        try:
            if entry.link is not None:
                topology = topology.slowed(links={entry.link: entry.slowdown})
            else:
                topology = topology.slowed({_device(document, where, entry.device, numbers): entry.slowdown})
        except TopologyError as error:
            key = f"cluster.stragglers[{index}].{kind}"
            raise ScenarioError(document.origin((*where, kind)), key, error.rule, error.remedy) from error
    return topology


def _device_numbers(topology: Topology) -> Mapping[str, int]:
    return {name: number for number, name in enumerate(topology.vertex_names()[: topology.num_devices])}


def _device(document: Document, where: KeyPath, device: int | str | None, numbers: Mapping[str, int]) -> int:
    if not isinstance(device, str):
        assert device is not None
        return device
    if device not in numbers:
        rule, remedy = f"there is no device {device!r}", suggestion(device, list(numbers)[:2000])
        key = f"cluster.stragglers[{where[-1]}].device"
        raise ScenarioError(document.origin((*where, "device")), key, rule, remedy)
    return numbers[device]
