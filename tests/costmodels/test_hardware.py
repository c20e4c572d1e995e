"""The catalogue: sourced, consistent hardware, and helpful refusals."""

import copy
import math
from collections.abc import Mapping
from importlib import resources
from typing import Any

import pytest
import yaml

from costmodels.errors import CatalogueError
from costmodels.hardware import list_devices, list_nodes, load_device, load_node, parse_device, parse_node

NODES = (
    "aws-g6e-48xlarge", "aws-p3-16xlarge", "azure-nd-mi300x-v5", "cloud-a100-100g", "dgx-1-v100-16g", "dgx-1-v100-32g",
    "dgx-2", "dgx-a100-40g", "dgx-a100-80g", "dgx-b200", "frontera-rtx", "gb200-nvl72", "hgx-h100", "hgx-h20",
    "hgx-h200", "local-cpu", "longhorn", "meluxina-gpu",
)  # fmt: skip

REPORTED_MIB = {
    "v100-sxm2-16gb": 16160, "v100-sxm2-32gb": 32510, "quadro-rtx-5000": 16125, "a100-sxm4-40gb": 40960,
    "a100-sxm4-80gb": 81920,
    "h100-sxm5-80gb": 81559, "h200-sxm5-141gb": 143771, "b200-sxm-180gb": 183359,
    "gb200-sxm-186gb": 189471, "h20-sxm5-96gb": 97871, "l40s-48gb": 46068, "mi300x-192gb": 196592,
}  # fmt: skip
"""What the driver reports as the memory of each GPU: torch's total capacity is the same or up to 2 % less."""


def catalogue(file: str) -> dict[str, Any]:
    """Return a fresh copy of a catalogue file."""
    text = resources.files("costmodels").joinpath("catalogue", f"{file}.yaml").read_text(encoding="utf-8")
    entries: dict[str, Any] = yaml.safe_load(text)
    return copy.deepcopy(entries)


def leaves(entry: object) -> list[Mapping[str, Any]]:
    """Return every value-with-source mapping inside an entry."""
    if not isinstance(entry, Mapping):
        return []
    if "value" in entry:
        return [entry]
    return [leaf for item in entry.values() for leaf in leaves(item)]


def bare_numbers(entry: object) -> list[float]:
    """Return the numbers inside an entry that stand outside a value-with-source mapping."""
    if isinstance(entry, Mapping):
        return [] if "value" in entry else [number for item in entry.values() for number in bare_numbers(item)]
    return [entry] if isinstance(entry, int | float) else []


def test_catalogue_has_the_promised_nodes() -> None:
    """Every node that the README promises is there, in sorted order."""
    assert list_nodes() == NODES


@pytest.mark.parametrize("file", ["devices", "nodes"])
def test_every_number_has_a_source(file: str) -> None:
    """No number of the catalogue stands alone, and each source says something."""
    for name, entry in catalogue(file).items():
        assert not bare_numbers(entry), name
        assert leaves(entry), name
        assert all(len(str(leaf["source"]).strip()) >= 10 for leaf in leaves(entry) if isinstance(leaf["value"], str))
        assert all(leaf["source"].strip() for leaf in leaves(entry))


@pytest.mark.parametrize("name", list_nodes())
def test_every_node_is_plausible(name: str) -> None:
    """Memory is faster than links, links inside are at least as fast as one adapter, and rates fit the units."""
    node = load_node(name)
    device = node.device
    assert device.memory_bandwidth_bytes_per_s >= node.intra.bandwidth_bytes_per_s >= node.nic.bandwidth_bytes_per_s
    assert node.intra.latency_s <= node.nic.latency_s <= 100e-6
    assert device.memory_bytes * node.devices_per_node <= 14 * 2**40
    assert 2**30 <= device.memory_bytes <= 300 * 2**30
    assert device.peak("float16") >= device.peak("float32") >= device.peak("float64") > 0
    assert 1e9 <= device.clock_hz <= 5e9


@pytest.mark.parametrize("name", list_devices())
def test_peak_rate_is_whole_operations_per_clock(name: str) -> None:
    """The half-precision peak is the clock times the multiprocessors times a power of two."""
    device = load_device(name)
    per_clock = device.peak("float16") / (device.clock_hz * device.num_multiprocessors)
    assert per_clock == pytest.approx(2 ** round(math.log2(per_clock)), rel=0.01)


def test_known_figures_are_right() -> None:
    """A few figures that everybody knows come out in SI units."""
    node = load_node("dgx-a100-80g")
    assert node.device.peak("bfloat16") == 312e12
    assert node.intra.bandwidth_bytes_per_s == 300e9
    assert node.nic.bandwidth_bytes_per_s * node.nics_per_node * 8 == 1600e9
    assert load_node("cloud-a100-100g").nics_per_node == 1


@pytest.mark.parametrize("name", list_devices())
def test_memory_is_what_the_driver_reports(name: str) -> None:
    """A GPU's memory is the driver's figure, less what the driver keeps: not the data sheet's decimal GB."""
    device = load_device(name)
    if device.kind == "gpu":
        assert 0.98 * REPORTED_MIB[name] <= device.memory_bytes / 2**20 <= 1.0001 * REPORTED_MIB[name]


def test_unknown_name_gets_the_nearest() -> None:
    """A mistyped node is refused with the names that look like it."""
    with pytest.raises(CatalogueError, match="did you mean dgx-a100-80g") as raised:
        load_node("dgx-a100-80gb")
    assert raised.value.nearest[0] == "dgx-a100-80g"
    with pytest.raises(CatalogueError, match="no device 'h100'") as raised:
        load_device("h100")
    assert "h100-sxm5-80gb" in raised.value.nearest
    with pytest.raises(CatalogueError, match="known: aws") as raised:
        load_node("???")
    assert raised.value.nearest == NODES


def test_unknown_dtype_is_refused() -> None:
    """A dtype without an arithmetic rate is named, with those that have one."""
    with pytest.raises(CatalogueError, match="no arithmetic rate for int8; it has float16"):
        load_device("a100-sxm4-80gb").peak("int8")


@pytest.mark.parametrize(
    ("path", "value", "problem"),
    [
        (("intra", "bandwidth", "value"), "600 GB/s", "must be half of bidirectional"),
        (("intra", "bandwidth", "value"), "300", "has no unit"),
        (("intra", "bandwidth", "value"), "0 GB/s", "more than 0"),
        (("nic", "bandwidth", "value"), "200 Gb/s", "bits or bytes"),
        (("nic", "latency", "source"), " ", "must be {value: ..., source: ...}"),
        (("nics_per_node", "value"), 2.5, "whole number"),
        (("nics_per_node",), 8, "must be {value: ..., source: ...}"),
        (("intra",), "nvlink", "node mine intra must be a mapping, got 'nvlink'"),
        (("host",), ["a"], "node mine host must be a mapping, got ['a']"),
        (("device",), {"name": 1}, "node mine 'device' must be text, got {'name': 1}"),
        (("nic", "kind"), 5, "node mine nic 'kind' must be text, got 5"),
        (("intra", "bandwidth", "value"), "1e290 GB/s", "more than 0 and at most 1e+21"),
        (("devices_per_node", "value"), 10**30, "must be a whole number from 1 to 1,000,000, got 1000"),
    ],
)
def test_bad_node_entry_is_refused(path: tuple[str, ...], value: object, problem: str) -> None:
    """An entry that mixes directions, drops a unit or hides a source does not load."""
    entry = copy.deepcopy(catalogue("nodes")["dgx-a100-80g"])
    item = entry
    for key in path[:-1]:
        item = item[key]
    item[path[-1]] = value
    with pytest.raises(CatalogueError) as raised:
        parse_node("mine", entry)
    assert problem in str(raised.value)
    assert "node mine" in str(raised.value)


def test_missing_key_is_named() -> None:
    """An entry without a required key says which one."""
    entry = copy.deepcopy(catalogue("devices")["a100-sxm4-80gb"])
    del entry["clock"]
    with pytest.raises(CatalogueError, match="device mine has no 'clock'"):
        parse_device("mine", entry)


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("kind", "tpu", "device mine 'kind' must be gpu or cpu, got 'tpu'"),
        ("generation", None, "device mine 'generation' must be text, got None"),
        ("peak", [1], "device mine 'peak' must be a mapping of dtypes, got [1]"),
        ("peak", {}, "device mine 'peak' must be a mapping of dtypes"),
        ("memory", {"value": ["x" * 5_000], "source": "a"}, "device mine 'memory'"),
    ],
)
def test_bad_device_entry_is_refused(key: str, value: object, problem: str) -> None:
    """A part of a device that is not of its form is named, and what stands there is cut where it is long."""
    with pytest.raises(CatalogueError) as raised:
        parse_device("mine", catalogue("devices")["a100-sxm4-80gb"] | {key: value})
    assert problem in str(raised.value)


def test_entry_that_is_no_mapping_is_refused() -> None:
    """Whatever stands in the place of a node or a device."""
    for entry in (None, 5, "a", ["a"]):
        for parse in (parse_device, parse_node):
            with pytest.raises(CatalogueError, match="mine must be a mapping"):
                parse("mine", entry)
