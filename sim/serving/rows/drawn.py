"""Sequences whose steps yield as many tokens as are drawn: a row each, as columns of one table."""

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from sim.serving.rows.row import GoneRow, Row

Ints = NDArray[np.int64]

_COLUMNS: Final = 7
_FIRST_ROOM: Final = 16


class DrawnRows:
    """Decoding sequences; columns are views of one table, and are written in place.

    ``draw``: returns the tokens of the next step of these requests, which have had so many steps since they joined.
    ``ids``: their requests; ``held``: tokens whose keys and values are kept; ``steps``: decoding iterations, and
    ``decoded`` their tokens, since the row joined; ``wanted``: tokens held when the answer is complete; ``blocks``:
    private blocks; ``shared``: tokens that lie in shared pieces. ``sum_held`` and ``least_left`` are kept up to date,
    since every iteration asks for them.
    """

    def __init__(self, block_tokens: int, draw: Callable[[Ints, Ints], Ints]) -> None:
        self.block_tokens, self.draw = block_tokens, draw
        self._table = np.zeros((_COLUMNS, _FIRST_ROOM), dtype=np.int64)
        self._stalls_s = np.zeros(_FIRST_ROOM)
        self._show(0)
        self.sum_held = self.least_left = self.num_blocks = 0

    def __len__(self) -> int:
        return self._count

    def add(self, row: Row) -> None:
        """Add a sequence at the end."""
        count = self._count
        if count == self._table.shape[1]:
            self._table = np.concatenate((self._table, np.zeros_like(self._table)), axis=1)
            self._stalls_s = np.concatenate((self._stalls_s, np.zeros_like(self._stalls_s)))
        blocks = -((row.shared - row.held) // self.block_tokens)
        self._table[:, count] = (row.request, row.held, 0, 0, row.held + row.left, blocks, row.shared)
        self._stalls_s[count] = row.stall_s
        self._show(count + 1)
        self.num_blocks += blocks
        self._count_again()

    def lacking(self, num_tokens: int) -> int:
        """Return the private blocks that they lack to hold so many tokens more each."""
        return int(np.add.reduce(np.maximum(self._needed(num_tokens) - self.blocks, 0)))

    def hold(self, num_tokens: int) -> None:
        """Count the private blocks that they lack for so many tokens more each as theirs."""
        np.maximum(self.blocks, self._needed(num_tokens), out=self.blocks)
        self.num_blocks = int(np.add.reduce(self.blocks))

    def loosen(self, num_tokens: int) -> int:
        """Leave them just the private blocks for so many tokens more each, and return how many they had beside."""
        self.blocks[:] = self._needed(num_tokens)
        before, self.num_blocks = self.num_blocks, int(np.add.reduce(self.blocks))
        return before - self.num_blocks

    def decode(self, num_steps: int) -> None:
        """Let so many decoding iterations pass; none yields more tokens than are wanted."""
        for _ in range(num_steps):
            tokens = np.minimum(self.draw(self.ids, self.steps), self.wanted - self.held)
            self.held += tokens
            self.steps += 1
            self.decoded += tokens
        self._count_again()

    def take_done(self) -> Sequence[GoneRow]:
        """Remove the sequences that want no more tokens, and return them in order."""
        return self._take(self.wanted == self.held) if self._count and not self.least_left else []

    def take_last(self) -> GoneRow:
        """Remove the sequence that joined last, and return it."""
        [gone] = self._take(np.arange(self._count) == self._count - 1)
        return gone

    def take_all(self) -> Sequence[GoneRow]:
        """Remove all sequences, and return them in order."""
        return self._take(np.ones(self._count, dtype=bool))

    def _take(self, which: NDArray[np.bool_]) -> Sequence[GoneRow]:
        columns = (self.ids, self.blocks, self.steps, self.decoded, self.stall_s)
        gone = [GoneRow(*values) for values in zip(*(column[which].tolist() for column in columns), strict=True)]
        (kept,) = (~which).nonzero()
        self._table[:, : len(kept)] = self._table[:, kept]
        self._stalls_s[: len(kept)] = self._stalls_s[kept]
        self._show(len(kept))
        self.num_blocks -= sum(row.blocks for row in gone)
        self._count_again()
        return gone

    def _needed(self, num_tokens: int) -> Ints:
        """Return the private blocks that each row needs to hold so many tokens more."""
        needed: Ints = -((self.shared - self.held - num_tokens) // self.block_tokens)
        return needed

    def _show(self, count: int) -> None:
        """Let the columns be views of the first so many rows of the table."""
        self._count = count
        shown = self._table[:, :count]
        self.ids, self.held, self.steps, self.decoded, self.wanted, self.blocks, self.shared = shown
        self.stall_s = self._stalls_s[:count]

    def _count_again(self) -> None:
        self.sum_held = int(np.add.reduce(self.held))
        self.least_left = int(np.minimum.reduce(self.wanted - self.held)) if self._count else 0
