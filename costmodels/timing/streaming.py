"""Kernels that memory bandwidth bounds: bytes over bandwidth, faster while they find room in a cache."""

from dataclasses import dataclass

import numpy as np

from costmodels.hardware import DeviceSpec
from costmodels.timing.times import Calls, Times, cache_speedup


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamProfile:
    """Memory-bound kernels: the fraction of memory bandwidth that they reach, and their fixed time.

    ``cache_bytes``, ``cache_speedup``: calls that touch fewer bytes than this move them this many times as fast.
    """

    memory_fraction: float
    latency_s: float
    cache_bytes: float = 0.0
    cache_speedup: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelProfile:
    """What sets one kernel apart from its family: how many times as long its demands last, and its own fixed time."""

    slowdown: float
    latency_s: float


def stream_times(calls: Calls, flop_per_s: float, device: DeviceSpec, stream: StreamProfile) -> Times:
    """Return the times of memory-bound kernels whose arithmetic runs at a rate."""
    speedup = cache_speedup(calls.num_bytes, stream.cache_bytes, stream.cache_speedup)
    rate = device.memory_bandwidth_bytes_per_s * stream.memory_fraction * speedup
    latency_s = np.full_like(calls.num_bytes, stream.latency_s)
    return Times(latency_s, calls.executed_flop / flop_per_s, calls.num_bytes / rate)
