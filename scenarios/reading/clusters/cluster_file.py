"""Read the topology of a cluster from a YAML file: one that holds nothing else, or a whole scenario."""

from collections.abc import Collection, Sequence
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from scenarios.errors import ScenarioError, suggestion
from scenarios.reading.clusters.machine import (
    devices_of_nodes,
    locating,
    refuse_many,
    refuse_missing_devices,
    with_stragglers,
)
from scenarios.reading.clusters.plain import completed, network_factors, written_out
from scenarios.reading.documents.checking import check_document, key_paths, refuse_nulls
from scenarios.reading.documents.other_names import name_elsewhere
from scenarios.reading.documents.overrides import apply_overrides, read_overridden
from scenarios.reading.documents.yaml_tree import Document, KeyPath, describe
from scenarios.reading.schema.cluster import ClusterSection
from scenarios.reading.schema.values import ScenarioSection
from scenarios.reading.sections.section import Section, keys_of
from sim.cluster.topology.parse import parse_topology
from sim.cluster.topology.topology import Topology

ALONE: Final = (*keys_of(ScenarioSection), "cluster")
"""Keys of a file that describes a cluster and nothing else."""
CLUSTER_KEYS: Final = tuple(keys_of(ClusterSection))


class _ClusterFile(Section):
    cluster: ClusterSection


class NamedTopology(Struct, frozen=True):
    """A topology with its name in the file."""

    name: str
    topology: Topology


def describes_scenario(document: Document, overrides: Sequence[str] = ()) -> bool:
    """Return whether a file describes a scenario; else it holds a cluster alone."""
    return not {"model", "workload"}.isdisjoint(apply_overrides(document, overrides).data)


def cluster_of(document: Document, overrides: Sequence[str] = (), sections: Collection[str] = ALONE) -> NamedTopology:
    """Return the topology that a file's ``cluster`` describes, with ``key=value`` overrides put in.

    Without ``topology``, the nodes are of the type that ``node`` names, on one switch. ``sections``: the keys that the
    file may have. Raises ScenarioError with file, line and key.
    """
    return read_overridden(document, overrides, lambda changed: _cluster_of(changed, tuple(sections)))


def _cluster_of(document: Document, sections: tuple[str, ...]) -> NamedTopology:
    refuse_nulls(document)
    _refuse_unknown(document, document.data, sections, ())
    cluster = document.data.get("cluster")
    if not isinstance(cluster, dict):
        rule = "the key is required and missing" if cluster is None else f"{describe(cluster)} is no cluster"
        raise ScenarioError(
            document.origin(()), "cluster", rule, "write cluster: {topology: superpod-h100, num_nodes: 64}"
        )
    _refuse_unknown(document, cluster, CLUSTER_KEYS, ("cluster",))
    num_nodes = cluster.get("num_nodes")
    if not isinstance(num_nodes, int) or isinstance(num_nodes, bool) or num_nodes < 1:
        rule = f"a whole number of 1 or more belongs here, not {describe(num_nodes)}"
        origin = document.origin(("cluster", "num_nodes"))
        raise ScenarioError(origin, "cluster.num_nodes", rule, "write how many nodes there are")
    refuse_many(document, num_nodes, 1)
    description, prefix = _description(document, cluster)
    with locating(document, prefix):
        topology = parse_topology(description, num_nodes)
    checked = check_document(replace(document, data={"cluster": cluster}), _ClusterFile).cluster
    factors = network_factors(document, checked)
    if checked.topology is None and checked.node is not None:
        topology = parse_topology(written_out(checked.node, factors, checked.oversubscription), num_nodes)
    refuse_missing_devices(document, checked, devices_of_nodes(topology))
    topology = with_stragglers(document, checked.stragglers, topology)
    name = document.data.get("name", description if isinstance(description, str) else document.source.stem)
    return NamedTopology(str(name), topology)


def _description(document: Document, cluster: dict[str, Any]) -> tuple[Any, KeyPath]:
    """Return the description of the topology and the key that it comes from."""
    if "topology" in cluster:
        return completed(cluster["topology"], _name_of(cluster.get("node"))), ("cluster", "topology")
    if "node" not in cluster:
        remedy = "write topology: superpod-h100, or node: hgx-h100 for nodes on one switch"
        raise ScenarioError(
            document.origin(("cluster",)), "cluster.topology", "the key is required and missing", remedy
        )
    nodes: dict[str, Any] = {"base": cluster["node"]}
    return {"nodes": nodes, "fabric": {"kind": "switch"}}, ("cluster", "node")


def _name_of(node: object) -> str | None:
    return node if isinstance(node, str) else None


def _refuse_unknown(document: Document, entries: dict[str, Any], known: tuple[str, ...], where: KeyPath) -> None:
    for key in entries:
        if key not in known:
            name = ".".join([*map(str, where), key])
            remedy = name_elsewhere(key, known, key_paths(_ClusterFile)) or suggestion(key, known)
            raise ScenarioError(document.origin((*where, key)), name, "unknown key", remedy)
