"""Plain clusters name a node and a number of nodes: their network, and topologies that change keys of the node."""

from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from costmodels.hardware import LinkSpec, NodeSpec
from scenarios.errors import ScenarioError
from scenarios.reading.documents.yaml_tree import Document
from scenarios.reading.schema.cluster import ClusterSection
from scenarios.reading.sections.section import written_keys
from sim.cluster.topology import parse
from sim.cluster.topology.links import Cable

_ONE_SWITCH: Final = {"kind": "switch"}
_WHOLE: Final = frozenset({"devices", "inside"})
"""Keys of every node that is written out in full."""


class NetworkFactors(Struct, frozen=True):
    """Multiples of the bandwidth and the latency of all links of a plain cluster."""

    bandwidth: float = 1.0
    latency: float = 1.0

    def applied_to(self, node: NodeSpec) -> NodeSpec:
        """Return the node with these links."""
        return replace(node, intra=self._link(node.intra), nic=self._link(node.nic))

    def written(self, link: Cable) -> dict[str, str]:
        """Return the changed values of a link as a topology states them."""
        bandwidth, latency = self.bandwidth * link.bandwidth_bytes_per_s, self.latency * link.latency_s
        return {"bandwidth": f"{bandwidth!r} B/s", "latency": f"{latency!r} s"}

    def _link(self, link: LinkSpec) -> LinkSpec:
        bandwidth = self.bandwidth * link.bandwidth_bytes_per_s
        return replace(link, bandwidth_bytes_per_s=bandwidth, latency_s=self.latency * link.latency_s)


AS_CATALOGUED: Final = NetworkFactors()


def network_factors(document: Document, section: ClusterSection) -> NetworkFactors:
    """Return the network of a plain cluster. Raises ScenarioError where a topology describes the links instead."""
    if section.topology is not None:
        for key, is_written, instead in (
            ("network", written_keys(section.network), "nodes: {nic: {bandwidth: 100 Gbit/s}}"),
            (
                "oversubscription",
                section.oversubscription != 1.0,
                "fabric: {oversubscription: 2} of kinds with leaves",
            ),
        ):
            if is_written:
                rule, remedy = "topology already describes the links", f"leave it out; topology has {instead}"
                raise ScenarioError(document.origin(("cluster", key)), f"cluster.{key}", rule, remedy)
    return NetworkFactors(section.network.bandwidth, section.network.latency)


def written_out(node: str, factors: NetworkFactors, oversubscription: float) -> dict[str, object]:
    """Return the description of nodes of the catalogue below one switch, or each below a leaf of its own."""
    layout = parse.parse_node(node, "nodes")
    links = {"nvlink": layout.nvlink, "nic": layout.nic}
    changed = {key: factors.written(link) for key, link in links.items() if link is not None}
    leaves = {"kind": "leaf-spine", "leaf_ports": layout.num_nics, "spines": 1, "oversubscription": oversubscription}
    return {
        "nodes": {"base": node} | (changed if factors != AS_CATALOGUED else {}),
        "fabric": leaves if oversubscription > 1.0 else _ONE_SWITCH,
    }


def completed(topology: object, node: str | None) -> object:
    """Return a cluster's topology with the keys that it lacks: those of ``node``, below one switch.

    A topology that names an entry of the catalogue, and a node that is written out in full, stay as they are.
    """
    if not isinstance(topology, Mapping) or "base" in topology or node is None:
        return topology
    return {"fabric": _ONE_SWITCH, **topology, "nodes": _completed_nodes(topology.get("nodes", {}), node)}


def _completed_nodes(nodes: Any, node: str) -> object:
    if isinstance(nodes, list):
        return [_completed_group(group, node) for group in nodes]
    is_part = isinstance(nodes, Mapping) and not {"base", "value"} & nodes.keys() and not nodes.keys() >= _WHOLE
    return {"base": node, **nodes} if is_part else nodes


def _completed_group(group: Any, node: str) -> object:
    has_type = isinstance(group, Mapping) and "type" in group
    return {**group, "type": _completed_nodes(group["type"], node)} if has_type else group
