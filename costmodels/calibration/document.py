"""A calibrated profile as a mapping for YAML, and back: parameters, residuals, and sources."""

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import asdict

from costmodels.calibration.measured import MeasuredNode, catalogue_rates, parse_measured
from costmodels.collectives.network import Protocol
from costmodels.errors import CatalogueError, CostModelError, shown
from costmodels.hardware import NodeSpec, load_node
from costmodels.profile import (
    FLOAT8,
    SECTIONS,
    SPREAD,
    SPREAD_SECTION,
    STEP,
    Profile,
    load_profile,
    packaged_entry,
    parse_profile,
)
from costmodels.spread import Spread

SCHEMA: Final = "meshtwin.profile/1"
PACKAGED: Final = "packaged"
"""The key of a profile that names the packaged one with all that it leaves out."""
_DIGITS: Final = 6


class CalibratedProfile(Struct, frozen=True):
    """A profile from a file.

    ``node``: the catalogue's node that was measured.
    ``measured``: rates in place of the catalogue's, None if the catalogue's hold.
    """

    profile: Profile
    node: str
    measured: MeasuredNode | None = None

    def node_spec(self, node: NodeSpec) -> NodeSpec:
        """Return the catalogue's node, with measured rates if there are any."""
        return node if self.measured is None else self.measured.applied_to(node)

    def holds_for(self, node: str) -> bool:
        """Return whether the profile holds for a node of the catalogue.

        With measured rates it holds only for the measured node. With the catalogue's rates it holds for all nodes with
        devices of the same generation, as packaged profiles do.
        """
        alike = self.measured is None and load_node(node).device.generation == load_node(self.node).device.generation
        return node == self.node or alike


def profile_entry(
    profile: Profile,
    node: NodeSpec,
    *,
    sources: Mapping[str, str],
    measured: bool,
    calibration: Mapping[str, Any],
    kept: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
) -> dict[str, Any]:
    """Return the mapping that ``parse_calibrated`` reads.

    ``sources``: by section, the source of its numbers.
    ``measured``: write the node's own rates too.
    ``calibration``: further facts about the fit; plain values.
    ``kept``: sections to write unchanged, with their own sources.
    """
    entry: dict[str, Any] = {"schema": SCHEMA, "node": node.name}
    if measured:
        entry["measured"] = rates_entry(node)
    for name in SECTIONS:
        if name in kept:
            entry[name] = dict(kept[name])
        elif name == "network":
            entry[name] = {"source": sources[name], **_network_entry(profile)}
        else:
            entry[name] = {"source": sources[name], **_parameters(getattr(profile, name))}
    if FLOAT8 in kept:
        entry[FLOAT8] = dict(kept[FLOAT8])
    if profile.kernels:
        own = {name: _parameters(kernel) for name, kernel in sorted(profile.kernels.items())}
        entry["kernels"] = {"source": sources["kernels"], **own}
    if profile.jitter:
        jitter = {family: _short(value) for family, value in profile.jitter.items()}
        entry["jitter"] = {"source": sources["jitter"], **jitter}
    step = {"source": sources[f"{SPREAD_SECTION}.{STEP}"], "deviation": _short(profile.step_spread)}
    families = {name: spread_entry(profile.spread[name], sources[f"{SPREAD_SECTION}.{name}"]) for name in SPREAD}
    entry[SPREAD_SECTION] = {STEP: step, **families}
    return {**entry, "calibration": dict(calibration)}


def parse_calibrated(name: str, entry: Mapping[str, Any]) -> CalibratedProfile:
    """Return the profile in a mapping. Raises CatalogueError, with section and key, for a broken rule."""
    known = {"schema", "node", "measured", "kernels", SPREAD_SECTION, "jitter", FLOAT8, *SECTIONS}
    unknown = sorted(set(entry) - known - {"calibration", PACKAGED})
    if unknown:
        message = f"a profile has no section {shown(unknown[0])}; it has {', '.join(sorted(known))}"
        raise CatalogueError(message, path=(unknown[0],))
    if entry.get("schema") != SCHEMA:
        message = f"'schema' is {shown(entry.get('schema'))}, where a profile has {SCHEMA!r}"
        raise CatalogueError(message, path=("schema",))
    if not isinstance(entry.get("node"), str):
        raise CatalogueError("'node' must name the node of the catalogue that was measured", path=("node",))
    for section in known - {"schema", "node"}:
        if section in entry and not isinstance(entry[section], Mapping):
            rule = f"the section {section!r} must be a mapping, got {shown(entry[section])}"
            raise CatalogueError(rule, path=(section,))
    try:
        profile = parse_profile(name, _on_packaged(entry))
        measured = parse_measured(entry["measured"]) if "measured" in entry else None
    except CatalogueError:
        raise
    except (CostModelError, ValueError, TypeError, AttributeError) as error:
        raise CatalogueError(f"profile {name}: {error}") from error
    return CalibratedProfile(profile, entry["node"], measured)


def _on_packaged(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a profile with all that it leaves out as the packaged profile that it names has it.

    A section that it has needs a source of its own. Raises CatalogueError for an unknown profile, or without a source.
    """
    if PACKAGED not in entry:
        return entry
    load_profile(str(entry[PACKAGED]))
    merged = dict(packaged_entry(str(entry[PACKAGED])))
    for key, section in entry.items():
        if isinstance(section, Mapping) and key in SECTIONS:
            if not str(section.get("source", "")).strip():
                raise CatalogueError(f"section {key!r} needs a source", path=(key,))
            merged[key] = {**merged[key], **section}
        else:
            merged[key] = section
    return merged


def rates_entry(node: NodeSpec) -> dict[str, Any]:
    """Return a node's rates in the form of a profile's section ``measured``."""
    rates = catalogue_rates(node)
    return {
        "peak": {dtype: f"{_short(rate / 1e9)} GFLOP/s" for dtype, rate in rates.peak_flop_per_s.items()},
        "memory_bandwidth": f"{_short(rates.memory_bandwidth_bytes_per_s / 1e9)} GB/s",
        "intra_bandwidth": f"{_short(rates.intra_bandwidth_bytes_per_s / 1e9)} GB/s",
        "intra_latency": _time(rates.intra_latency_s),
    }


def spread_entry(spread: Spread, source: str) -> dict[str, Any]:
    """Return a family's errors in the form of a profile's section ``spread``."""
    if len(spread.deviation) == 1:
        deviation: Any = _round(spread.deviation[0][1])
    else:
        deviation = {f"{seconds * 1e6:.3g} us": _round(value) for seconds, value in spread.deviation}
    entry = {"source": source, "deviation": deviation, "common": round(spread.common, 3)}
    near = round(spread.near, 3)
    return entry | ({"near": near, "octaves": _round(spread.octaves)} if near else {})


def _network_entry(profile: Profile) -> dict[str, Any]:
    network = profile.network
    return {
        "intra_fraction": _short(network.intra_fraction),
        "inter_fraction": _short(network.inter_fraction),
        "point_to_point_latency": _time(network.point_to_point_latency_s),
        "message_adapter_fraction": _short(network.message_adapter_fraction),
        "intra_message": _time(network.intra_message_s),
        "compute_share": _short(network.compute_share),
        "protocols": [_protocol_entry(protocol) for protocol in network.protocols],
    }


def _protocol_entry(protocol: Protocol) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "name": protocol.name,
        "base_latency": _time(protocol.base_latency_s),
        "intra_hop": _time(protocol.intra_hop_s),
        "inter_hop": _time(protocol.inter_hop_s),
        "wire_overhead": max(1.0, _short(protocol.wire_overhead)),
        "port_fraction": _short(protocol.port_fraction),
        "own_share": _short(protocol.own_share),
        "inter_least": f"{_short(protocol.inter_least_bytes)} B",
        "algorithms": list(protocol.algorithms),
    }
    if protocol.kinds:
        entry["kinds"] = list(protocol.kinds)
    if math.isfinite(protocol.limit_bytes):
        entry["limit"] = f"{_short(protocol.limit_bytes)} B"
    return entry


def _parameters(section: Any) -> dict[str, Any]:
    """Return a section's parameters for YAML: rates, sizes and times with a unit, tuples as lists."""
    return dict(_plain(key, value) for key, value in asdict(section).items())


def _plain(key: str, value: Any) -> tuple[str, Any]:
    name = file_key(key)
    if key.endswith("_bytes_per_s"):
        return name, f"{_short(value / 1e9)} GB/s"
    if key.endswith("_bytes"):
        return name, f"{_short(value)} B"
    if key.endswith("_s"):
        return name, _time(value)
    if isinstance(value, Sequence):
        return name, [list(item) if isinstance(item, Sequence) else item for item in value]
    return name, value if isinstance(value, int) else _short(value)


def file_key(parameter: str) -> str:
    """Return a parameter's name in files: without the unit, which files write at the value."""
    for unit in ("_bytes_per_s", "_bytes", "_s"):
        if parameter.endswith(unit):
            return parameter.removesuffix(unit)
    return parameter


def _time(seconds: float) -> str:
    return f"{_short(seconds * 1e6)} us"


def _round(value: float) -> float:
    """Return an estimate rounded to its known digits."""
    return float(f"{value:.3g}")


def _short(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")
