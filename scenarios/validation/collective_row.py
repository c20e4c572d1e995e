"""Prediction of one measured collective or message: a table's row without a model."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from costmodels.calibration.document import CalibratedProfile
from costmodels.collectives.cost import collective_cost, exclusive_seconds, point_to_point_cost
from costmodels.collectives.network import NetworkParameters
from costmodels.errors import CatalogueError, CollectiveError, UnitError
from costmodels.hardware import NodeSpec, load_node
from costmodels.profile import load_profile, network_parameters, parse_network
from costmodels.units import Dimension, parse_quantity
from scenarios.errors import Origin, ScenarioError, suggestion

KEYS: Final = ("node", "num_nodes", "num_devices", "collective", "bytes", "nic", "network", "issue")
_NIC: Final = ("bandwidth", "latency", "per_node")
_SPELLINGS: Final = {"alltoall": "all_to_all"}
"""nccl-tests' own spellings of some names."""


def collective_time_s(
    entry: Mapping[str, Any], path: Path, where: str, calibrated: CalibratedProfile | None = None
) -> float:
    """Return the seconds of a collective, or a message (``send_recv``), alone on a cluster.

    Keys of ``entry``:
    ``node``: of the catalogue.
    ``num_nodes``, ``num_devices``: of the group, equally many per node.
    ``collective``, ``bytes``: as ``collective_cost`` counts them.
    ``nic``: optional: bandwidth, latency, per_node, in place of the node's adapters.
    ``network``: optional: as in a profile, in place of the generation's.
    ``issue``: optional: the host's time to issue a collective, the least that any takes.

    ``calibrated``: a profile in place of the generation's. Raises ScenarioError for an unknown or missing key, and for
        values that the cost models refuse.
    """
    origin = Origin(option=where) if where else Origin(str(path))
    for key in ("nic", "network"):
        if not isinstance(entry.get(key, {}), Mapping):
            raise ScenarioError(origin, key, f"a mapping belongs here, not {entry[key]!r}", "write its keys below it")
    _check_keys(entry, KEYS, ("nic", "network", "issue"), origin, "")
    nodes, devices, num_bytes = (_count(entry, key, origin) for key in ("num_nodes", "num_devices", "bytes"))
    if devices % nodes or devices < 2:
        rule, remedy = f"{devices} devices on {nodes} nodes", "give every node as many, and the group 2 or more"
        raise ScenarioError(origin, "num_devices", rule, remedy)
    try:
        node = load_node(str(entry["node"]))
        profile = load_profile(node.device.profile) if calibrated is None else calibrated.profile
        node = node if calibrated is None else calibrated.node_spec(node)
        if "network" in entry:
            profile = replace(profile, network=parse_network("the table's", entry["network"]))
        network = network_parameters(_with_adapters(node, entry.get("nic", {}), origin), profile)
        issue_s = parse_quantity(entry["issue"], Dimension.TIME) if "issue" in entry else 0.0
        kind = _SPELLINGS.get(entry["collective"], entry["collective"])
        return max(issue_s, _alone_s(kind, num_bytes, (devices // nodes,) * nodes, network))
    except (CatalogueError, CollectiveError, UnitError) as error:
        raise ScenarioError(origin, "", str(error), "mend the table's base or the row") from error


def _alone_s(kind: str, num_bytes: int, group: tuple[int, ...], network: NetworkParameters) -> float:
    if kind == "send_recv":
        cost = point_to_point_cost(num_bytes, same_node=len(group) == 1, network=network)
        rate = cost.port_bytes / network.intra_bandwidth_bytes_per_s
        return cost.latency_s + rate + cost.nic_bytes / network.inter_bandwidth_bytes_per_s
    return exclusive_seconds(collective_cost(kind, num_bytes, group, network), group, network)


def _with_adapters(node: NodeSpec, nic: Mapping[str, Any], origin: Origin) -> NodeSpec:
    """Return the node with a cluster's own adapters, if it has any."""
    _check_keys(nic, _NIC, _NIC, origin, "nic.")
    link, count = node.nic, node.nics_per_node
    if "bandwidth" in nic:
        link = replace(link, bandwidth_bytes_per_s=parse_quantity(nic["bandwidth"], Dimension.BANDWIDTH))
    if "latency" in nic:
        link = replace(link, latency_s=parse_quantity(nic["latency"], Dimension.TIME))
    if "per_node" in nic:
        count = _count(nic, "per_node", origin)
    return replace(node, nic=link, nics_per_node=count)


def _check_keys(
    entry: Mapping[str, Any], known: tuple[str, ...], optional: tuple[str, ...], origin: Origin, prefix: str
) -> None:
    for key in entry:
        if key not in known:
            raise ScenarioError(
                origin, f"{prefix}{key}", "a measured collective has no such key", suggestion(key, known)
            )
    for key in known:
        if key not in entry and key not in optional:
            raise ScenarioError(origin, f"{prefix}{key}", "the key is required and missing", f"add {key} to the base")


def _count(entry: Mapping[str, Any], key: str, origin: Origin) -> int:
    value = entry[key]
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ScenarioError(origin, key, f"a whole number of 1 or more belongs here, not {value!r}", "mend it")
    return value
