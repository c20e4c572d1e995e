"""Elastic jobs like those of the trace by which ONES (SC 2021) was evaluated: 20 kinds, equally many of each.

Epoch sizes, batches, learning rates and requests are those of the artifact's ``traces/trace_1.csv``. Gaps between
arrivals are uniform with its mean. Speeds at the requested GPUs and epochs are medians and ranges of its
``traces/job_history.csv`` (Frontera, nodes of four RTX 5000). Assumptions: half of a micro-step does not depend on its
samples (the rule of Pollux where one batch was measured); gradients in 32 bits go round a ring at 10 GB/s in a node
and 6 GB/s between nodes, after the computation; epochs are drawn between the least and the most with the median
as mode; accuracy settles within the epochs of the job.
"""

from typing import Final

import numpy as np
from msgspec import Struct

from sim.jobs.errors import JobsError
from sim.jobs.generate import generator
from sim.jobs.job import Job, elastic_job
from sim.jobs.placement import fewest_nodes
from sim.jobs.speed.speed import FixedBatchSpeed, ScaledBatchSpeed
from sim.jobs.speed.step_time import StepTime
from sim.jobs.training import LearningCurve, Training

NODE_BYTES_PER_S: Final = 10e9
NETWORK_BYTES_PER_S: Final = 6e9
FIXED_FRACTION: Final = 0.5
"""Of the computation of a micro-step at the reference batch."""
SETTLING: Final = 3.0
"""Time constants of the accuracy in the epochs of a job."""


class Kind(Struct, frozen=True, kw_only=True):
    """One kind of training: ``samples_per_s`` at ``num_gpus``; epochs (least, median, most); parameters."""

    epoch_sizes: tuple[int, int]
    local_batch: int
    learning_rate: float
    most_learning_rate: float
    num_gpus: int
    samples_per_s: float
    epochs: tuple[int, float, int]
    num_parameters: float
    accuracy: float

    def speed(self, gpus_per_node: int, times: float = 1.0) -> ScaledBatchSpeed:
        """Return the speed that is ``times`` the measured one at the requested GPUs; the batch grows with the GPUs."""
        size = 4.0 * self.num_parameters
        node_s, network_s = size / NODE_BYTES_PER_S, size / NETWORK_BYTES_PER_S
        shown = StepTime(compute_s=1.0, compute_per_sample_s=0.0, **_rings(node_s, network_s))
        sync_s = shown.sync_s(-(-self.num_gpus // gpus_per_node), self.num_gpus)
        compute_s = self.local_batch * self.num_gpus / self.samples_per_s - sync_s
        step = StepTime(
            compute_s=FIXED_FRACTION * compute_s / times,
            compute_per_sample_s=(1.0 - FIXED_FRACTION) * compute_s / self.local_batch / times,
            **_rings(node_s / times, network_s / times),
        )
        return ScaledBatchSpeed(
            step=step,
            local_batch=self.local_batch,
            learning_rate=self.learning_rate,
            most_learning_rate=self.most_learning_rate,
        )

    def fixed_speed(self, gpus_per_node: int, times: float = 1.0) -> FixedBatchSpeed:
        """Return the same where the batch stays that of the requested GPUs."""
        return FixedBatchSpeed(
            step=self.speed(gpus_per_node, times).step,
            batch_size=self.local_batch * self.num_gpus,
            most_local_batch=self.local_batch,
        )


def _rings(node_s: float, network_s: float) -> dict[str, float]:
    """Return the terms of a ring all_reduce: exact for 2 and 16 GPUs, linear between."""
    return {
        "node_sync_s": node_s, "node_sync_per_gpu_s": node_s / 16.0, "network_sync_s": network_s,
        "network_sync_per_gpu_s": network_s / 16.0,
    }  # fmt: skip


def _imagenet(num_parameters: float) -> Kind:
    return Kind(
        epoch_sizes=(10_000, 20_000), local_batch=32, learning_rate=5e-4, most_learning_rate=8e-3, num_gpus=16,
        samples_per_s=1532.8, epochs=(11, 47.0, 58), num_parameters=num_parameters, accuracy=0.6,
    )  # fmt: skip


def _cifar(
    samples_per_s: float, epochs: tuple[int, float, int], num_parameters: float, batch: int, rate: float
) -> Kind:
    return Kind(
        epoch_sizes=(20_000, 40_000), local_batch=batch, learning_rate=rate, most_learning_rate=16.0 * rate, num_gpus=4,
        samples_per_s=samples_per_s, epochs=epochs, num_parameters=num_parameters, accuracy=0.75,
    )  # fmt: skip


def _bert(sizes: tuple[int, int], num_gpus: int, samples_per_s: float, batch: int, rate: float) -> Kind:
    return Kind(
        epoch_sizes=sizes, local_batch=batch, learning_rate=rate, most_learning_rate=2e-5, num_gpus=num_gpus,
        samples_per_s=samples_per_s, epochs=(5, 5.5, 6), num_parameters=110e6, accuracy=0.9,
    )  # fmt: skip


KINDS: Final = (
    _imagenet(25.6e6), _imagenet(138e6), _imagenet(23.8e6),
    Kind(epoch_sizes=(10_000, 20_000), local_batch=64, learning_rate=2.5e-4, most_learning_rate=4e-3, num_gpus=16,
         samples_per_s=3390.1, epochs=(21, 45.0, 69), num_parameters=61e6, accuracy=0.3),
    _cifar(11540.0, (22, 25.0, 38), 11.2e6, 256, 5e-3), _cifar(2747.6, (36, 51.5, 67), 14.7e6, 128, 1e-3),
    _cifar(11540.0, (22, 25.0, 38), 6.2e6, 256, 5e-3),
    _bert((5_000, 8_000), 2, 102.0, 16, 5e-6), _bert((3_600, 3_600), 2, 102.0, 16, 5e-6),
    _bert((10_000, 20_000), 8, 434.9, 32, 2.5e-6),
)  # fmt: skip


class OnesLike(Struct, frozen=True, kw_only=True):
    """Elastic jobs of 20 kinds in a drawn order.

    ``mean_gap_s``: between arrivals. ``fixed_batch``: the batch stays that of the requested GPUs, whatever a job gets.
    ``times``: GPUs and network are so many times as fast as those of the artifact.
    """

    num_jobs: int = 400
    mean_gap_s: float = 29.97
    fixed_batch: bool = False
    times: float = 1.0

    def jobs(self, gpus_per_node: tuple[int, ...], seed: int) -> list[Job]:
        """Return the jobs for a cluster. Raises JobsError where a request does not fit."""
        num_gpus = sum(gpus_per_node)
        most = max(kind.num_gpus for kind in KINDS)
        if num_gpus < most:
            raise JobsError("cluster.num_nodes", f"the jobs ask for up to {most} GPUs of {num_gpus}", "add nodes")
        places = np.arange(self.num_jobs) % (2 * len(KINDS))
        places = generator("ones.kind", seed).permutation(places)
        gaps_s = generator("ones.gap", seed).uniform(0.0, 2.0 * self.mean_gap_s, self.num_jobs)
        arrivals_s = np.cumsum(gaps_s) - gaps_s[0]
        draws = generator("ones.epochs", seed)
        found = []
        for place, (kind_place, arrival_s) in enumerate(zip(places.tolist(), arrivals_s.tolist(), strict=True)):
            kind = KINDS[kind_place // 2]
            least, median, longest = kind.epochs
            epochs = round(float(draws.triangular(least - 0.5, median, longest + 0.5)))
            speed = (kind.fixed_speed if self.fixed_batch else kind.speed)(gpus_per_node[0], self.times)
            training = Training(
                samples_per_epoch=float(kind.epoch_sizes[kind_place % 2]),
                num_epochs=float(epochs),
                speed=speed,
                most_gpus=min(num_gpus, speed.most_gpus),
                curve=LearningCurve(accuracy=kind.accuracy, accuracy_epochs=epochs / SETTLING),
            )
            nodes = fewest_nodes(gpus_per_node, kind.num_gpus)
            found.append(elastic_job(str(place), arrival_s, kind.num_gpus, training, nodes))
        return found
