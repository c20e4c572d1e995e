"""The sequences of a batch that decode, in the order in which they joined: what a replica asks of them.

A row's keys and values lie in shared pieces of its prompt and in private blocks. Blocks are given to it ahead of the
steps that fill them.
"""

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from sim.serving.prices.steps import ContextTimes, Run


class Row(Struct, frozen=True, gc=False):
    """A sequence that joins, with just the private blocks that its tokens take.

    ``held``: tokens whose keys and values are kept, ``shared`` of them in shared pieces; ``left``: tokens that it still
    wants. ``stall_s``: the replica's clock of stalls.
    """

    request: int
    held: int
    left: int
    shared: int
    stall_s: float


class GoneRow(Struct, frozen=True, gc=False):
    """A sequence that has left, and the private blocks that it had.

    ``steps``: decoding iterations, and ``decoded`` their tokens, since it joined. ``stall_s``: the replica's clock of
    stalls when it joined.
    """

    request: int
    blocks: int
    steps: int
    decoded: int
    stall_s: float


class Rows(Protocol):
    """Decoding sequences."""

    def __len__(self) -> int:
        """Return the number of sequences."""

    @property
    def sum_held(self) -> int:
        """Return the tokens whose keys and values they keep together."""

    @property
    def num_blocks(self) -> int:
        """Return their private blocks."""

    def add(self, row: Row) -> None:
        """Add a sequence at the end."""

    def steps_left(self, most: int) -> int:
        """Return the steps until the first of them wants no more tokens, or fewer; at least 1, and at most ``most``."""

    def lacking(self, num_steps: int) -> int:
        """Return the private blocks that they lack for so many steps more."""

    def hold(self, num_steps: int) -> None:
        """Count the private blocks that they lack for so many steps more as theirs."""

    def loosen(self, num_steps: int) -> int:
        """Leave them just the private blocks for so many steps more, and return how many they had beside."""

    def run(self, times: ContextTimes, num_steps: int, draft_s: float) -> Run:
        """Return so many steps with their times. ``draft_s``: of the draft of each."""

    def decode(self, num_steps: int) -> None:
        """Let so many decoding iterations pass."""

    def take_done(self) -> Sequence[GoneRow]:
        """Remove the sequences that want no more tokens, and return them in order."""

    def take_last(self) -> GoneRow:
        """Remove the sequence that joined last, and return it."""

    def take_all(self) -> Sequence[GoneRow]:
        """Remove all sequences, and return them in order."""
