"""Memory-bound kernels: bytes over bandwidth, faster if they fit into a cache."""

import numpy as np
from msgspec import Struct

from costmodels.hardware import DeviceSpec
from costmodels.timing.times import Calls, Times, cache_speedup


class StreamProfile(Struct, frozen=True, kw_only=True):
    """Memory-bound kernels: the attained fraction of memory bandwidth, and the fixed time.

    ``cache_bytes``, ``cache_speedup``: calls with fewer bytes than this move them this many times as fast.
    """

    memory_fraction: float
    latency_s: float
    cache_bytes: float = 0.0
    cache_speedup: float = 1.0


class KernelProfile(Struct, frozen=True, kw_only=True):
    """The difference of one kernel from its family: a factor on its times, and its own fixed time."""

    slowdown: float
    latency_s: float


def stream_times(calls: Calls, flop_per_s: float, device: DeviceSpec, stream: StreamProfile) -> Times:
    """Return the times of memory-bound kernels; ``flop_per_s``: the rate of their arithmetic."""
    speedup = cache_speedup(calls.num_bytes, stream.cache_bytes, stream.cache_speedup)
    rate = device.memory_bandwidth_bytes_per_s * stream.memory_fraction * speedup
    latency_s = np.full_like(calls.num_bytes, stream.latency_s)
    return Times(latency_s, calls.executed_flop / flop_per_s, calls.num_bytes / rate)
