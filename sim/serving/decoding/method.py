"""A decoding method as a replica sees it: positions per pass, tokens that come of it, and the time of the draft."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)
_MIX: Final = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoding:
    """One step of decoding.

    ``positions``: query positions of a pass per sequence: 1, and those that verify a draft. ``lengths``: probabilities
    that a step yields 1, 2, ... tokens. ``draft_s``: the time of the draft of a step for so many sequences. Without
    arguments: one token at a time.
    """

    positions: int = 1
    lengths: tuple[float, ...] = (1.0,)
    draft_s: Callable[[int], float] = field(default=lambda _: 0.0, compare=False)

    @property
    def is_plain(self) -> bool:
        """Return whether every step yields one token and drafts nothing."""
        return self.positions == 1 and len(self.lengths) == 1

    def drawn(self, seed: int, requests: Ints, steps: Ints) -> Ints:
        """Return how many tokens a step yields for each request at its own step number.

        The draw depends on (seed, request, step) alone: another schedule does not change what is accepted.
        """
        bounds = np.cumsum(self.lengths)[:-1]
        return np.searchsorted(bounds, _uniform(seed, requests, steps), side="right") + 1


def _uniform(seed: int, requests: Ints, steps: Ints) -> NDArray[np.float64]:
    """Return a number from 0 to 1 for each (seed, request, step): Steele et al. 2014, SplitMix64's finalizer."""
    with np.errstate(over="ignore"):
        state = np.full(len(requests), seed, dtype=np.uint64)
        for part in (requests, steps):
            state = (state + part.astype(np.uint64) + np.uint64(1)) * _GOLDEN
            state = (state ^ (state >> np.uint64(30))) * _MIX[0]
            state = (state ^ (state >> np.uint64(27))) * _MIX[1]
            state = state ^ (state >> np.uint64(31))
    found: NDArray[np.float64] = (state >> np.uint64(11)).astype(np.float64) / 2.0**53
    return found
