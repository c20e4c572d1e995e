"""Buffers: the tensors that operations read and write."""

from enum import StrEnum
from math import prod
from typing import Final

from msgspec import Struct

from sim.plan.words.layout import REPLICATED, Layout

E4M3: Final = "float8_e4m3fn"
E5M2: Final = "float8_e5m2"

BYTES_PER_ELEMENT = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "int64": 8, "int32": 4, "uint8": 1, "bool": 1,
    E4M3: 1, E5M2: 1,
}  # fmt: skip


class Kind(StrEnum):
    """The purpose of a buffer; the memory report has one sum per kind. ``CACHE``: keys and values of earlier tokens."""

    PARAMETER = "parameter"
    GRADIENT = "gradient"
    OPTIMIZER = "optimizer"
    ACTIVATION = "activation"
    WORKSPACE = "workspace"
    CACHE = "cache"


class Tier(StrEnum):
    """The memory of a buffer: the device's own, or, shared by several devices, their host's memory or NVMe drives."""

    DEVICE = "device"
    HOST = "host"
    NVME = "nvme"


class Scope(StrEnum):
    """The number of instances of a buffer, and their lifetime.

    ``PERSISTENT``: one, alive from before the first op to after the last.
    ``MICROBATCH``: one per micro-batch, alive from its first write to its last read.
    ``STEP``: one, alive from its first write to its last read.
    """

    PERSISTENT = "persistent"
    MICROBATCH = "microbatch"
    STEP = "step"


class Initial(Struct, frozen=True):
    """The initial value of a persistent buffer: a pure function of the scenario's seed and ``source``.

    ``method``: ``zeros``; ``ones``; ``normal`` (mean 0, standard deviation ``scale``; the numbers depend only on seed
        and ``source``, so every rank can cut its slice from the same global tensor); ``eight_bits`` (the same, times
        the scale with which the global tensor fits into eight bits), ``scale`` (the inverse of that of the buffer in
        ``of``); or ``shard`` (this rank's piece of the flattened concatenation of the buffers in ``of``, split over
        ``axes``).
    ``delay``: for one of two kept versions of weights, its age in steps.
    """

    method: str = "zeros"
    source: str = ""
    scale: float = 0.0
    of: tuple[str, ...] = ()
    axes: tuple[str, ...] = ()
    delay: int = 0


class Part(Struct, frozen=True):
    """One of ``count`` equal parts along a dimension."""

    dim: int
    index: int
    count: int


class Buffer(Struct, frozen=True):
    """One rank's piece of a tensor.

    ``shape``: the local shape.
    ``global_shape`` and ``layout``: the tensor and the slice of it (for parameters and their gradients; else empty).
    ``part``: the buffer is only that part of the slice.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    kind: Kind
    scope: Scope = Scope.MICROBATCH
    tier: Tier = Tier.DEVICE
    initial: Initial | None = None
    global_shape: tuple[int, ...] = ()
    layout: Layout = REPLICATED
    part: Part | None = None

    @property
    def num_elements(self) -> int:
        """Return the number of elements of the local piece."""
        return prod(self.shape)

    @property
    def num_bytes(self) -> int:
        """Return the size of the local piece in bytes, before allocator rounding."""
        return prod(self.shape) * BYTES_PER_ELEMENT[self.dtype]
