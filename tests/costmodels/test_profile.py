"""Profiles: known names, sources, and refusals that say where."""

import copy
from importlib import resources
from typing import Any

import pytest
import yaml

from costmodels.errors import CatalogueError
from costmodels.hardware import list_devices, load_device
from costmodels.profile import SECTIONS, list_profiles, load_profile, parse_profile


def entry(name: str) -> dict[str, Any]:
    """Return a fresh copy of a packaged profile's YAML."""
    text = resources.files("costmodels").joinpath("profiles", f"{name}.yaml").read_text(encoding="utf-8")
    loaded: dict[str, Any] = yaml.safe_load(text)
    return copy.deepcopy(loaded)


def test_every_device_has_a_profile() -> None:
    """Each device of the catalogue names a packaged profile, and no profile is left over."""
    assert {load_device(name).profile for name in list_devices()} == set(list_profiles())


@pytest.mark.parametrize("name", list_profiles())
def test_every_section_says_where_its_numbers_come_from(name: str) -> None:
    """Each section of a profile has a source; a measured one cites data and error, any other says assumption."""
    for section in SECTIONS:
        source = entry(name)[section]["source"]
        assert "error" in source or "ssumption" in source or "arXiv" in source


def test_profile_is_loaded_once() -> None:
    """Loading a profile twice gives the same object, so that kernel times are remembered across loads."""
    assert load_profile("a100") is load_profile("a100")


def test_unknown_profile_gets_the_nearest() -> None:
    """A mistyped profile is refused with the names that look like it."""
    with pytest.raises(CatalogueError, match="did you mean") as raised:
        load_profile("a10")
    assert "a100" in raised.value.nearest


@pytest.mark.parametrize(
    ("section", "key", "value", "problem"),
    [
        ("gemm", "peak_fraction", 1.2, "gemm 'peak_fraction' must be a number from 0.01 to 1.0, got 1.2"),
        ("gemm", "peak_fraction", "high", "must be a number"),
        ("gemm", "cache_bandwidth", "0 GB/s", "gemm 'cache_bandwidth' must not be less than 1, got '0 GB/s'"),
        ("gemm", "k_overhead", -1, "must be a number from 0.0"),
        ("gemm", "latency", 4, "has no unit"),
        ("elementwise", "memory_fraction", 0, "must be a number from 0.01"),
        ("network", "intra_fraction", True, "must be a number"),
        ("sustained", "clock_fraction", 1.1, "must be a number from 0.01 to 1.0"),
        ("attention", "source", " ", "needs a section 'attention' with a source"),
        ("gemm", "tiles", [[float("inf"), 64]], "gemm 'tiles' must be whole numbers from 1 to 65,536, got inf"),
        ("gemm", "tiles", [[float("nan"), 64]], "gemm 'tiles' must be whole numbers from 1 to 65,536, got nan"),
        ("gemm", "tiles", [[0, 64]], "gemm 'tiles' must be whole numbers from 1"),
        ("gemm", "tiles", [[64, 64, 64]], "gemm 'tiles' must be a list of pairs, as in [[128, 256]], got [64, 64, 64]"),
        ("gemm", "tiles", [], "gemm 'tiles' must be a list of 1 to 1,000 items, got []"),
        ("gemm", "paired_tiles", {"64": 64}, "gemm 'paired_tiles' must be a list of 0 to 1,000 items, got {'64': 64}"),
        ("gemm", "splits", [1, float("inf")], "gemm 'splits' must be whole numbers from 1 to 65,536, got inf"),
        ("gemm", "splits", [1, 10**30], "gemm 'splits' must be whole numbers"),
        ("gemm", "splits", 4, "gemm 'splits' must be a list"),
        ("gemm", "k_overhead", float("inf"), "must be a number from 0.0 to 1000000000.0, got inf"),
        ("gemm", "overlap", 1e6, "gemm 'overlap' must be a number from 1.0 to 40.0"),
        ("gemm", "throttle_sharpness", 11, "must be a number from 0.0 to 10.0"),
        ("gemm", "step", "1e300 s", "gemm 'step' must not be more than 1e+06, got '1e300 s'"),
        ("gemm", "cache_bandwidth", "1e290 GB/s", "gemm 'cache_bandwidth' must not be more than 1e+18"),
        ("attention", "key_tile", float("inf"), "attention 'key_tile' must be whole numbers from 1 to 65,536, got inf"),
        ("attention", "key_tile", 0.5, "attention 'key_tile' must be whole numbers"),
        ("network", "protocols", [], "network 'protocols' must be a list of 1 to 1,000 items, got []"),
        ("network", "protocols", ["ll"], "network 'protocols' must be mappings, got 'll'"),
        ("network", "protocols", {"name": "ll"}, "network 'protocols' must be a list"),
    ],
)
def test_bad_profile_is_refused(section: str, key: str, value: object, problem: str) -> None:
    """A value out of its range, without its unit or without a source does not load, and the error says where."""
    profile = entry("a100")
    profile[section][key] = value
    with pytest.raises(CatalogueError) as raised:
        parse_profile("mine", profile)
    assert problem in str(raised.value)
    assert "profile mine" in str(raised.value)


def test_missing_key_is_named() -> None:
    """A profile without a required number says which one."""
    profile = entry("a100")
    del profile["network"]["inter_fraction"]
    with pytest.raises(CatalogueError, match="profile mine network has no 'inter_fraction'"):
        parse_profile("mine", profile)


def test_protocol_without_wire_bytes_is_refused() -> None:
    """A protocol that would put fewer bytes on the wire than its payload breaks the physical bound, and is refused."""
    profile = entry("a100")
    profile["network"]["protocols"][0]["wire_overhead"] = 0.5
    with pytest.raises(CatalogueError, match="protocol 'll' 'wire_overhead' must be a number from 1"):
        parse_profile("mine", profile)


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("algorithms", [["ring"]], "'algorithms' must be a list of collnet_chain, collnet_direct, exchange, in_switch"),
        ("algorithms", [{"ring": 1}], "'algorithms' must be a list of"),
        ("algorithms", ["rnig"], "ring, tree, got 'rnig'"),
        ("algorithms", "ring", "'algorithms' must be a list of 1 to 1,000 items, got 'ring'"),
        ("algorithms", {"ring": 1}, "'algorithms' must be a list of 1 to 1,000 items"),
        ("kinds", [["all_reduce"]], "'kinds' must be a list of all_gather, all_reduce"),
        ("name", {"a": 1}, "'name' must be text, got {'a': 1}"),
        ("limit", 5, "'limit': 5 has no unit"),
    ],
)
def test_bad_protocol_is_refused_at_its_place(key: str, value: object, problem: str) -> None:
    """Lists and mappings where words belong are refused, and the error leads to the protocol that has them."""
    profile = entry("a100")
    profile["network"]["protocols"][1][key] = value
    with pytest.raises(CatalogueError) as raised:
        parse_profile("mine", profile)
    assert problem in str(raised.value)
    assert raised.value.path == ("network", "protocols", 1, key)


def test_power_limit_that_never_binds_is_infinite() -> None:
    """One number of a profile may be infinite."""
    profile = entry("a100")
    profile["gemm"]["power_fraction"] = float("inf")
    assert parse_profile("mine", profile).gemm.power_fraction == float("inf")
