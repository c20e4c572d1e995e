"""How long a kernel takes: fixed time, seconds of the arithmetic units, seconds of the memory.

Alone, a kernel lasts ``latency + max(compute, memory)`` (Williams et al. 2009, roofline). What the device attains
of its data sheet comes from a profile (``profile.py``).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from costmodels.errors import KernelError
from costmodels.hardware import DeviceSpec
from costmodels.kernels.tensor import Family, GemmShape, Work
from costmodels.profile import AttentionProfile, GemmProfile, Profile, StreamProfile

_QUERY_TILE: Final = 128
"""Queries that one thread block of fused attention handles (FlashAttention-2, section 3.3)."""

_SPLITS: Final = (1, 2, 4, 8, 16)
_LEAST_SPLIT_K: Final = 64
_K_STEP: Final = 32


@dataclass(frozen=True, slots=True)
class KernelTime:
    """Seconds of fixed time, of exclusive use of the arithmetic units, and of exclusive use of the memory."""

    latency_s: float
    compute_s: float
    memory_s: float

    @property
    def alone_s(self) -> float:
        """Return how long the kernel lasts with the device to itself."""
        return self.latency_s + max(self.compute_s, self.memory_s)


@lru_cache(maxsize=65536)
def kernel_time(work: Work, family: Family, dtype: str, device: DeviceSpec, profile: Profile) -> KernelTime:
    """Return the time of one kernel call whose operands have ``dtype``.

    Raises KernelError for an unknown family, CatalogueError for a dtype that the device has no rate for.
    """
    if family not in _TIMES:
        raise KernelError(f"there is no kernel family {family!r}; known: {', '.join(_TIMES)}")
    return _TIMES[family](work, dtype, device, profile)


def gemm_seconds(shape: GemmShape, peak_flop_per_s: float, num_multiprocessors: int, gemm: GemmProfile) -> float:
    """Return the seconds of the arithmetic units that a (batched) matrix product takes.

    The output is cut into tiles of tm x tn, each computed by one multiprocessor in k + k_overhead steps at
    hm/(hm + tile_overhead) of the attainable rate, hm = tm·tn/(tm + tn); tiles run in waves over the
    multiprocessors; k may be split to fill them. The library picks the best tile and split, so the minimum counts.
    """
    rate = peak_flop_per_s * gemm.peak_fraction / num_multiprocessors
    best = float("inf")
    for rows, columns in gemm.tiles:
        tiles = -(-shape.m // rows) * -(-shape.n // columns) * shape.batch
        area = rows * columns
        overhead = 1.0 + gemm.tile_overhead * (rows + columns) / area
        step_s = 2.0 * area * overhead / rate
        for split in _SPLITS:
            if split > 1 and (shape.k < split * _LEAST_SPLIT_K or tiles * split > 2 * num_multiprocessors):
                break
            steps = -(-shape.k // (split * _K_STEP)) * _K_STEP + gemm.k_overhead
            if split > 1:
                steps += gemm.split_overhead
            best = min(best, step_s * steps * _waves(tiles * split / num_multiprocessors, gemm.wave_quantisation))
    return best


def attention_seconds(
    work: Work, peak_flop_per_s: float, num_multiprocessors: int, attention: AttentionProfile, backward: bool
) -> float:
    """Return the seconds of the arithmetic units that fused attention takes for its executed FLOP.

    The attained fraction of the peak grows with the sequence as s/(s + half_sequence); blocks of 128 queries
    run in waves over the multiprocessors. Queries after a context see more keys each, as the last ones of a longer
    sequence do: s is then that whose mean query sees as many, queries + 2 context.
    """
    if work.gemm is None:
        raise KernelError("fused attention needs its shape to be timed")
    blocks = work.gemm.batch * -(-work.gemm.m // _QUERY_TILE) / num_multiprocessors
    occupancy = blocks / _waves(blocks, attention.wave_quantisation)
    sequence = 2 * work.gemm.n - work.gemm.m
    fraction = attention.peak_fraction * sequence / (sequence + attention.half_sequence) * occupancy
    return work.executed_flop / (peak_flop_per_s * fraction * (attention.backward_ratio if backward else 1.0))


def _waves(fill: float, quantisation: float) -> float:
    """Return the waves that ``fill`` multiprocessor-loads of tiles take: at least one, whole ones in part."""
    if fill <= 1.0:
        return 1.0
    return quantisation * -(-fill // 1) + (1.0 - quantisation) * fill


def _gemm_time(work: Work, dtype: str, device: DeviceSpec, profile: Profile) -> KernelTime:
    if work.gemm is None:
        raise KernelError("a matrix product needs its shape to be timed")
    gemm = profile.gemm
    compute_s = gemm_seconds(work.gemm, device.peak(dtype), device.num_multiprocessors, gemm)
    memory_s = work.num_bytes / (device.memory_bandwidth_bytes_per_s * gemm.memory_fraction)
    return KernelTime(gemm.latency_s, compute_s, memory_s)


def _attention_time(backward: bool) -> Callable[[Work, str, DeviceSpec, Profile], KernelTime]:
    def time(work: Work, dtype: str, device: DeviceSpec, profile: Profile) -> KernelTime:
        attention = profile.attention
        compute_s = attention_seconds(work, device.peak(dtype), device.num_multiprocessors, attention, backward)
        return KernelTime(attention.latency_s, compute_s, _streaming_s(work, device, profile.elementwise))

    return time


def _elementwise_time(work: Work, dtype: str, device: DeviceSpec, profile: Profile) -> KernelTime:
    return _stream_time(work, dtype, device, profile.elementwise)


def _optimizer_time(work: Work, dtype: str, device: DeviceSpec, profile: Profile) -> KernelTime:
    return _stream_time(work, dtype, device, profile.optimizer)


def _stream_time(work: Work, dtype: str, device: DeviceSpec, stream: StreamProfile) -> KernelTime:
    """Return the time of a memory-bound kernel; it computes in float32, or in float64 on float64 operands."""
    rate = device.peak("float64" if dtype == "float64" else "float32")
    return KernelTime(stream.latency_s, work.executed_flop / rate, _streaming_s(work, device, stream))


def _streaming_s(work: Work, device: DeviceSpec, stream: StreamProfile) -> float:
    return work.num_bytes / (device.memory_bandwidth_bytes_per_s * stream.memory_fraction)


def _delay_time(work: Work, _dtype: str, _device: DeviceSpec, _profile: Profile) -> KernelTime:
    return KernelTime(work.duration_s, 0.0, 0.0)


_TIMES: Final[Mapping[str, Callable[[Work, str, DeviceSpec, Profile], KernelTime]]] = {
    "gemm": _gemm_time,
    "attention": _attention_time(backward=False),
    "attention_backward": _attention_time(backward=True),
    "elementwise": _elementwise_time,
    "optimizer": _optimizer_time,
    "delay": _delay_time,
    "none": _delay_time,
}
