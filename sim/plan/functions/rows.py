"""The positions, in their sequence, of the rows of a task's tensors."""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct


class Rows(Struct, frozen=True):
    """The rows of a tensor: ``num_tokens`` of a sequence's ``num_total`` tokens, from ``start`` on or a rank's part.

    ``dealt_over``: a mesh axis of n ranks. The sequence has 2n equal chunks, and rank i has chunks i and 2n-1-i.
    ``cut_over``: mesh axes that split these chunks, or the whole sequence, in order: the i-th of n ranks has the i-th
    of n blocks. Other axes of a layout split a rank's rows, in order.
    ``runs``: the rows belong to several sequences, one after the other: first position and number of each one's rows.
    """

    num_tokens: int
    num_total: int
    start: int = 0
    dealt_over: str = ""
    cut_over: tuple[str, ...] = ()
    runs: tuple[tuple[int, int], ...] = ()

    @property
    def axes(self) -> tuple[str, ...]:
        """Return the mesh axes that split the sequence, axes with larger parts first."""
        return (*([self.dealt_over] if self.dealt_over else []), *self.cut_over)

    @property
    def attributes(self) -> Mapping[str, Any]:
        """Return the attributes with the rows' positions; empty if they count from 0."""
        named = {"start": self.start, "dealt_over": self.dealt_over, "cut_over": self.cut_over, "runs": self.runs}
        return {name: value for name, value in named.items() if value}
