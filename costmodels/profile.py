"""Efficiency profiles: what a device generation attains of its data sheet. One YAML per generation, with provenance."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import yaml

from costmodels.collectives import NetworkParameters, Protocol
from costmodels.errors import CatalogueError, UnitError
from costmodels.hardware import NodeSpec, nearest_names
from costmodels.units import Dimension, parse_quantity


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmProfile:
    """Parameters of the matrix-product model (see ``roofline.gemm_seconds``).

    ``peak_fraction``: of the peak that an endless tile reaches. ``tile_overhead``: elements; a tile of tm x tn
    reaches hm/(hm + tile_overhead) of that, hm = tm·tn/(tm + tn). ``k_overhead``: prologue and epilogue of a tile, in
    steps of k; ``split_overhead``: more of them when k is split. ``wave_quantisation``: 1 waits for the whole
    last wave, 0 for none of it. ``memory_fraction``: of the memory bandwidth.
    """

    peak_fraction: float
    tile_overhead: float
    k_overhead: float
    split_overhead: float
    wave_quantisation: float
    memory_fraction: float
    latency_s: float
    tiles: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionProfile:
    """Fused attention reaches peak_fraction · s/(s + half_sequence) of the peak, its backward a fixed share of that."""

    peak_fraction: float
    half_sequence: float
    backward_ratio: float
    wave_quantisation: float
    latency_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamProfile:
    """Memory-bound kernels: the fraction of memory bandwidth that they reach, and their fixed time."""

    memory_fraction: float
    latency_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SustainedProfile:
    """What a device holds hour after hour under its power limit, as a fraction of its clock in micro-benchmarks."""

    clock_fraction: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkProfile:
    """Collectives: the fraction of link bandwidth inside and between nodes, fixed times, protocols."""

    intra_fraction: float
    inter_fraction: float
    point_to_point_latency_s: float
    protocols: tuple[Protocol, ...]
    intra_message_s: float = 0.0
    message_adapter_fraction: float = 1.0


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Profile:
    """All efficiencies of one device generation. Compared by identity: loading twice gives the same object."""

    name: str
    gemm: GemmProfile
    attention: AttentionProfile
    elementwise: StreamProfile
    optimizer: StreamProfile
    sustained: SustainedProfile
    network: NetworkProfile


@cache
def load_profile(name: str) -> Profile:
    """Return the packaged profile of a device generation. Raises CatalogueError for an unknown name."""
    known = list_profiles()
    if name not in known:
        nearest = nearest_names(name, known) or known
        raise CatalogueError(f"there is no profile {name!r}; did you mean {' or '.join(nearest)}?", nearest)
    text = resources.files("costmodels").joinpath("profiles", f"{name}.yaml").read_text(encoding="utf-8")
    return parse_profile(name, yaml.safe_load(text))


def list_profiles() -> tuple[str, ...]:
    """Return the names of all packaged profiles, sorted."""
    files = resources.files("costmodels").joinpath("profiles").iterdir()
    return tuple(sorted(file.name.removesuffix(".yaml") for file in files if file.name.endswith(".yaml")))


def parse_profile(name: str, entry: Mapping[str, Any]) -> Profile:
    """Return the profile that a YAML mapping describes. Raises CatalogueError where it breaks a rule."""
    sections = {key: _Section(f"profile {name} {key}", _section(entry, key, name)) for key in _SECTIONS}
    gemm, attention, network = sections["gemm"], sections["attention"], sections["network"]
    return Profile(
        name=name,
        gemm=GemmProfile(
            peak_fraction=gemm.fraction("peak_fraction"),
            tile_overhead=gemm.number("tile_overhead"),
            k_overhead=gemm.number("k_overhead"),
            split_overhead=gemm.number("split_overhead"),
            wave_quantisation=gemm.fraction("wave_quantisation", least=0.0),
            memory_fraction=gemm.fraction("memory_fraction"),
            latency_s=gemm.time("latency"),
            tiles=tuple((int(rows), int(columns)) for rows, columns in gemm.get("tiles")),
        ),
        attention=AttentionProfile(
            peak_fraction=attention.fraction("peak_fraction"),
            half_sequence=attention.number("half_sequence"),
            backward_ratio=attention.fraction("backward_ratio"),
            wave_quantisation=attention.fraction("wave_quantisation", least=0.0),
            latency_s=attention.time("latency"),
        ),
        elementwise=_stream(sections["elementwise"]),
        optimizer=_stream(sections["optimizer"]),
        sustained=SustainedProfile(clock_fraction=sections["sustained"].fraction("clock_fraction")),
        network=_network(name, network),
    )


def network_parameters(node: NodeSpec, profile: Profile) -> NetworkParameters:
    """Return what the links of a cluster of such nodes attain under a profile."""
    return NetworkParameters(
        intra_bandwidth_bytes_per_s=node.intra.bandwidth_bytes_per_s * profile.network.intra_fraction,
        intra_latency_s=node.intra.latency_s,
        inter_bandwidth_bytes_per_s=node.nic.bandwidth_bytes_per_s * profile.network.inter_fraction,
        inter_latency_s=node.nic.latency_s,
        nics_per_node=node.nics_per_node,
        point_to_point_latency_s=profile.network.point_to_point_latency_s,
        protocols=profile.network.protocols,
        intra_message_s=profile.network.intra_message_s,
        message_adapter_fraction=profile.network.message_adapter_fraction,
    )


def parse_network(name: str, entry: Mapping[str, Any]) -> NetworkProfile:
    """Return the network part that a YAML mapping describes. Raises CatalogueError where it breaks a rule."""
    return _network(name, _Section(f"{name} network", entry))


def _network(name: str, network: "_Section") -> NetworkProfile:
    return NetworkProfile(
        intra_fraction=network.fraction("intra_fraction"),
        inter_fraction=network.fraction("inter_fraction"),
        point_to_point_latency_s=network.time("point_to_point_latency"),
        protocols=tuple(_protocol(name, item) for item in network.get("protocols")),
        message_adapter_fraction=(
            network.fraction("message_adapter_fraction") if "message_adapter_fraction" in network.entry else 1.0
        ),
        intra_message_s=network.time("intra_message") if "intra_message" in network.entry else 0.0,
    )


_SECTIONS = ("gemm", "attention", "elementwise", "optimizer", "sustained", "network")


def _section(entry: Mapping[str, Any], key: str, name: str) -> Mapping[str, Any]:
    section: Mapping[str, Any] = entry.get(key, {})
    if not str(section.get("source", "")).strip():
        raise CatalogueError(f"profile {name} needs a section {key!r} with a source")
    return section


def _stream(section: "_Section") -> StreamProfile:
    return StreamProfile(memory_fraction=section.fraction("memory_fraction"), latency_s=section.time("latency"))


def _protocol(name: str, item: Mapping[str, Any]) -> Protocol:
    section = _Section(f"profile {name} protocol {item.get('name')!r}", item)
    return Protocol(
        name=str(section.get("name")),
        base_latency_s=section.time("base_latency"),
        intra_hop_s=section.time("intra_hop"),
        inter_hop_s=section.time("inter_hop"),
        wire_overhead=section.number("wire_overhead", least=1.0),
        limit_bytes=parse_quantity(item["limit"], Dimension.BYTES) if "limit" in item else math.inf,
        port_fraction=section.fraction("port_fraction") if "port_fraction" in item else 1.0,
        inter_least_bytes=parse_quantity(item["inter_least"], Dimension.BYTES) if "inter_least" in item else 0.0,
        own_share=section.number("own_share") if "own_share" in item else 0.0,
        algorithms=tuple(section.get("algorithms")),
    )


@dataclass(frozen=True, slots=True)
class _Section:
    """One mapping of a profile, read with errors that say where."""

    where: str
    entry: Mapping[str, Any]

    def get(self, key: str) -> Any:
        if key not in self.entry:
            raise CatalogueError(f"{self.where} has no {key!r}; it has {', '.join(self.entry)}")
        return self.entry[key]

    def number(self, key: str, least: float = 0.0, most: float = math.inf) -> float:
        value = self.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
            raise CatalogueError(f"{self.where} {key!r} must be a number from {least} to {most}, got {value!r}")
        return float(value)

    def fraction(self, key: str, least: float = 0.01) -> float:
        return self.number(key, least, 1.0)

    def time(self, key: str) -> float:
        try:
            return parse_quantity(self.get(key), Dimension.TIME)
        except UnitError as error:
            raise CatalogueError(f"{self.where} {key!r}: {error}") from None
