"""Efficiency profiles: the fractions of its data sheet that a device generation attains.

One YAML each, with sources.
"""

import math
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, Final, Literal, get_args

from msgspec import Struct, field

from costmodels.collectives.network import TUNED_ALGORITHMS, NetworkParameters, Protocol
from costmodels.collectives.traffic import TRAFFIC
from costmodels.errors import CatalogueError, UnitError, listed, shown
from costmodels.hardware import NodeSpec, nearest_names
from costmodels.packaged import packaged_names, packaged_yaml
from costmodels.spread import NETWORK, Spread
from costmodels.timing.attention import AttentionProfile, DecodeProfile
from costmodels.timing.gemm import GemmProfile
from costmodels.timing.streaming import KernelProfile, StreamProfile
from costmodels.units import Dimension, parse_quantity

Basis = Literal["measured", "assumed", "roofline"]
"""Source of the efficiencies: measured kernels, assumed orders of magnitude, or typical fractions of a data sheet."""


class SustainedProfile(Struct, frozen=True, kw_only=True):
    """The clock that a device sustains under its power limit, as a fraction of its clock in micro-benchmarks."""

    clock_fraction: float


class Float8Profile(Struct, frozen=True, kw_only=True):
    """Products of 8-bit operands: like other products, at this fraction of the peak for 8 bits."""

    peak_fraction: float = 1.0


class NetworkProfile(Struct, frozen=True, kw_only=True):
    """Collectives: the fraction of link bandwidth inside and between nodes, fixed times, protocols.

    ``compute_share``: fraction of a device's arithmetic that a collective takes while its bytes move.
    """

    intra_fraction: float
    inter_fraction: float
    point_to_point_latency_s: float
    protocols: tuple[Protocol, ...]
    intra_message_s: float = 0.0
    message_adapter_fraction: float = 1.0
    compute_share: float = 0.0


class Profile(Struct, frozen=True, kw_only=True, eq=False):
    """All efficiencies of one device generation. Compared by identity: loading twice gives the same object.

    ``basis``: the source of the efficiencies.
    ``kernels``: by name, kernels measured to differ from their family.
    ``spread``: by family, the errors of predictions.
    ``step_spread``: standard deviation of log(measured/predicted) of steps, beside the errors of the families.
    ``jitter``: by family, standard deviation of log(time) over devices of one type; missing if unknown.
    """

    name: str
    basis: Basis
    gemm: GemmProfile
    attention: AttentionProfile
    decode: DecodeProfile
    elementwise: StreamProfile
    optimizer: StreamProfile
    sustained: SustainedProfile
    network: NetworkProfile
    float8: Float8Profile = field(default_factory=Float8Profile)
    kernels: Mapping[str, KernelProfile] = field(default_factory=dict)
    spread: Mapping[str, Spread] = field(default_factory=dict)
    step_spread: float = 0.0
    jitter: Mapping[str, float] = field(default_factory=dict)


@cache
def load_profile(name: str) -> Profile:
    """Return the packaged profile of a device generation. Raises CatalogueError for an unknown name."""
    known = list_profiles()
    if name not in known:
        nearest = nearest_names(name, known) or known
        raise CatalogueError(f"there is no profile {shown(name)}; did you mean {' or '.join(nearest)}?", nearest)
    return parse_profile(name, packaged_entry(name))


def packaged_entry(name: str) -> Mapping[str, Any]:
    """Return the contents of a packaged profile's YAML file."""
    return packaged_yaml("profiles", name)


def list_profiles() -> tuple[str, ...]:
    """Return the names of all packaged profiles, sorted."""
    return packaged_names("profiles")


def parse_profile(name: str, entry: Mapping[str, Any]) -> Profile:
    """Return the profile of a YAML mapping. Raises CatalogueError for a broken rule."""
    sections = {key: _Section(f"profile {name} {key}", _section(entry, key, name), (key,)) for key in SECTIONS}
    float8 = _section(entry, FLOAT8, name) if FLOAT8 in entry else {"peak_fraction": 1.0}
    own = _Section(f"profile {name} kernels", entry.get("kernels", {}), ("kernels",))
    jitter = _Section(f"profile {name} jitter", entry.get("jitter", {}), ("jitter",))
    spread = _Section(f"profile {name} {SPREAD_SECTION}", entry.get(SPREAD_SECTION, {}), (SPREAD_SECTION,))
    return Profile(
        name=name,
        basis=_basis(name, entry),
        gemm=_gemm(sections["gemm"]),
        attention=_attention(sections["attention"]),
        decode=_decode(sections["decode"]),
        elementwise=_stream(sections["elementwise"]),
        optimizer=_stream(sections["optimizer"]),
        sustained=SustainedProfile(clock_fraction=sections["sustained"].fraction("clock_fraction")),
        network=_network(name, sections["network"]),
        float8=Float8Profile(
            peak_fraction=_Section(f"profile {name} float8", float8, (FLOAT8,)).fraction("peak_fraction")
        ),
        kernels={key: _kernel(own.within(key)) for key in own.entry if key != "source"},
        spread={family: _spread(spread.within(family)) for family in SPREAD},
        step_spread=_sourced(spread.within(STEP)).number("deviation", most=_FARTHEST),
        jitter={key: jitter.number(key, most=_FARTHEST) for key in jitter.entry if key != "source"},
    )


def _basis(name: str, entry: Mapping[str, Any]) -> Basis:
    """Return the basis of a profile: measured, unless it states another."""
    basis = entry.get("basis", "measured")
    if basis not in get_args(Basis):
        raise CatalogueError(
            f"profile {name} 'basis' must be {' or '.join(get_args(Basis))}, got {shown(basis)}", (), ("basis",)
        )
    return "roofline" if basis == "roofline" else "assumed" if basis == "assumed" else "measured"


def _gemm(gemm: "_Section") -> GemmProfile:
    return GemmProfile(
        peak_fraction=gemm.fraction("peak_fraction"),
        power_fraction=gemm.number("power_fraction", least=1e-3, most=math.inf),
        throttle=gemm.number("throttle"),
        throttle_after_s=gemm.time("throttle_after", least=1e-9),
        throttle_sharpness=gemm.number("throttle_sharpness", most=_STEEPEST),
        k_overhead=gemm.number("k_overhead"),
        later_overhead=gemm.fraction("later_overhead", least=0.0),
        step_s=gemm.time("step"),
        cache_bandwidth_bytes_per_s=gemm.bandwidth("cache_bandwidth"),
        epilogue=gemm.number("epilogue"),
        block_s=gemm.time("block"),
        split_s=gemm.time("split"),
        split_part_s=gemm.time("split_part"),
        split_passes=gemm.number("split_passes"),
        split_cache_fraction=gemm.number("split_cache_fraction"),
        wave_quantisation=gemm.fraction("wave_quantisation", least=0.0),
        memory_quantisation=gemm.fraction("memory_quantisation", least=0.0),
        memory_fraction=gemm.fraction("memory_fraction"),
        memory_ramp_bytes=gemm.bytes("memory_ramp"),
        cache_fraction=gemm.number("cache_fraction"),
        cache_speedup=gemm.number("cache_speedup", least=1.0),
        overlap=gemm.number("overlap", least=1.0, most=_SHARPEST),
        memory_overlap=gemm.number("memory_overlap", least=1.0, most=_SHARPEST),
        latency_s=gemm.time("latency"),
        ranked_quantisation=gemm.fraction("ranked_quantisation", least=0.0),
        ranked_cache=gemm.number("ranked_cache", least=1e-3),
        ranked_split=gemm.number("ranked_split"),
        shallow_area=gemm.number("shallow_area", least=1.0),
        tiles=gemm.pairs("tiles"),
        paired_tiles=gemm.pairs("paired_tiles", least=0),
        splits=gemm.counts("splits"),
    )


def _attention(attention: "_Section") -> AttentionProfile:
    return AttentionProfile(
        peak_fraction=attention.fraction("peak_fraction"),
        throttle=attention.number("throttle"),
        throttle_after_s=attention.time("throttle_after", least=1e-9),
        step_s=attention.time("step"),
        tail=attention.fraction("tail", least=0.0),
        memory_fraction=attention.fraction("memory_fraction"),
        cache_fraction=attention.number("cache_fraction"),
        cache_speedup=attention.number("cache_speedup", least=1.0),
        backward_ratio=attention.fraction("backward_ratio"),
        latency_s=attention.time("latency"),
        score_s=attention.time("score") if "score" in attention.entry else 0.0,
        key_tile=attention.count("key_tile") if "key_tile" in attention.entry else 64,
    )


def _decode(decode: "_Section") -> DecodeProfile:
    return DecodeProfile(
        block_s=decode.time("block"),
        step_s=decode.time("step"),
        split_s=decode.time("split"),
        block_bandwidth_bytes_per_s=decode.bandwidth("block_bandwidth"),
        memory_fraction=decode.fraction("memory_fraction"),
        query_passes=decode.number("query_passes"),
        wave_quantisation=decode.fraction("wave_quantisation", least=0.0),
        overlap=decode.number("overlap", least=1.0, most=_SHARPEST),
        latency_s=decode.time("latency"),
    )


def _stream(stream: "_Section") -> StreamProfile:
    return StreamProfile(
        memory_fraction=stream.fraction("memory_fraction"),
        latency_s=stream.time("latency"),
        cache_bytes=stream.bytes("cache") if "cache" in stream.entry else 0.0,
        cache_speedup=stream.number("cache_speedup", least=1.0) if "cache_speedup" in stream.entry else 1.0,
    )


def _kernel(kernel: "_Section") -> KernelProfile:
    return KernelProfile(slowdown=kernel.number("slowdown", least=1e-3), latency_s=kernel.time("latency"))


def _spread(family: "_Section") -> Spread:
    """Return a family's errors: a deviation, or several by predicted time, and their correlation between calls."""
    stated = _sourced(family).get("deviation")
    by_length = _Section(
        f"{family.where} deviation",
        stated if isinstance(stated, Mapping) else {"1 s": stated},
        (*family.path, "deviation"),
    )
    deviation = sorted((_length(key, by_length), by_length.number(key, most=_FARTHEST)) for key in by_length.entry)
    near = "near" in family.entry
    spread = Spread(
        deviation=tuple(deviation),
        common=family.fraction("common", least=0.0),
        near=family.fraction("near", least=0.0) if near else 0.0,
        octaves=family.number("octaves", least=1e-3) if near else 1.0,
    )
    if not deviation or spread.common + spread.near > _ONE:
        message = f"{family.where} needs a deviation, and 'common' and 'near' may be 1 together"
        raise CatalogueError(message, path=family.path)
    return spread


def _length(key: str, section: "_Section") -> float:
    try:
        return max(float(parse_quantity(key, Dimension.TIME)), 1e-12)
    except UnitError as error:
        raise CatalogueError(f"{section.where}: {error}", path=section.path) from None


def _sourced(section: "_Section") -> "_Section":
    if not str(section.entry.get("source", "")).strip():
        raise CatalogueError(f"{section.where} needs a source", path=section.path)
    return section


def network_parameters(node: NodeSpec, profile: Profile) -> NetworkParameters:
    """Return the attained rates of the links in a cluster of such nodes, under a profile."""
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
    """Return the network part of a YAML mapping. Raises CatalogueError for a broken rule."""
    return _network(name, _Section(f"{name} network", entry))


def _network(name: str, network: "_Section") -> NetworkProfile:
    return NetworkProfile(
        intra_fraction=network.fraction("intra_fraction"),
        inter_fraction=network.fraction("inter_fraction"),
        point_to_point_latency_s=network.time("point_to_point_latency"),
        protocols=tuple(_protocol(name, network, place) for place in range(len(network.items("protocols")))),
        message_adapter_fraction=(
            network.fraction("message_adapter_fraction") if "message_adapter_fraction" in network.entry else 1.0
        ),
        intra_message_s=network.time("intra_message") if "intra_message" in network.entry else 0.0,
        compute_share=network.fraction("compute_share", least=0.0) if "compute_share" in network.entry else 0.0,
    )


SECTIONS: Final = ("gemm", "attention", "decode", "elementwise", "optimizer", "sustained", "network")
SPREAD_SECTION: Final = "spread"
SPREAD: Final = ("gemm", "attention", "decode", "elementwise", "optimizer", NETWORK)
"""Families whose errors every profile states, measured or assumed. Backward attention has the errors of attention."""
_FARTHEST: Final = 50.0
"""Largest standard deviation of a logarithm: larger errors could not be written as numbers."""
_STEEPEST: Final = 10.0
_SHARPEST: Final = 40.0
"""Largest exponent: larger powers could not be written as numbers."""
_LONGEST_S: Final = 1e6
_RATES: Final = (1.0, 1e18)
"""Least and most bytes per second that are accepted."""
_MOST_BYTES: Final = 1e18
_MOST: Final = 1e9
"""Largest number without a unit."""
_MOST_TILE: Final = 1 << 16
"""Most rows or columns of a tile, and most parts of a split product."""
_PAIR: Final = 2
_MOST_ITEMS: Final = 1_000
_ALGORITHMS: Final = TUNED_ALGORITHMS | {"exchange"}
_ONE: Final = 1.002
"""Largest sum of two parts of a whole, allowing for rounding."""
STEP: Final = "step"
"""The name of whole steps among the families of errors."""
FLOAT8: Final = "float8"
"""The section of a profile whose device attains less of its peak with 8-bit products than with others."""


def _section(entry: Mapping[str, Any], key: str, name: str) -> Mapping[str, Any]:
    section: Mapping[str, Any] = entry.get(key, {})
    if not isinstance(section, Mapping) or not str(section.get("source", "")).strip():
        raise CatalogueError(f"profile {name} needs a section {key!r} with a source", path=(key,))
    return section


def _protocol(name: str, network: "_Section", place: int) -> Protocol:
    item, path = network.items("protocols")[place], (*network.path, "protocols", place)
    if not isinstance(item, Mapping):
        raise CatalogueError(f"{network.where} 'protocols' must be mappings, got {shown(item)}", path=path)
    section = _Section(f"profile {name} protocol {shown(item.get('name'))}", item, path)
    return Protocol(
        name=section.word("name"),
        base_latency_s=section.time("base_latency"),
        intra_hop_s=section.time("intra_hop"),
        inter_hop_s=section.time("inter_hop"),
        wire_overhead=section.number("wire_overhead", least=1.0),
        limit_bytes=section.bytes("limit") if "limit" in item else math.inf,
        port_fraction=section.fraction("port_fraction") if "port_fraction" in item else 1.0,
        inter_least_bytes=section.bytes("inter_least") if "inter_least" in item else 0.0,
        own_share=section.number("own_share") if "own_share" in item else 0.0,
        algorithms=section.words("algorithms", _ALGORITHMS),
        kinds=section.words("kinds", TRAFFIC) if "kinds" in item else (),
    )


class _Section(Struct, frozen=True):
    """One mapping of a profile, with errors that name the place."""

    where: str
    entry: Mapping[str, Any]
    path: tuple[str | int, ...] = ()
    """The keys and list indices of the mapping in the profile."""

    def get(self, key: str) -> Any:
        if key not in self.entry:
            message = f"{self.where} has no {key!r}; it has {listed(self.entry)}"
            raise CatalogueError(message, path=(*self.path, key))
        return self.entry[key]

    def refusal(self, key: str, rule: str) -> CatalogueError:
        """Return the error of a key's value."""
        return CatalogueError(f"{self.where} {key!r}{rule}", path=(*self.path, key))

    def number(self, key: str, least: float = 0.0, most: float = _MOST) -> float:
        value = self.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
            raise self.refusal(key, f" must be a number from {least} to {most}, got {shown(value)}")
        return float(value)

    def fraction(self, key: str, least: float = 0.01) -> float:
        return self.number(key, least, 1.0)

    def count(self, key: str) -> int:
        """Return a whole number from 1 to the most rows of a tile."""
        return self._whole(key, self.get(key))

    def counts(self, key: str) -> tuple[int, ...]:
        """Return a list of one or more such numbers."""
        return tuple(self._whole(key, item) for item in self.items(key))

    def pairs(self, key: str, least: int = 1) -> tuple[tuple[int, int], ...]:
        """Return a list of at least ``least`` pairs of such numbers."""
        found = []
        for item in self.items(key, least):
            if not isinstance(item, list | tuple) or len(item) != _PAIR:
                raise self.refusal(key, f" must be a list of pairs, as in [[128, 256]], got {shown(item)}")
            found.append((self._whole(key, item[0]), self._whole(key, item[1])))
        return tuple(found)

    def word(self, key: str) -> str:
        value = self.get(key)
        if not isinstance(value, str) or not value.strip():
            raise self.refusal(key, f" must be text, got {shown(value)}")
        return value

    def words(self, key: str, known: Iterable[str]) -> tuple[str, ...]:
        """Return a list of one or more known words."""
        items, names = self.items(key), sorted(known)
        for item in items:
            if item not in names:
                raise self.refusal(key, f" must be a list of {', '.join(names)}, got {shown(item)}")
        return tuple(items)

    def items(self, key: str, least: int = 1) -> list[Any]:
        """Return a list of at least ``least`` values, bounded in length."""
        value = self.get(key)
        if not isinstance(value, list | tuple) or not least <= len(value) <= _MOST_ITEMS:
            raise self.refusal(key, f" must be a list of {least} to {_MOST_ITEMS:,} items, got {shown(value)}")
        return list(value)

    def time(self, key: str, least: float = 0.0) -> float:
        return self._quantity(key, Dimension.TIME, least, _LONGEST_S)

    def bandwidth(self, key: str) -> float:
        return self._quantity(key, Dimension.BANDWIDTH, *_RATES)

    def bytes(self, key: str) -> float:
        return self._quantity(key, Dimension.BYTES, 0.0, _MOST_BYTES)

    def within(self, key: str) -> "_Section":
        inner = self.get(key)
        if not isinstance(inner, Mapping):
            raise self.refusal(key, f" must be a mapping, got {shown(inner)}")
        return _Section(f"{self.where} {key}", inner, (*self.path, key))

    def _whole(self, key: str, value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int | float) or not 1 <= value <= _MOST_TILE or value % 1:
            raise self.refusal(key, f" must be whole numbers from 1 to {_MOST_TILE:,}, got {shown(value)}")
        return int(value)

    def _quantity(self, key: str, dimension: Dimension, least: float, most: float) -> float:
        try:
            value = float(parse_quantity(self.get(key), dimension))
        except UnitError as error:
            raise self.refusal(key, f": {error}") from None
        if value < least:
            raise self.refusal(key, f" must not be less than {least:g}, got {shown(self.get(key))}")
        if value > most:
            raise self.refusal(key, f" must not be more than {most:g}, got {shown(self.get(key))}")
        return value
