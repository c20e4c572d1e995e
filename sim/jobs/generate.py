"""Drawn job mixes: arrivals, sizes and durations from seeded generators, scaled to an offered load."""

import math
from collections.abc import Mapping, Sequence
from typing import Final, TypeVar
from zlib import crc32

import numpy as np
from msgspec import Struct

from sim.jobs.errors import JobsError
from sim.jobs.job import WHOLE_GPU, GpuUse, Job

Row = TypeVar("Row")

SIZES: Final = ((1, 0.70), (2, 0.10), (4, 0.10), (8, 0.08), (16, 0.02))
"""GPUs of a job with their probabilities: most jobs have one GPU, and few have more than a node, as in Microsoft's
Philly cluster (Jeon et al., USENIX ATC 2019). The figures are assumptions, not the trace's."""
SPREAD: Final = 1.6
"""Standard deviation of the logarithm of durations: the longest hundredth takes 41 times the median."""


class PhillyLike(Struct, frozen=True, kw_only=True):
    """Rigid jobs with sizes and a spread of durations like those of the Philly cluster, and Poisson arrivals.

    ``load``: offered GPU-seconds per GPU-second of the cluster; above 1 the queue grows for as long as jobs arrive.
    ``speeds``: each job draws one of these relative speeds on types of GPU.
    ``network_fraction``: of the time of a step on several nodes, that in which the network is busy.
    ``gpu_uses``: each job draws one of these parts of its GPUs.
    """

    num_jobs: int
    load: float
    median_duration_s: float = 900.0
    speeds: Sequence[Mapping[str, float]] = ()
    network_fraction: float = 0.0
    gpu_uses: Sequence[GpuUse] = ()

    def jobs(self, num_gpus: int, seed: int) -> list[Job]:
        """Return the jobs for a cluster of ``num_gpus``. Raises JobsError where no drawn job could fit."""
        sizes = [(size, chance) for size, chance in SIZES if size <= num_gpus]
        if not sizes:
            raise JobsError("cluster", "the cluster has no GPU", "write at least one node")
        chances = np.array([chance for _, chance in sizes])
        gpus = generator("gpus", seed).choice([size for size, _ in sizes], self.num_jobs, p=chances / chances.sum())
        durations_s = self.median_duration_s * np.exp(
            SPREAD * generator("duration", seed).standard_normal(self.num_jobs)
        )
        mean_gpu_s = float(gpus.mean()) * self.median_duration_s * math.exp(SPREAD**2 / 2.0)
        gap_s = mean_gpu_s / (num_gpus * self.load)
        arrivals_s = np.cumsum(generator("arrival", seed).exponential(gap_s, self.num_jobs))
        arrivals_s -= arrivals_s[0]
        rows = zip(arrivals_s.tolist(), gpus.tolist(), durations_s.tolist(), strict=True)
        speeds = drawn_rows("speeds", self.speeds or ({},), self.num_jobs, seed)
        uses = drawn_rows("gpu_uses", self.gpu_uses or (WHOLE_GPU,), self.num_jobs, seed)
        fraction = self.network_fraction
        return [
            Job(str(place), *row, speeds=speed, network_fraction=fraction, gpu_use=use)
            for place, (row, speed, use) in enumerate(zip(rows, speeds, uses, strict=True))
        ]


def drawn_rows(name: str, rows: Sequence[Row], number: int, seed: int) -> list[Row]:
    """Return so many rows, each drawn from all with equal chances."""
    return [rows[place] for place in generator(name, seed).integers(0, len(rows), number).tolist()]


def generator(name: str, seed: int) -> np.random.Generator:
    """Return the random generator of one quantity; it depends on no other."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(crc32(f"jobs.{name}".encode()),)))
