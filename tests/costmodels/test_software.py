"""What a framework adds: late members of a collective, slow paths of libraries, launches."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from costmodels.kernels.moe import ROUTING_BACKWARD_KERNELS, ROUTING_KERNELS
from costmodels.kernels.tensor import GemmShape, Work
from costmodels.roofline import KernelTime
from costmodels.software import Software, is_unaligned


def product(m: int, n: int, k: int) -> Work:
    """Return the work of a product of matrices in half precision."""
    flop = 2.0 * m * n * k
    return Work(flop, flop, 2 * (m * k + k * n), 2 * m * n, GemmShape(m, n, k))


@pytest.mark.parametrize(("members", "expected"), [(2, 0.5642), (4, 1.0294), (8, 1.4236), (16, 1.7660)])
def test_the_last_of_a_group_comes_as_order_statistics_say(members: int, expected: float) -> None:
    """The expected largest of n normal deviates (Harter 1961), to Blom's 5 %."""
    assert Software(rank_skew_s=1.0).waiting_s(members) == pytest.approx(expected, rel=0.05)


@given(st.integers(1, 1000))
def test_more_members_wait_longer(members: int) -> None:
    """A larger group's last member comes later; one alone waits for nobody."""
    software = Software(rank_skew_s=1e-4)
    assert software.waiting_s(members) < software.waiting_s(members + 1)
    assert software.waiting_s(1) == 0.0 == Software().waiting_s(members)


@pytest.mark.parametrize(
    ("kernel", "shape", "dtype", "expected"),
    [
        ("matmul", (4096, 50304, 1024), "float16", False),
        ("matmul", (4096, 50257, 1024), "float16", True),
        ("matmul", (4096, 12564, 1024), "float16", False),
        ("matmul", (4096, 6282, 1024), "float16", False),
        ("matmul", (4096, 6281, 1024), "float16", True),
        ("matmul", (4096, 50257, 1024), "float32", False),
        ("matmul", (4095, 1024, 1024), "float16", False),
        ("matmul_input_gradient", (4096, 1024, 50257), "float16", True),
        ("matmul_weight_gradient", (50257, 1024, 4096), "float16", True),
        ("matmul_weight_gradient", (1024, 1024, 4095), "float16", False),
        ("attention_scores", (1023, 1023, 64), "float16", False),
    ],
)
def test_rows_that_cannot_be_copied_asynchronously(
    kernel: str, shape: tuple[int, int, int], dtype: str, expected: bool
) -> None:
    """A product is slow where a row of one of its matrices is no multiple of 4 bytes; how many rows is no matter."""
    assert is_unaligned(product(*shape), kernel, dtype) is expected


def test_factors_apply_to_their_families() -> None:
    """Products, unaligned products, memory-bound kernels and the optimizer take their factors; latencies none."""
    software = Software(product_slowdown=2.0, unaligned_slowdown=3.0, memory_bound_slowdown=5.0, optimizer_slowdown=7.0)
    time = KernelTime(1.0, 10.0, 4.0)
    assert software.slowed(time, product(8, 8, 8), "gemm", "matmul", "float16") == KernelTime(1.0, 20.0, 8.0)
    assert software.slowed(time, product(8, 7, 8), "gemm", "matmul", "float16") == KernelTime(1.0, 60.0, 24.0)
    elsewhere = Work(0.0, 0.0, 8, 8)
    assert software.slowed(time, elsewhere, "elementwise", "gelu", "float16") == KernelTime(1.0, 50.0, 20.0)
    assert software.slowed(time, elsewhere, "optimizer", "adam", "float32") == KernelTime(1.0, 70.0, 28.0)
    assert software.slowed(time, elsewhere, "attention", "flash_attention", "float16") is time
    assert Software().slowed(time, product(8, 7, 8), "gemm", "matmul", "float16") is time


def test_an_unfused_softmax_is_several_launches() -> None:
    """Seven from Python, five from autograd in the place of one; other kernels are one each."""
    fused = Software(launch_s=2.0, native_launch_s=1.0)
    unfused = Software(launch_s=2.0, native_launch_s=1.0, fused_softmax=False)
    assert fused.kernel_launch_s("causal_softmax", native=False) == 2.0
    assert unfused.kernel_launch_s("causal_softmax", native=False) == 14.0
    assert unfused.kernel_launch_s("causal_softmax_backward", native=True) == 5.0
    assert unfused.kernel_launch_s("gelu", native=True) == fused.kernel_launch_s("gelu", native=True) == 1.0
    assert not Software().launches
    assert unfused.launches


def test_an_unfused_choice_of_experts_is_many_launches() -> None:
    """As many as it has kernels, forward and backward; summing slot by slot is one."""
    unfused = Software(launch_s=2.0, native_launch_s=1.0, fused_routing=False, fused_permutation=False)
    assert unfused.kernel_launch_s("route", native=False) == 2.0 * ROUTING_KERNELS
    assert unfused.kernel_launch_s("route_backward", native=True) == ROUTING_BACKWARD_KERNELS
    assert unfused.kernel_launch_s("combine", native=False) == Software(launch_s=2.0).kernel_launch_s(
        "route", native=False
    )
    fused = {
        name for name in ("route", "route_backward", "combine", "dispatch_backward", "gelu") if unfused.fuses(name)
    }
    assert fused == {"gelu"}


def test_autograd_takes_half_a_launch_per_kernel_unless_said() -> None:
    """Backward's launches follow forward's, also where these are replaced; a stated time, even none, is kept."""
    assert Software(launch_s=2.0).kernel_launch_s("gelu_backward", native=True) == 1.0
    assert replace(Software(launch_s=2.0), launch_s=6.0).from_autograd_s == 3.0
    assert Software(launch_s=2.0, native_launch_s=0.0).from_autograd_s == 0.0
    assert Software(task_launch_s=1.0).launches
