"""The time of a data-parallel training step by its batch and its GPUs (Pollux, OSDI 2021, section 3.2)."""

import numpy as np
from msgspec import Struct
from numpy.typing import ArrayLike, NDArray

from sim.jobs.errors import JobsError


class StepTime(Struct, frozen=True, kw_only=True):
    """Seconds of a training step. Each accumulated micro-step computes gradients; the last one synchronises them, too.

    ``compute_s``, ``compute_per_sample_s``: gradients of a micro-step. ``node_sync_s``: synchronisation of two GPUs of
    one node, ``node_sync_per_gpu_s`` for each further GPU; ``network_sync_s`` and ``network_sync_per_gpu_s``: the same
    across nodes. ``overlap``: exponent from 1 (synchronisation after computation) to 10 (nearly all at once).
    """

    compute_s: float
    compute_per_sample_s: float
    node_sync_s: float = 0.0
    node_sync_per_gpu_s: float = 0.0
    network_sync_s: float = 0.0
    network_sync_per_gpu_s: float = 0.0
    overlap: float = 1.0

    def __post_init__(self) -> None:
        if not 1.0 <= self.overlap <= 10.0:
            raise JobsError("overlap", f"an exponent of {self.overlap:g}", "write a number from 1 to 10")
        if self.compute_s + self.compute_per_sample_s <= 0.0:
            raise JobsError(
                "compute", "a step computes in no time", "write a time of the step or of a sample above 0 s"
            )

    def sync_s(self, num_nodes: int, num_gpus: int) -> float:
        """Return the time of one synchronisation of gradients."""
        if num_gpus == 1:
            return 0.0
        if num_nodes == 1:
            return self.node_sync_s + self.node_sync_per_gpu_s * (num_gpus - 2)
        return self.network_sync_s + self.network_sync_per_gpu_s * (num_gpus - 2)

    def step_s(
        self, num_nodes: int, num_gpus: int, local_batch: ArrayLike, accumulated: ArrayLike = 0
    ) -> NDArray[np.float64]:
        """Return the time of a step; ``accumulated``: micro-steps before the last one. Arrays broadcast."""
        return self._with_sync(self.sync_s(num_nodes, num_gpus), local_batch, accumulated)

    def steps_s(
        self, num_nodes: NDArray[np.int64], num_gpus: NDArray[np.int64], local_batch: ArrayLike, accumulated: ArrayLike
    ) -> NDArray[np.float64]:
        """Return the times of steps on many numbers of nodes and GPUs at once. Arrays broadcast."""
        further = np.maximum(num_gpus - 2, 0)
        node_s = self.node_sync_s + self.node_sync_per_gpu_s * further
        network_s = self.network_sync_s + self.network_sync_per_gpu_s * further
        sync_s = np.where(num_nodes > 1, network_s, np.where(num_gpus > 1, node_s, 0.0))
        return self._with_sync(sync_s, local_batch, accumulated)

    def _with_sync(self, sync_s: ArrayLike, local_batch: ArrayLike, accumulated: ArrayLike) -> NDArray[np.float64]:
        gradient_s = self.compute_s + self.compute_per_sample_s * np.asarray(local_batch, dtype=float)
        last_s = (gradient_s**self.overlap + np.asarray(sync_s) ** self.overlap) ** (1.0 / self.overlap)
        return np.asarray(np.asarray(accumulated) * gradient_s + last_s)
