"""Calls of kernels, and their times from the device's profile."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from msgspec import Struct

from costmodels.hardware import DeviceSpec
from costmodels.kernels import KERNELS
from costmodels.kernels.tensor import Family, GemmShape, TensorSpec, Work
from costmodels.profile import Profile
from costmodels.roofline import times_of_kernels

WIDE: Final = "bfloat16"
"""The type of all tensors that no key narrows."""
_PRICED_TOGETHER: Final = 16
"""So many neighbouring numbers of tokens are priced in one pass, which takes hardly longer than one of them."""


class KernelCall(Struct, frozen=True):
    """A kernel call that a pass makes ``count`` times. ``name``: of the kernel, for parameters of that kernel alone."""

    work: Work
    family: Family
    dtype: str
    name: str
    count: int = 1


def call(
    name: str, inputs: tuple[TensorSpec, ...], attributes: Mapping[str, object] | None = None, count: int = 1
) -> KernelCall:
    """Return the call of a kernel with these inputs."""
    kernel, given = KERNELS[name], attributes or {}
    work = kernel.work(inputs, kernel.outputs(inputs, given), given)
    return KernelCall(work, kernel.family, inputs[0].dtype, name, count)


def product(rows: int, contracted: int, width: int, dtype: str) -> KernelCall:
    """Return the call of a matrix product [rows, contracted] x [contracted, width]."""
    return call("matmul", (TensorSpec((rows, contracted), dtype), TensorSpec((contracted, width), dtype)))


def grouped_product(count: int, rows: int, contracted: int, width: int, dtype: str) -> KernelCall:
    """Return the call of ``count`` products [rows, contracted] x [contracted, width] in one kernel."""
    item = TensorSpec((1,), dtype).num_bytes
    flop = 2.0 * count * rows * contracted * width
    read = count * (rows * contracted + contracted * width) * item
    work = Work(flop, flop, read, count * rows * width * 2, GemmShape(rows, width, contracted, count))
    return KernelCall(work, "gemm", dtype, "")


def norm(tokens: int, width: int, count: int = 1) -> KernelCall:
    """Return the call of a norm of vectors."""
    return call("rms_norm", (TensorSpec((tokens, 1, width), WIDE), TensorSpec((width,), WIDE)), count=count)


class KernelClock(Struct, frozen=True):
    """A device and its profile."""

    device: DeviceSpec
    profile: Profile

    def times_s(self, passes: Sequence[Sequence[KernelCall]]) -> list[float]:
        """Return the time of each of several passes; calls of one kernel are priced together."""
        groups: dict[tuple[Family, str, str], list[tuple[int, KernelCall]]] = {}
        for place, calls in enumerate(passes):
            for each in calls:
                groups.setdefault((each.family, each.dtype, each.name), []).append((place, each))
        found = [0.0] * len(passes)
        for (family, dtype, name), placed in groups.items():
            works = [each.work for _, each in placed]
            times = times_of_kernels(works, family, dtype, self.device, self.profile, name)
            for (place, each), time in zip(placed, times, strict=True):
                found[place] += each.count * time.alone_s
        return found


def nothing_s(_: int) -> float:
    """Return no time."""
    return 0.0


@dataclass(slots=True)
class PriceTable:
    """Times of calls by a number of tokens, priced when they are asked for, with their neighbours.

    ``calls``: of a pass over so many tokens. ``extra_s``: what the pass takes beside its kernels.
    """

    clock: KernelClock
    calls: Callable[[int], Sequence[KernelCall]]
    extra_s: Callable[[int], float] = nothing_s
    _known_s: dict[int, float] = field(default_factory=dict, init=False)

    def at(self, number: int, step: int = 1) -> float:
        """Return the time in seconds at a number of tokens, a multiple of ``step``."""
        found = self._known_s.get(number)
        if found is None:
            near = _neighbours(number, step)
            times = self.clock.times_s([self.calls(count) for count in near])
            self._known_s.update(
                (count, time_s + self.extra_s(count)) for count, time_s in zip(near, times, strict=True)
            )
            found = self._known_s[number]
        return found


def _neighbours(number: int, step: int) -> range:
    """Return the multiples of a step that are priced together with this one, itself among them."""
    span = _PRICED_TOGETHER * step
    first = (number - step) // span * span
    return range(first + step, first + span + step, step)
