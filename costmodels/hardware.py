"""The hardware catalogue: devices and nodes, every number with its source, from packaged YAML."""

import difflib
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, Final, Literal

from msgspec import Struct

from costmodels.errors import CatalogueError, UnitError, listed, shown
from costmodels.packaged import packaged_entries
from costmodels.units import Dimension, parse_quantity

_KINDS: Final = ("gpu", "cpu")
_MOST: Final = 1e21
"""Largest accepted quantity of hardware in SI units, FLOP/s."""
_MOST_PARTS: Final = 1_000_000


class DeviceSpec(Struct, frozen=True, kw_only=True):
    """One accelerator (or CPU core). ``peak_flop_per_s`` is dense, by dtype; ``profile`` names its efficiencies.

    ``price_usd_per_s``: for rent, as one provider lists it; None: none is known. ``power_limit_w``: the largest mean
    electric power, of the data sheet; None: none is known.
    """

    name: str
    kind: Literal["gpu", "cpu"]
    generation: str
    profile: str
    memory_bytes: int
    memory_bandwidth_bytes_per_s: float
    l2_cache_bytes: int
    num_multiprocessors: int
    clock_hz: float
    peak_flop_per_s: Mapping[str, float]
    price_usd_per_s: float | None = None
    power_limit_w: float | None = None

    def __hash__(self) -> int:
        return hash((self.name, self.memory_bytes, self.memory_bandwidth_bytes_per_s, self.num_multiprocessors))

    def peak(self, dtype: str) -> float:
        """Return the dense arithmetic rate in FLOP/s for operands of a dtype.

        Raises CatalogueError for a dtype that the device has no rate for.
        """
        if dtype not in self.peak_flop_per_s:
            known = ", ".join(self.peak_flop_per_s)
            raise CatalogueError(f"device {self.name} has no arithmetic rate for {dtype}; it has {known}")
        return self.peak_flop_per_s[dtype]


class LinkSpec(Struct, frozen=True, kw_only=True):
    """One end of a link: bandwidth per direction and per device (or per adapter), and one hop's latency."""

    kind: str
    bandwidth_bytes_per_s: float
    latency_s: float


class StorageSpec(Struct, frozen=True, kw_only=True):
    """A node's NVMe drives together. ``bandwidth_bytes_per_s``: of reading and writing, which share it."""

    capacity_bytes: int
    bandwidth_bytes_per_s: float
    latency_s: float


class HostSpec(Struct, frozen=True, kw_only=True):
    """The node's own memory and cores, and the links to its devices, per device and direction.

    ``memory_attained`` and ``device_attained``: fractions of these bandwidths that streaming and large copies reach.
    ``storage``: drives for state that does not fit into memory; None: none.
    """

    memory_bytes: int
    memory_bandwidth_bytes_per_s: float
    memory_attained: float
    num_cores: int
    device_bandwidth_bytes_per_s: float
    device_attained: float
    device_latency_s: float
    storage: StorageSpec | None = None


class NodeSpec(Struct, frozen=True, kw_only=True):
    """Devices that share a host, links between them, and network adapters to the other nodes."""

    name: str
    device: DeviceSpec
    devices_per_node: int
    intra: LinkSpec
    nics_per_node: int
    nic: LinkSpec
    host: HostSpec


def list_nodes() -> tuple[str, ...]:
    """Return the names of all nodes of the catalogue, sorted."""
    return tuple(sorted(_read("nodes")))


def list_devices() -> tuple[str, ...]:
    """Return the names of all devices of the catalogue, sorted."""
    return tuple(sorted(_read("devices")))


@cache
def load_device(name: str) -> DeviceSpec:
    """Return a device of the catalogue. Raises CatalogueError for an unknown name, with the nearest known."""
    return parse_device(name, _lookup("device", name, _read("devices")))


@cache
def load_node(name: str) -> NodeSpec:
    """Return a node of the catalogue. Raises CatalogueError for an unknown name, with the nearest known."""
    return parse_node(name, _lookup("node", name, _read("nodes")))


def parse_device(name: str, entry: Mapping[str, Any]) -> DeviceSpec:
    """Return the device of a catalogue entry. Raises CatalogueError for a broken rule."""
    where = f"device {name}"
    kind, peak = _word(entry, "kind", where), _get(entry, "peak", where)
    if kind not in _KINDS:
        raise CatalogueError(f"{where} 'kind' must be {' or '.join(_KINDS)}, got {shown(kind)}")
    if not isinstance(peak, Mapping) or not peak:
        raise CatalogueError(f"{where} 'peak' must be a mapping of dtypes, got {shown(peak)}")
    return DeviceSpec(
        name=name,
        kind="gpu" if kind == "gpu" else "cpu",
        generation=_word(entry, "generation", where),
        profile=_word(entry, "profile" if "profile" in entry else "generation", where),
        memory_bytes=int(_quantity(entry, "memory", Dimension.BYTES, where)),
        memory_bandwidth_bytes_per_s=_quantity(entry, "memory_bandwidth", Dimension.BANDWIDTH, where),
        l2_cache_bytes=int(_quantity(entry, "l2_cache", Dimension.BYTES, where)),
        num_multiprocessors=_count(entry, "num_multiprocessors", where),
        clock_hz=_quantity(entry, "clock", Dimension.FREQUENCY, where),
        peak_flop_per_s={dtype: _quantity(peak, dtype, Dimension.FLOP_RATE, f"{where} peak") for dtype in peak},
        price_usd_per_s=_quantity(entry, "price", Dimension.PRICE, where) if "price" in entry else None,
        power_limit_w=_quantity(entry, "power_limit", Dimension.POWER, where) if "power_limit" in entry else None,
    )


def parse_node(name: str, entry: Mapping[str, Any]) -> NodeSpec:
    """Return the node of a catalogue entry. Raises CatalogueError for a broken rule."""
    where = f"node {name}"
    host = _get(entry, "host", where)
    return NodeSpec(
        name=name,
        device=load_device(_word(entry, "device", where)),
        devices_per_node=_count(entry, "devices_per_node", where),
        intra=_link(entry, "intra", where),
        nics_per_node=_count(entry, "nics_per_node", where),
        nic=_link(entry, "nic", where),
        host=HostSpec(
            memory_bytes=int(_quantity(host, "memory", Dimension.BYTES, f"{where} host")),
            memory_bandwidth_bytes_per_s=_quantity(host, "memory_bandwidth", Dimension.BANDWIDTH, f"{where} host"),
            memory_attained=_fraction(host, "memory_attained", f"{where} host"),
            num_cores=_count(host, "num_cores", f"{where} host"),
            device_bandwidth_bytes_per_s=_quantity(host, "device_bandwidth", Dimension.BANDWIDTH, f"{where} host"),
            device_attained=_fraction(host, "device_attained", f"{where} host"),
            device_latency_s=_quantity(host, "device_latency", Dimension.TIME, f"{where} host"),
        ),
    )


def nearest_names(name: str, known: Iterable[str]) -> tuple[str, ...]:
    """Return up to three known names most similar to ``name``, best first.

    Names that contain it come before all others.
    """
    word, names = name.lower(), sorted(known)
    holding = [known_name for known_name in names if word and word in known_name]
    close = difflib.get_close_matches(word, names, n=3, cutoff=0.4)
    found = dict.fromkeys([each for each in close if each in holding] + holding + ([] if holding else close))
    return tuple(found)[:3]


@cache
def _read(file: str) -> Mapping[str, Any]:
    return packaged_entries("catalogue", file)


def _lookup(what: str, name: str, entries: Mapping[str, Any]) -> Mapping[str, Any]:
    if name in entries:
        entry: Mapping[str, Any] = entries[name]
        return entry
    nearest = nearest_names(name, entries)
    hint = f"did you mean {' or '.join(nearest)}?" if nearest else f"known: {', '.join(sorted(entries))}"
    raise CatalogueError(
        f"there is no {what} {shown(name)} in the catalogue; {hint}", nearest or tuple(sorted(entries))
    )


def _get(entry: object, key: str, where: str) -> Any:
    if not isinstance(entry, Mapping):
        raise CatalogueError(f"{where} must be a mapping, got {shown(entry)}")
    if key not in entry:
        raise CatalogueError(f"{where} has no {key!r}; it has {listed(entry)}")
    return entry[key]


def _word(entry: object, key: str, where: str) -> str:
    value = _get(entry, key, where)
    if not isinstance(value, str):
        raise CatalogueError(f"{where} {key!r} must be text, got {shown(value)}")
    return value


def _sourced(entry: Mapping[str, Any], key: str, where: str) -> Mapping[str, Any]:
    item: Mapping[str, Any] = _get(entry, key, where)
    if not isinstance(item, Mapping) or "value" not in item or not str(item.get("source", "")).strip():
        raise CatalogueError(f"{where} {key!r} must be {{value: ..., source: ...}}, got {shown(item)}")
    return item


def _quantity(entry: Mapping[str, Any], key: str, dimension: Dimension, where: str) -> float:
    item = _sourced(entry, key, where)
    try:
        value = parse_quantity(item["value"], dimension)
        both = parse_quantity(item["bidirectional"], dimension) if "bidirectional" in item else 2 * value
    except UnitError as error:
        raise CatalogueError(f"{where} {key!r}: {error}") from None
    if not 0 < value <= _MOST:
        raise CatalogueError(f"{where} {key!r} must be more than 0 and at most {_MOST:g}, got {shown(item['value'])}")
    if both != 2 * value:
        raise CatalogueError(
            f"{where} {key!r} is per direction: {shown(item['value'])} must be half of "
            f"bidirectional {shown(item['bidirectional'])}"
        )
    return value


def _count(entry: Mapping[str, Any], key: str, where: str) -> int:
    value = _sourced(entry, key, where)["value"]
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= _MOST_PARTS:
        raise CatalogueError(f"{where} {key!r} must be a whole number from 1 to {_MOST_PARTS:,}, got {shown(value)}")
    return value


def _fraction(entry: Mapping[str, Any], key: str, where: str) -> float:
    value = _sourced(entry, key, where)["value"]
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= 1:
        raise CatalogueError(f"{where} {key!r} must be a fraction, more than 0 and up to 1, got {shown(value)}")
    return float(value)


def _link(entry: Mapping[str, Any], key: str, where: str) -> LinkSpec:
    link = _get(entry, key, where)
    return LinkSpec(
        kind=_word(link, "kind", f"{where} {key}"),
        bandwidth_bytes_per_s=_quantity(link, "bandwidth", Dimension.BANDWIDTH, f"{where} {key}"),
        latency_s=_quantity(link, "latency", Dimension.TIME, f"{where} {key}"),
    )
