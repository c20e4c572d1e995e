"""Kernel times: limits, monotonicity, and measured kernels."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from costmodels.errors import CatalogueError, KernelError
from costmodels.hardware import DeviceSpec, list_devices, list_nodes, load_device, load_node
from costmodels.kernels import KERNELS, TensorSpec, Work
from costmodels.kernels.moe import ROUTING_BACKWARD_KERNELS, ROUTING_KERNELS
from costmodels.kernels.tensor import GemmShape
from costmodels.profile import load_profile, network_parameters
from costmodels.roofline import KernelTime, kernel_time
from costmodels.timing.attention import attention_times
from costmodels.timing.gemm import GemmProfile, Tiling, chosen_kernels, kernel_times, library_kernels, ranked_times
from costmodels.timing.times import Calls

A100 = load_device("a100-sxm4-80gb")
HOPPER = load_node("hgx-h100").device


def timed(name: str, inputs: Sequence[TensorSpec], device: DeviceSpec = A100, **attributes: object) -> KernelTime:
    """Return the time of a kernel on a device with its own generation's profile."""
    kernel = KERNELS[name]
    work = kernel.work(inputs, kernel.outputs(inputs, attributes), attributes)
    return kernel_time(work, kernel.family, inputs[0].dtype, device, load_profile(device.profile))


def half(*shape: int) -> TensorSpec:
    """Return a bfloat16 tensor."""
    return TensorSpec(shape, "bfloat16")


dims = st.integers(1, 8192)


@pytest.mark.parametrize("name", list_devices())
@given(m=dims, n=dims, k=dims)
def test_product_is_never_faster_than_the_data_sheet(name: str, m: int, n: int, k: int) -> None:
    """No product beats the device's peak rate, or its memory bandwidth with operands that its cache cannot hold."""
    device = load_device(name)
    time = timed("matmul", [half(m, k), half(k, n)], device)
    assert time.compute_s >= 2 * m * n * k / device.peak("bfloat16")
    operands, result = 2 * (m * k + k * n), 2 * m * n
    moved = result + (operands if operands > device.l2_cache_bytes else 0)
    assert time.memory_s >= moved / device.memory_bandwidth_bytes_per_s
    assert time.latency_s > 0


def fastest_s(m: int, n: int, k: int, device: DeviceSpec, gemm: GemmProfile, *, refused: bool = True) -> float:
    """Return what a product takes with the fastest of the library's kernels, with those that it refuses."""
    kernel, inputs = KERNELS["matmul"], [half(m, k), half(k, n)]
    calls = Calls.of([kernel.work(inputs, kernel.outputs(inputs, {}), {})], "bfloat16")
    peak, tiling = device.peak("bfloat16"), Tiling(calls, library_kernels(gemm), device)
    _, whole_s = kernel_times(tiling, peak, gemm)
    allowed = np.isfinite(ranked_times(tiling, peak, gemm))
    return float(gemm.latency_s + whole_s[allowed | refused].min())


@pytest.mark.parametrize("generation", ["a100", "h100", "h200", "b200"])
@given(m=dims, n=dims, k=dims, more=st.integers(1, 8192))
def test_larger_product_is_never_faster_than_a_smaller_can_be(
    generation: str, m: int, n: int, k: int, more: int
) -> None:
    """With more rows, more columns or a longer sum no product beats the fastest kernel of the smaller one.

    What a library chooses may be slower: its ranking is its own, and real libraries' products do get faster with size.
    """
    device = next(load_device(name) for name in list_devices() if load_device(name).generation == generation)
    base = fastest_s(m, n, k, device, load_profile(generation).gemm)
    for rows, columns, depth in ((m, n, k), (m + more, n, k), (m, n + more, k), (m, n, k + more)):
        assert timed("matmul", [half(rows, depth), half(depth, columns)], device).alone_s >= base * (1 - 1e-12)


@given(m=dims, n=dims, k=dims)
def test_a_library_that_ranks_by_the_times_takes_the_fastest(m: int, n: int, k: int) -> None:
    """With the ranking's numbers those of the kernels, and nothing that no library knows, the fastest kernel runs."""
    profile = load_profile("a100")
    honest = replace(
        profile.gemm, ranked_quantisation=profile.gemm.wave_quantisation, ranked_cache=1.0, ranked_split=1.0,
        power_fraction=np.inf, k_overhead=0.0,
    )  # fmt: skip
    kernel, inputs = KERNELS["matmul"], [half(m, k), half(k, n)]
    work = kernel.work(inputs, kernel.outputs(inputs, {}), {})
    time = kernel_time(work, kernel.family, "bfloat16", A100, replace(profile, gemm=honest))
    assert time.alone_s == pytest.approx(fastest_s(m, n, k, A100, honest, refused=False), rel=1e-9)


@given(m=dims, n=dims, k=dims)
def test_the_power_limit_bounds_the_rate_of_every_kernel(m: int, n: int, k: int) -> None:
    """No kernel beats the FLOP per second that the limit allows, the less the longer the call; without it all gain."""
    gemm = replace(load_profile("b200").gemm, power_fraction=0.5)
    device = next(load_device(name) for name in list_devices() if load_device(name).generation == "b200")
    flop, peak = 2.0 * m * n * k, device.peak("bfloat16")
    least_s = flop / (0.5 * peak)
    assert fastest_s(m, n, k, device, gemm) >= least_s
    assert fastest_s(m, n, k, device, replace(gemm, power_fraction=np.inf)) <= fastest_s(m, n, k, device, gemm)
    long = replace(gemm, throttle_after_s=1e-9 * least_s)
    assert fastest_s(m, n, k, device, long) >= least_s * (1.0 + gemm.throttle) * (1 - 1e-6)


def test_a_wave_that_is_nearly_empty_leaves_the_memory_to_few_multiprocessors() -> None:
    """Bytes that whole waves would ask for count in part: all of them at 1, none at 0, none in a first wave."""
    b200 = load_device(next(name for name in list_devices() if load_device(name).generation == "b200"))
    gemm = replace(load_profile("b200").gemm, tiles=((16, 64),), paired_tiles=(), splits=(1,))
    gemm = replace(gemm, latency_s=0.0, memory_ramp_bytes=0.0, cache_speedup=1.0)
    units = b200.num_multiprocessors

    def seconds(n: int, quantisation: float) -> float:
        return fastest_s(16, n, 4096, b200, replace(gemm, memory_quantisation=quantisation, memory_overlap=1e3))

    assert seconds(64 * units, 1.0) == pytest.approx(seconds(64 * units, 0.0), rel=1e-12)
    assert seconds(64 * units + 1, 1.0) > 1.5 * seconds(64 * units + 1, 0.0)
    assert seconds(64 * units + 1, 1.0) == pytest.approx(seconds(128 * units, 1.0), rel=0.02)


@given(m=st.integers(1, 64).map(lambda tiles: 256 * tiles), n=dims, k=dims)
def test_blocks_in_pairs_load_less_and_lose_nothing_on_whole_pairs(m: int, n: int, k: int) -> None:
    """Where rows fill whole pairs of tiles, pairs take no longer than blocks alone, and at least 2/3 as long."""
    gemm = replace(load_profile("a100").gemm, tiles=((128, 128),), paired_tiles=(), splits=(1,), shallow_area=32768.0)
    alone, paired = (fastest_s(m, n, k, A100, g) for g in (gemm, replace(gemm, tiles=(), paired_tiles=gemm.tiles)))
    assert 2 / 3 * alone <= paired <= alone


def test_a_pair_of_which_one_block_is_empty_takes_two_multiprocessors() -> None:
    """One tile of rows more than whole pairs counts as a pair: a wave of single tiles becomes two of pairs."""
    units = A100.num_multiprocessors
    gemm = replace(load_profile("a100").gemm, tiles=(), paired_tiles=((128, 128),), splits=(1,), wave_quantisation=1.0)
    gemm = replace(gemm, latency_s=0.0, block_s=0.0, memory_overlap=20.0, power_fraction=np.inf)
    one, more = (fastest_s(rows, 128 * (units // 2), 65536, A100, gemm) for rows in (256, 257))
    assert fastest_s(129, 128 * (units // 2), 65536, A100, gemm) == pytest.approx(one, rel=0.01)
    assert more == pytest.approx(2 * one, rel=0.05)


@pytest.mark.parametrize("k", [64, 65, 128, 129])
def test_large_tiles_are_refused_where_k_is_shallow(k: int) -> None:
    """From 65 to 128 of k a library takes no tile beyond its limit, elsewhere it takes the one that it ranks first."""
    gemm = replace(load_profile("a100").gemm, tiles=((64, 64), (128, 256)), paired_tiles=(), splits=(1,))
    work = Work(0.0, 2.0 * 8192 * 8192 * k, 2 * 8192 * 2 * k, 2 * 8192 * 8192, GemmShape(8192, 8192, k))
    calls = Calls.of([work], "bfloat16")
    rows = [
        chosen_kernels(calls, A100.peak("bfloat16"), A100, replace(gemm, shallow_area=area)).kernels.rows[0, 0]
        for area in (8192.0, 32768.0)
    ]
    assert rows == ([64, 128] if 64 < k <= 128 else [128, 128])


@given(m=st.integers(1, 256), n=dims, k=dims, speedup=st.floats(1.0, 4.0))
def test_operands_that_the_cache_holds_come_faster(m: int, n: int, k: int, speedup: float) -> None:
    """No product takes longer for a cache that holds its operands; one of operands far larger takes as long."""
    gemm = replace(load_profile("a100").gemm, cache_fraction=0.1, cache_speedup=1.0)
    cold, warm = (fastest_s(m, n, k, A100, replace(gemm, cache_speedup=factor)) for factor in (1.0, speedup))
    assert cold / speedup <= warm <= cold
    if 2 * k * (m + n) > 10 * 0.1 * A100.l2_cache_bytes:
        assert warm == pytest.approx(cold, rel=1e-4)


@given(s=st.integers(1, 64).map(lambda blocks: 128 * blocks), b=st.integers(1, 8), n=st.integers(1, 64))
def test_fused_backward_is_slower_than_forward(s: int, b: int, n: int) -> None:
    """Fused attention's backward executes 2.5 times the FLOP at a lower rate; neither beats the peak."""
    q, lse = half(s, b, n, 128), TensorSpec((b, n, s), "float32")
    forward = timed("flash_attention", [q, q, q])
    backward = timed("flash_attention_backward", [q, q, q, q, q, lse])
    assert backward.compute_s >= 2.5 / 0.86 * forward.compute_s * (1 - 1e-9)
    assert forward.compute_s >= 2 * b * n * s * s * 128 / A100.peak("bfloat16")


@given(blocks=st.integers(16, 64), heads=st.integers(1, 8), score_s=st.floats(1e-10, 1e-8))
def test_softmax_adds_its_time_per_score_of_the_triangle(blocks: int, heads: int, score_s: float) -> None:
    """On a CPU core attention takes longer by the time per score, half of the square and the diagonal's tiles."""
    device, tokens = load_device("cpu-core"), 128 * blocks
    times = []
    for profile in (0.0, score_s):
        attention = replace(load_profile("cpu").attention, score_s=profile)
        calls = Calls.of([Work(0.0, 0.0, 0, 0, GemmShape(tokens, tokens, 64, heads))], "float32")
        times.append(attention_times(calls, device.peak("float32"), device, attention, backward=False).compute_s[0])
    scores = heads * tokens**2 / 2
    assert scores * score_s * (1 - 1e-9) <= times[1] - times[0] <= scores * score_s * (1 + 2 * 16 / tokens)


@given(queries=st.integers(1, 64), keys=st.integers(1, 64), heads=st.integers(1, 64), backward=st.booleans())
def test_a_block_below_the_diagonal_takes_longer_than_one_on_it(
    queries: int, keys: int, heads: int, backward: bool
) -> None:
    """Keys that all queries see take longer than under the mask, at most as much as both halves of the square do."""
    m, n = 128 * queries, 128 * (queries + keys)
    attention = load_profile("a100").attention
    peak = A100.peak("bfloat16")
    shapes = [GemmShape(m, n, 128, heads), GemmShape(m, n, 128, heads, causal=False)]
    calls = Calls.of([Work(0.0, 0.0, 0, 0, shape) for shape in shapes], "bfloat16")
    causal, whole = attention_times(calls, peak, A100, attention, backward=backward).compute_s
    assert causal <= whole <= 2.0 * causal
    assert whole >= 4.0 * heads * m * n * 128 / peak


@given(
    sequence=st.integers(1, 9_000), window=st.integers(1, 9_000), size=st.sampled_from((64, 128)),
    batch=st.integers(1, 64), backward=st.booleans(),
)  # fmt: skip
def test_a_window_never_costs_more_than_all_keys(
    *, sequence: int, window: int, size: int, batch: int, backward: bool
) -> None:
    """A longer window takes no less time; one as long as the sequence takes what attention without one takes."""
    q = TensorSpec((sequence, 1, batch, size), "bfloat16")
    kernel = KERNELS["flash_attention"]
    windows = (window, 2 * window, sequence, 0)
    works = [kernel.work([q] * 3, kernel.outputs([q] * 3, {}), {"window": w} if w else {}) for w in windows]
    calls = Calls.of(works, "bfloat16")
    attention = load_profile("a100").attention
    one, two, all_, none = attention_times(calls, A100.peak("bfloat16"), A100, attention, backward=backward).compute_s
    assert one <= two * (1 + 1e-12)
    assert min(one, two) <= all_ * (1 + 1e-12)
    assert all_ == none


def test_elementwise_kernel_is_bound_by_memory() -> None:
    """GELU of 100 MB reads and writes them at the profile's fraction of the memory bandwidth."""
    time = timed("gelu", [half(8192, 6144)])
    assert time.memory_s == pytest.approx(
        2 * 2 * 8192 * 6144 / (load_profile("a100").elementwise.memory_fraction * 2039e9)
    )
    assert time.memory_s > time.compute_s > 0


def test_rows_added_element_by_element_take_what_was_measured_on_hopper() -> None:
    """65,536 rows of 4,096 numbers added to 8,192: 2.30 ms in 16 bits, 1.97 ms in 32 (DeepLink-org/DLBlas, pull 66)."""
    for dtype, measured_s in (("bfloat16", 2.30e-3), ("float32", 1.97e-3)):
        rows, slots = TensorSpec((8, 8192, 4096), dtype), TensorSpec((8192, 1, 8), "int32")
        fused, unfused = (timed("dispatch_backward", [rows, slots], HOPPER, fused=fused) for fused in (True, False))
        assert unfused.memory_s == pytest.approx(measured_s, rel=0.2)
        assert unfused.memory_s > 5 * fused.memory_s


@given(st.integers(1, 64), st.integers(1, 64), st.integers(1, 512), st.integers(1, 512))
def test_experts_are_never_faster_unfused(experts: int, slots: int, width: int, tokens: int) -> None:
    """Neither choosing them nor summing what they make; the kernels of a choice each have their fixed time."""
    rows, chosen = half(experts, slots, width), TensorSpec((tokens, 1, 1), "int32")
    weights, scores = TensorSpec((tokens, 1, 1), "float32"), TensorSpec((tokens, 1, experts), "float32")
    calls: dict[str, tuple[list[TensorSpec], dict[str, object]]] = {
        "dispatch_backward": ([rows, chosen], {}),
        "combine": ([rows, weights, chosen], {}),
        "route": ([scores], {"top_k": 1}),
        "route_backward": ([weights, scores, chosen], {}),
    }
    for name, (inputs, attributes) in calls.items():
        fused, unfused = (timed(name, inputs, HOPPER, **attributes, fused=fused) for fused in (True, False))
        assert unfused.alone_s >= fused.alone_s
        count = {"route": ROUTING_KERNELS, "route_backward": ROUTING_BACKWARD_KERNELS}.get(name, 1)
        assert unfused.latency_s == pytest.approx(count * fused.latency_s)


@pytest.mark.parametrize("experts", [(32, 1024, 7168, 4096), (32, 1024, 2048, 7168), (20, 1229, 5120, 3072)])
def test_a_product_per_expert_takes_longer_than_one_of_all(experts: tuple[int, int, int, int]) -> None:
    """Experts of DeepSeek on a B200, one after the other: up to a fourth longer, for their waves and fixed times."""
    groups, rows, contracted, columns = experts
    b200 = load_node("dgx-b200").device
    together, alone = (
        timed("grouped_matmul", [half(n, rows, contracted), half(n, contracted, columns)], b200) for n in (groups, 1)
    )
    assert together.alone_s < groups * alone.alone_s < 1.25 * together.alone_s


def test_delay_lasts_its_duration_on_any_device() -> None:
    """A delay has no demand, only its duration; tokens take no time."""
    assert timed_delay(2.5) == KernelTime(2.5, 0.0, 0.0)
    assert kernel_time(Work(0, 0, 0, 64), "none", "int64", A100, load_profile("a100")).alone_s == 0


def timed_delay(duration_s: float) -> KernelTime:
    """Return the time of a delay on an A100."""
    work = KERNELS["delay"].work([], [], {"duration_s": duration_s})
    return kernel_time(work, "delay", "float32", A100, load_profile("a100"))


def test_unknown_family_and_dtype_are_refused() -> None:
    """A family or a dtype without a model is an error, not a guess."""
    with pytest.raises(KernelError, match="no kernel family 'magic'"):
        kernel_time(Work(0, 0, 0, 0), "magic", "float32", A100, load_profile("a100"))
    with pytest.raises(CatalogueError, match="no arithmetic rate for int64"):
        timed("matmul", [TensorSpec((8, 8), "int64")] * 2)


@pytest.mark.parametrize("name", list_nodes())
def test_every_node_has_a_profile_below_its_data_sheet(name: str) -> None:
    """Each node of the catalogue has a profile, and attains no more than its links carry."""
    node = load_node(name)
    network = network_parameters(node, load_profile(node.device.profile))
    assert 0 < network.intra_bandwidth_bytes_per_s <= node.intra.bandwidth_bytes_per_s
    assert 0 < network.inter_bandwidth_bytes_per_s <= node.nic.bandwidth_bytes_per_s
    assert network.nics_per_node == node.nics_per_node
    assert network.protocols[-1].limit_bytes == float("inf")
