"""The sequences of a batch that decode, in order of arrival: a row each, as columns of one table."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

_COLUMNS: Final = 7
_FIRST_ROOM: Final = 16


class Rows:
    """Decoding sequences; columns are views of one table, and are written in place.

    ``ids``: their requests; ``held``: tokens whose keys and values are kept; ``wanted``: the same when the answer is
    complete; ``blocks``: private blocks; ``shared``: tokens that lie in shared pieces; ``steps``: decoding iterations,
    and ``decoded`` their tokens, since the row joined. ``stall_s``: the replica's clock of stalls when it joined.
    ``sum_held`` and ``least_left`` are kept up to date, since every iteration asks for them.
    """

    def __init__(self) -> None:
        self._table = np.zeros((_COLUMNS, _FIRST_ROOM), dtype=np.int64)
        self._stalls_s = np.zeros(_FIRST_ROOM)
        self._show(0)
        self.sum_held = self.least_left = 0

    def __len__(self) -> int:
        return self._count

    def add(self, request: int, held: int, left: int, blocks: int, shared: int, stall_s: float) -> None:
        """Add a sequence at the end."""
        count = self._count
        if count == self._table.shape[1]:
            self._table = np.concatenate((self._table, np.zeros_like(self._table)), axis=1)
            self._stalls_s = np.concatenate((self._stalls_s, np.zeros_like(self._stalls_s)))
        self._table[:, count] = (request, held, 0, 0, held + left, blocks, shared)
        self._stalls_s[count] = stall_s
        self._show(count + 1)
        self.sum_held += held
        self.least_left = min(self.least_left, left) if count else left

    def remove(self, which: NDArray[np.bool_]) -> None:
        """Remove these rows; the others stay in their order."""
        (kept,) = (~which).nonzero()
        self._table[:, : len(kept)] = self._table[:, kept]
        self._stalls_s[: len(kept)] = self._stalls_s[kept]
        self._show(len(kept))
        self._count_again()

    @property
    def left(self) -> Ints:
        """Return the tokens that each row still wants."""
        left: Ints = self.wanted - self.held
        return left

    def decode_plainly(self, num_steps: int) -> None:
        """Add so many iterations, each with a token, to each row."""
        self._counters += num_steps
        self.sum_held += num_steps * self._count
        self.least_left -= num_steps

    def decode(self, tokens: Ints) -> None:
        """Add an iteration, and so many tokens of it, to each row."""
        self.held += tokens
        self.steps += 1
        self.decoded += tokens
        self._count_again()

    def blocks_for(self, more: int, block_tokens: int) -> Ints:
        """Return the private blocks that each row needs to hold so many tokens more."""
        needed: Ints = -((self.shared - self.held - more) // block_tokens)
        return needed

    def _show(self, count: int) -> None:
        """Let the columns be views of the first so many rows of the table."""
        self._count = count
        shown = self._table[:, :count]
        self.ids, self.held, self.steps, self.decoded, self.wanted, self.blocks, self.shared = shown
        self._counters = shown[1:4]
        self.stall_s = self._stalls_s[:count]

    def _count_again(self) -> None:
        self.sum_held = int(np.add.reduce(self.held))
        self.least_left = int(np.minimum.reduce(self.left)) if self._count else 0
