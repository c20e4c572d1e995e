"""Devices of one type are not equally fast: a random factor per device and family of kernels."""

from collections.abc import Mapping
from functools import cached_property
from zlib import crc32

import numpy as np
from msgspec import Struct


class Variation(Struct, frozen=True, dict=True):
    """``sigma``: by family of kernels, the standard deviation of the logarithm of a device's slowdown.

    A slowdown is lognormal with mean 1, drawn once per rank and family for the whole step, by a generator of its own:
    PCG64 seeded with the scenario's seed, the rank, and the CRC-32 of ``jitter/FAMILY``. So the draws depend neither on
    other draws nor on the number of ranks. ``ranks``: rank r lies on the device of rank ``ranks[r]`` and has its draws;
    empty: every rank has its own.
    """

    sigma: Mapping[str, float] = {}
    seed: int = 0
    ranks: tuple[int, ...] = ()

    @property
    def is_any(self) -> bool:
        """Return whether any two devices may differ."""
        return any(sigma > 0 for sigma in self.sigma.values())

    @cached_property
    def _drawn(self) -> dict[tuple[str, int], float]:
        return {}

    def slowdown(self, family: str, rank: int) -> float:
        """Return how many times as long a rank's kernels of a family take."""
        sigma = self.sigma.get(family, 0.0)
        if sigma == 0:
            return 1.0
        rank = self.ranks[rank] if self.ranks else rank
        if (family, rank) not in self._drawn:
            generator = np.random.Generator(np.random.PCG64([self.seed, rank, crc32(f"jitter/{family}".encode())]))
            self._drawn[family, rank] = float(generator.lognormal(-sigma * sigma / 2, sigma))
        return self._drawn[family, rank]
