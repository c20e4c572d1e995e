"""Sequences whose steps yield as many tokens as are drawn: a row each, as columns of one table."""

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from sim.serving.prices.steps import ContextTimes, Run, listed_steps
from sim.serving.rows.row import GoneRow, Row

Ints = NDArray[np.int64]

_COLUMNS: Final = 7
_FIRST_ROOM: Final = 16
_DRAWN_AHEAD: Final = 64
"""So many steps of all rows are drawn together."""


class DrawnRows:
    """Decoding sequences; columns are views of one table, and are written in place.

    ``positions``: tokens of a step, drafts included, which take blocks while they are verified. ``draw(ids, steps,
    count)``: returns the tokens [count, rows] of the next steps of these requests, which have had so many steps since
    they joined.
    ``ids``: their requests; ``held``: tokens whose keys and values are kept; ``steps``: decoding iterations, and
    ``decoded`` their tokens, since the row joined; ``wanted``: tokens held when the answer is complete; ``blocks``:
    private blocks; ``shared``: tokens that lie in shared pieces.
    """

    def __init__(self, block_tokens: int, positions: int, draw: Callable[[Ints, Ints, int], Ints]) -> None:
        self.block_tokens, self.positions, self.draw = block_tokens, positions, draw
        self._table = np.zeros((_COLUMNS, _FIRST_ROOM), dtype=np.int64)
        self._stalls_s = np.zeros(_FIRST_ROOM)
        self._show(0)
        self.num_blocks = 0
        self._known: Ints | None = None

    def __len__(self) -> int:
        return self._count

    @property
    def sum_held(self) -> int:
        """Return the tokens whose keys and values they keep together."""
        return int(np.add.reduce(self.held))

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
        self._known = None

    def steps_left(self, most: int) -> int:
        """Return the steps until the first of them wants no more tokens, of those that are drawn already."""
        done = (self._ahead[1:] == self.wanted - self.held).any(axis=1)
        first = int(done.argmax()) + 1 if done.any() else len(done)
        return min(first, most)

    def lacking(self, num_steps: int) -> int:
        """Return the private blocks that they lack for so many steps more."""
        return int(np.add.reduce(np.maximum(self._needed(num_steps) - self.blocks, 0)))

    def hold(self, num_steps: int) -> None:
        """Count the private blocks that they lack for so many steps more as theirs."""
        np.maximum(self.blocks, self._needed(num_steps), out=self.blocks)
        self.num_blocks = int(np.add.reduce(self.blocks))

    def loosen(self, num_steps: int) -> int:
        """Leave them just the private blocks for so many steps more, and return how many they had beside."""
        self.blocks[:] = self._needed(num_steps)
        before, self.num_blocks = self.num_blocks, int(np.add.reduce(self.blocks))
        return before - self.num_blocks

    def run(self, times: ContextTimes, num_steps: int, draft_s: float) -> Run:
        """Return so many steps with their times. ``draft_s``: of the draft of each."""
        held = self.sum_held + np.add.reduce(self._ahead[:num_steps], axis=1)
        return listed_steps(times, held / self._count + self.positions, draft_s)

    def decode(self, num_steps: int) -> None:
        """Let so many decoding iterations pass, not more than ``steps_left``."""
        ahead = self._ahead
        tokens = ahead[num_steps]
        self.held += tokens
        self.steps += num_steps
        self.decoded += tokens
        self._known = ahead[num_steps:] - tokens if len(ahead) > num_steps + 1 else None

    def take_done(self) -> Sequence[GoneRow]:
        """Remove the sequences that want no more tokens, and return them in order."""
        done = self.wanted == self.held
        return self._take(done) if done.any() else []

    def take_last(self) -> GoneRow:
        """Remove the sequence that joined last, and return it."""
        [gone] = self._take(np.arange(self._count) == self._count - 1)
        return gone

    def take_all(self) -> Sequence[GoneRow]:
        """Remove all sequences, and return them in order."""
        return self._take(np.ones(self._count, dtype=bool))

    @property
    def _ahead(self) -> Ints:
        """Return the tokens of each row after 0, 1, 2, ... further steps [steps + 1, rows], not more than it wants."""
        if self._known is None:
            drawn = self.draw(self.ids, self.steps, _DRAWN_AHEAD).cumsum(axis=0)
            capped = np.minimum(drawn, self.wanted - self.held)
            self._known = np.concatenate((np.zeros_like(capped[:1]), capped))
        return self._known

    def _take(self, which: NDArray[np.bool_]) -> Sequence[GoneRow]:
        columns = (self.ids, self.blocks, self.steps, self.decoded, self.stall_s)
        gone = [GoneRow(*values) for values in zip(*(column[which].tolist() for column in columns), strict=True)]
        (kept,) = (~which).nonzero()
        self._table[:, : len(kept)] = self._table[:, kept]
        self._stalls_s[: len(kept)] = self._stalls_s[kept]
        self._show(len(kept))
        self.num_blocks -= sum(row.blocks for row in gone)
        self._known = None if self._known is None else self._known[:, kept]
        return gone

    def _needed(self, num_steps: int) -> Ints:
        """Return the private blocks that each row needs for so many steps more."""
        more = self._ahead[num_steps - 1] + self.positions if num_steps else 0
        needed: Ints = -((self.shared - self.held - more) // self.block_tokens)
        return needed

    def _show(self, count: int) -> None:
        """Let the columns be views of the first so many rows of the table."""
        self._count = count
        shown = self._table[:, :count]
        self.ids, self.held, self.steps, self.decoded, self.wanted, self.blocks, self.shared = shown
        self.stall_s = self._stalls_s[:count]
