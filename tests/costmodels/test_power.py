"""The power of devices: measured points, the limit, and limits in the catalogue."""

import pytest

from costmodels.errors import CatalogueError
from costmodels.hardware import list_devices, load_device, parse_device
from costmodels.packaged import packaged_yaml
from costmodels.power import mean_power_w

H200 = load_device("h200-sxm5-141gb")
MEASURED = {
    "products, 21 % of the time": (309.3, 0.2083 * 774e12, 0.0),
    "products, 8 % of the time": (192.6, 0.0785 * 774e12, 0.0),
    "small products": (384.7, 200 * 2 * 1024**3 / 2.2492e-3, 200 * 6 * 1024**2 / 2.2492e-3),
    "reads of three arrays, a write of one": (561.5, 0.0, 3 * 2**30 / 0.8706e-3),
    "training step of width 4096": (694.8, 587.1e12, 0.0),
}
"""On one H200: mean watts, and the FLOP and bytes per second that went with them."""


@pytest.mark.parametrize(("watts", "flop_per_s", "bytes_per_s"), MEASURED.values(), ids=MEASURED)
def test_the_model_is_near_what_was_measured(watts: float, flop_per_s: float, bytes_per_s: float) -> None:
    """Points that the three constants were not fitted to are within 5 %."""
    assert H200.power_limit_w == 700.0
    fractions = flop_per_s / H200.peak("bfloat16"), bytes_per_s / H200.memory_bandwidth_bytes_per_s
    assert mean_power_w(H200.power_limit_w, *fractions) == pytest.approx(watts, rel=0.05)


def test_power_lies_between_idle_and_the_limit() -> None:
    """Nothing to do leaves a sixth of the limit; both at their peaks would need more than there is."""
    assert mean_power_w(400.0, 0.0, 0.0) == pytest.approx(400.0 * 116 / 700)
    assert mean_power_w(400.0, 1.0, 1.0) == 400.0


def test_limits_are_powers() -> None:
    """A limit in another unit is refused with its key; devices without one have none."""
    entry = packaged_yaml("catalogue", "devices")["h200-sxm5-141gb"]
    with pytest.raises(CatalogueError, match="power_limit"):
        parse_device("mine", {**entry, "power_limit": {"value": "700 J", "source": "none"}})
    assert parse_device("mine", {key: entry[key] for key in entry if key != "power_limit"}).power_limit_w is None
    assert {load_device(name).power_limit_w for name in list_devices()} >= {None, 300.0, 400.0, 700.0}
