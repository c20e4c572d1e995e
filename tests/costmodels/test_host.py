"""What hosts take: copies over the link of a device, and kernels that host memory bounds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from costmodels.hardware import list_nodes, load_node
from costmodels.host import copy_s, memory_bytes_per_s

HOST = load_node("dgx-2").host


@given(st.integers(1, 10**12), st.floats(0.1, 1.0))
def test_a_copy_takes_its_bytes_over_what_the_link_attains(num_bytes: int, attained: float) -> None:
    """PCI Express 3.0 x16 carries 15.75 GB/s in each direction, of which a fraction is attained."""
    host = replace(HOST, device_attained=attained)
    assert copy_s(num_bytes, host) == pytest.approx(num_bytes / (15.75e9 * attained))


def test_host_memory_attains_a_part_of_its_bandwidth() -> None:
    """Two sockets have 256 GB/s together, of which streaming attains a part."""
    assert memory_bytes_per_s(HOST) == pytest.approx(256e9 * HOST.memory_attained)


@pytest.mark.parametrize("name", list_nodes())
def test_host_memory_is_faster_than_one_link_and_slower_than_devices(name: str) -> None:
    """So it is on every node of the catalogue but where the device is a core of the host."""
    node = load_node(name)
    assert node.host.memory_bandwidth_bytes_per_s > node.host.device_bandwidth_bytes_per_s
    if node.device.kind == "gpu":
        devices_bytes_per_s = node.devices_per_node * node.device.memory_bandwidth_bytes_per_s
        assert node.host.memory_bandwidth_bytes_per_s < devices_bytes_per_s / 4
    assert 0.5 < node.host.memory_attained < 1
    assert 0.5 < node.host.device_attained < 1
