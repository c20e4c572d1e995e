"""The sequences of a batch that decode, in order of arrival: a row each, as arrays."""

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


class Rows:
    """Decoding sequences. ``held``: tokens whose keys and values are kept; ``left``: tokens that are still wanted.

    ``blocks``: private blocks; ``shared``: tokens that lie in shared pieces; ``stall_s``: the replica's clock of stalls
    when the row joined.
    """

    def __init__(self) -> None:
        self.ids, self.held, self.left, self.blocks, self.shared = np.zeros((5, 0), dtype=np.int64)
        self.stall_s = np.zeros(0)

    def __len__(self) -> int:
        return len(self.ids)

    def add(self, request: int, held: int, left: int, blocks: int, shared: int, stall_s: float) -> None:
        """Add a sequence at the end."""
        self.ids = np.append(self.ids, request)
        self.held = np.append(self.held, held)
        self.left = np.append(self.left, left)
        self.blocks = np.append(self.blocks, blocks)
        self.shared = np.append(self.shared, shared)
        self.stall_s = np.append(self.stall_s, stall_s)

    def keep(self, which: NDArray[np.bool_]) -> None:
        """Keep these rows alone, in their order."""
        self.ids, self.held, self.left = self.ids[which], self.held[which], self.left[which]
        self.blocks, self.shared, self.stall_s = self.blocks[which], self.shared[which], self.stall_s[which]

    def blocks_for(self, more: int, block_tokens: int) -> Ints:
        """Return the private blocks that each row needs to hold so many tokens more."""
        return -((self.shared - self.held - more) // block_tokens)
