"""A decoding method as a replica sees it: positions per pass, tokens that come of it, and the time of the draft."""

from typing import Final, Protocol

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

Ints = NDArray[np.int64]

_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)
_MIX: Final = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))


class Draft(Protocol):
    """What makes the tokens that a pass verifies."""

    def time_s(self, rows: int) -> float:
        """Return the seconds of a step's draft for so many sequences."""


class SteadyDraft(Struct, frozen=True):
    """A draft of the same seconds for any number of sequences."""

    seconds: float = 0.0

    def time_s(self, rows: int) -> float:
        """Return the seconds of a step's draft."""
        del rows
        return self.seconds


class Decoding(Struct, frozen=True, kw_only=True):
    """One step of decoding.

    ``positions``: query positions of a pass per sequence: 1, and those that verify a draft. ``lengths``: probabilities
    that a step yields 1, 2, ... tokens. Without arguments: one token at a time.
    """

    positions: int = 1
    lengths: tuple[float, ...] = (1.0,)
    draft: Draft = SteadyDraft()

    @property
    def is_plain(self) -> bool:
        """Return whether every step yields one token and drafts nothing."""
        return self.positions == 1 and len(self.lengths) == 1

    def draft_s(self, rows: int) -> float:
        """Return the seconds of a step's draft for so many sequences."""
        return self.draft.time_s(rows)

    def drawn(self, seed: int, requests: Ints, steps: Ints) -> Ints:
        """Return how many tokens a step yields for each request at its own step number; shapes are broadcast.

        The draw depends on (seed, request, step) alone: another schedule does not change what is accepted.
        """
        bounds = np.cumsum(self.lengths)[:-1]
        return np.searchsorted(bounds, _uniform(seed, requests, steps), side="right") + 1


def _uniform(seed: int, requests: Ints, steps: Ints) -> NDArray[np.float64]:
    """Return a number from 0 to 1 for each (seed, request, step): Steele et al. 2014, SplitMix64's finalizer."""
    with np.errstate(over="ignore"):
        state: NDArray[np.uint64] = np.full(1, seed, dtype=np.uint64)
        for part in (requests, steps):
            state = (state + part.astype(np.uint64) + np.uint64(1)) * _GOLDEN
            state = (state ^ (state >> np.uint64(30))) * _MIX[0]
            state = (state ^ (state >> np.uint64(27))) * _MIX[1]
            state = state ^ (state >> np.uint64(31))
    found: NDArray[np.float64] = (state >> np.uint64(11)).astype(np.float64) / 2.0**53
    return found
