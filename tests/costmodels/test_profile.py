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
    assert {load_device(name).generation for name in list_devices()} == set(list_profiles())


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
