"""The time of a kernel: fixed time, seconds of the arithmetic units, seconds of the memory.

Alone, a kernel lasts ``latency + max(compute, memory)`` (Williams et al. 2009, roofline). The attained fractions of the
data sheet come from a profile (``profile.py``); the families' models are in ``timing``.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Final

import numpy as np
from msgspec import Struct

from costmodels.errors import KernelError
from costmodels.hardware import DeviceSpec
from costmodels.kernels.tensor import Family, Work
from costmodels.profile import Profile
from costmodels.timing.attention import attention_times, decode_times
from costmodels.timing.gemm import gemm_times
from costmodels.timing.streaming import KernelProfile, StreamProfile, stream_times
from costmodels.timing.times import Calls, Times


class KernelTime(Struct, frozen=True):
    """Seconds of fixed time, of exclusive use of the arithmetic units, and of exclusive use of the memory."""

    latency_s: float
    compute_s: float
    memory_s: float

    @property
    def alone_s(self) -> float:
        """Return the seconds of the kernel alone on the device."""
        return self.latency_s + max(self.compute_s, self.memory_s)


@lru_cache(maxsize=65536)
def kernel_time(
    work: Work, family: Family, dtype: str, device: DeviceSpec, profile: Profile, kernel: str = ""
) -> KernelTime:
    """Return the time of one kernel call whose operands have ``dtype``; none of a call that has nothing to do.

    ``kernel``: its name, for parameters of that kernel alone. Raises KernelError for an unknown family, CatalogueError
        for a dtype that the device has no rate for.
    """
    return times_of_kernels([work], family, dtype, device, profile, kernel)[0]


def times_of_kernels(
    works: Sequence[Work], family: Family, dtype: str, device: DeviceSpec, profile: Profile, kernel: str = ""
) -> list[KernelTime]:
    """Return the time of each of several calls of one kernel, as ``kernel_time`` does, in one pass. Raises as it."""
    if family in _UNTIMED:
        return [KernelTime(work.duration_s, 0.0, 0.0) for work in works]
    found = [KernelTime(0.0, 0.0, 0.0)] * len(works)  # such as the product of an expert that no token came to
    busy = [place for place, work in enumerate(works) if work.executed_flop or work.num_bytes or family not in _TIMES]
    if not busy:
        return found
    times = kernel_times([works[place] for place in busy], family, dtype, device, profile, kernel)
    columns = (times.latency_s.tolist(), times.compute_s.tolist(), times.memory_s.tolist())
    for place, latency_s, compute_s, memory_s in zip(busy, *columns, strict=True):
        additions_s = works[place].scattered_additions / scattered_additions_per_s(device)
        found[place] = KernelTime(works[place].num_kernels * latency_s, compute_s, max(memory_s, additions_s))
    return found


def scattered_additions_per_s(device: DeviceSpec) -> float:
    """Return the rate of a device's atomic additions of single elements, per second."""
    return _SCATTERED_ADDITIONS_PER_CLOCK * device.num_multiprocessors * device.clock_hz


def kernel_times(
    works: Sequence[Work], family: Family, dtype: str, device: DeviceSpec, profile: Profile, kernel: str = ""
) -> Times:
    """Return the times of several calls of one family on operands of one dtype. Raises as ``kernel_time``."""
    if family in _SHAPED and any(work.gemm is None for work in works):
        raise KernelError(f"a kernel of the family {family!r} needs its shape to be timed")
    return family_times(Calls.of(works, dtype), family, dtype, device, profile, kernel)


def family_times(
    calls: Calls, family: Family, dtype: str, device: DeviceSpec, profile: Profile, kernel: str = ""
) -> Times:
    """Return the times of calls that are arrays already. Raises as ``kernel_time``."""
    if family not in _TIMES:
        raise KernelError(f"there is no kernel family {family!r}; known: {', '.join([*_TIMES, *_UNTIMED])}")
    times = _TIMES[family](calls, dtype, device, profile)
    own = profile.kernels.get(kernel)
    return times if own is None else times_of_kernel(times, own)


def times_of_kernel(times: Times, own: KernelProfile) -> Times:
    """Return the times of calls of a kernel with numbers of its own, from those of its family."""
    fixed_s = np.full_like(times.latency_s, own.latency_s)
    return Times(fixed_s, times.compute_s * own.slowdown, times.memory_s * own.slowdown)


def _gemm(calls: Calls, dtype: str, device: DeviceSpec, profile: Profile) -> Times:
    attained = profile.float8.peak_fraction if dtype.startswith("float8") else 1.0
    return gemm_times(calls, device.peak(dtype) * attained, device, profile.gemm)


def _attention(calls: Calls, dtype: str, device: DeviceSpec, profile: Profile) -> Times:
    return attention_times(calls, device.peak(dtype), device, profile.attention, backward=False)


def _attention_backward(calls: Calls, dtype: str, device: DeviceSpec, profile: Profile) -> Times:
    return attention_times(calls, device.peak(dtype), device, profile.attention, backward=True)


def _decode(calls: Calls, dtype: str, device: DeviceSpec, profile: Profile) -> Times:
    return decode_times(calls, device.peak(dtype), device, profile.decode)


def _elementwise(calls: Calls, dtype: str, device: DeviceSpec, profile: Profile) -> Times:
    return _stream(calls, dtype, device, profile.elementwise)


def _optimizer(calls: Calls, dtype: str, device: DeviceSpec, profile: Profile) -> Times:
    return _stream(calls, dtype, device, profile.optimizer)


def _stream(calls: Calls, dtype: str, device: DeviceSpec, stream: StreamProfile) -> Times:
    """Return the times of memory-bound kernels; they compute in float32, or in float64 on float64 operands."""
    return stream_times(calls, device.peak("float64" if dtype == "float64" else "float32"), device, stream)


_TIMES: Final[Mapping[str, Callable[[Calls, str, DeviceSpec, Profile], Times]]] = {
    "gemm": _gemm,
    "attention": _attention,
    "attention_backward": _attention_backward,
    "decode": _decode,
    "elementwise": _elementwise,
    "optimizer": _optimizer,
}
_SCATTERED_ADDITIONS_PER_CLOCK: Final = 0.5
"""Per multiprocessor: torch's index_add on Hopper. 65,536 rows of 4,096 numbers of 16 bits take 2.30 ms, those of
32 bits 1.97 ms (DeepLink-org/DLBlas, pull request 66; its fused kernels move 3.0 TB/s: taken for an H100).
"""
_SHAPED: Final = frozenset({"gemm", "attention", "attention_backward", "decode"})
_UNTIMED: Final = frozenset({"delay", "none"})
