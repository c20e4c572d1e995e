"""Parts shared by all families: calls and times as arrays, waves of thread blocks, throttling, caches."""

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from costmodels.kernels.tensor import BYTES_PER_ELEMENT, Work

Array = NDArray[np.float64]


class Calls(Struct, frozen=True):
    """Calls of one family on operands of one dtype, a row each; the shapes are 0 where a family has none.

    ``m``, ``n``, ``k``, ``batch``, ``causal`` (1 or 0), ``window``: see ``GemmShape``; without a
    window it is ``n``. ``element_bytes``: of one operand's element.
    """

    m: Array
    n: Array
    k: Array
    batch: Array
    causal: Array
    window: Array
    executed_flop: Array
    bytes_read: Array
    bytes_written: Array
    element_bytes: int

    @classmethod
    def of(cls, works: Sequence[Work], dtype: str) -> "Calls":
        """Return the work of some calls as arrays."""
        shapes = [(g.m, g.n, g.k, g.batch, g.causal, g.window or g.n) if (g := w.gemm) else (0,) * 6 for w in works]
        rows = [(*s, w.executed_flop, w.bytes_read, w.bytes_written) for s, w in zip(shapes, works, strict=True)]
        m, n, k, batch, causal, window, flop, read, written = np.array(rows, dtype=np.float64).reshape(-1, 9).T
        return cls(m, n, k, batch, causal, window, flop, read, written, BYTES_PER_ELEMENT[dtype])

    def every(self, step: int) -> "Calls":
        """Return the first call and every ``step``-th after it."""
        names = ("m", "n", "k", "batch", "causal", "window", "executed_flop", "bytes_read", "bytes_written")
        return replace(self, **{name: getattr(self, name)[::step] for name in names})

    @property
    def num_bytes(self) -> Array:
        """Return bytes read plus bytes written, per call."""
        return self.bytes_read + self.bytes_written


class Times(Struct, frozen=True):
    """Per call, seconds of fixed time, of exclusive use of the arithmetic units, and of exclusive use of the memory."""

    latency_s: Array
    compute_s: Array
    memory_s: Array

    @property
    def alone_s(self) -> Array:
        """Return the seconds of each call alone on the device."""
        return self.latency_s + np.maximum(self.compute_s, self.memory_s)


def waves(fill: Array, quantisation: float) -> Array:
    """Return the waves for ``fill`` multiprocessor-loads of thread blocks: at least one, rounded up in part.

    ``quantisation``: 1 rounds up to whole waves, 0 does not round.
    """
    return np.where(fill <= 1.0, 1.0, quantisation * np.ceil(fill) + (1.0 - quantisation) * fill)


def throttling(
    flop: Array, peak_flop_per_s: float, throttle: float, throttle_after_s: float, sharpness: float = 1.0
) -> Array:
    """Return the slowdown of arithmetic once the power limit lowers the clock.

    1 for a short call, 1 + ``throttle`` for an endless one, half-way for one of ``throttle_after_s`` at the peak; a
    larger ``sharpness`` makes the change more sudden.
    """
    busy = (flop / (peak_flop_per_s * throttle_after_s)) ** sharpness
    return 1.0 + throttle * busy / (1.0 + busy)


def cache_speedup(num_bytes: Array, cache_bytes: float, speedup: float, sharpness: float = 2.0) -> Array:
    """Return the speedup of bytes that fit into a cache: ``speedup`` for few bytes, 1 for many.

    Half-way for ``cache_bytes``; a larger ``sharpness`` makes the change more sudden.
    """
    if speedup <= 1.0 or cache_bytes <= 0.0:
        return np.ones_like(num_bytes)
    return 1.0 + (speedup - 1.0) / (1.0 + (num_bytes / cache_bytes) ** sharpness)
