"""Samples of kernels as arrays, since a fit predicts them hundreds of times."""

from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from costmodels.calibration.samples import KernelSample
from costmodels.hardware import NodeSpec
from costmodels.kernels.tensor import Family
from costmodels.profile import Profile
from costmodels.roofline import family_times, times_of_kernel
from costmodels.timing.attention import moving_s
from costmodels.timing.streaming import KernelProfile
from costmodels.timing.times import Array, Calls


class Batch(Struct, frozen=True):
    """Samples of one family, dtype and kernel. ``rows``: their indices among all samples."""

    family: Family
    dtype: str
    kernel: str
    calls: Calls
    staged_bytes: Array
    rows: NDArray[np.int64]

    def seconds(self, node: NodeSpec, profile: Profile) -> Array:
        """Return the seconds of each call alone, at the clock of a micro-benchmark: ``sustained`` does not count."""
        times = family_times(self.calls, self.family, self.dtype, node.device, profile, self.kernel)
        return self._with_staging(times.alone_s, node, profile)

    def seconds_by_kernel(self, node: NodeSpec, profile: Profile) -> Callable[[KernelProfile], Array]:
        """Return the seconds as a function of the kernel's own numbers; those of its family are found once."""
        times = family_times(self.calls, self.family, self.dtype, node.device, profile)
        return lambda own: self._with_staging(times_of_kernel(times, own).alone_s, node, profile)

    def _with_staging(self, alone_s: Array, node: NodeSpec, profile: Profile) -> Array:
        if not self.staged_bytes.any():
            return alone_s
        staged_s = profile.attention.latency_s + moving_s(self.staged_bytes, node.device, profile.attention)
        return alone_s + np.where(self.staged_bytes > 0, staged_s, 0.0)


def batches(samples: Sequence[KernelSample]) -> list[Batch]:
    """Return the samples by family, dtype and kernel."""
    found: dict[tuple[Family, str, str], list[int]] = defaultdict(list)
    for row, sample in enumerate(samples):
        found[sample.family, sample.dtype, sample.kernel].append(row)
    return [
        Batch(
            family, dtype, kernel,
            Calls.of([samples[row].work for row in rows], dtype),
            np.array([samples[row].staged_bytes for row in rows], dtype=np.float64),
            np.array(rows, dtype=np.int64),
        )
        for (family, dtype, kernel), rows in found.items()
    ]  # fmt: skip


def predict(ours: Sequence[Batch], node: NodeSpec, profile: Profile) -> Array:
    """Return the seconds of all samples, in the order before ``batches``."""
    seconds = np.zeros(sum(len(batch.rows) for batch in ours))
    for batch in ours:
        seconds[batch.rows] = batch.seconds(node, profile)
    return seconds


def predict_by_kernel(ours: Sequence[Batch], node: NodeSpec, profile: Profile) -> Callable[[KernelProfile], Array]:
    """Return the seconds of all samples of one kernel, in the order before ``batches``, by the kernel's own numbers."""
    parts = [(batch.rows, batch.seconds_by_kernel(node, profile)) for batch in ours]

    def predicted(own: KernelProfile) -> Array:
        seconds = np.zeros(sum(len(rows) for rows, _ in parts))
        for rows, of_batch in parts:
            seconds[rows] = of_batch(own)
        return seconds

    return predicted
