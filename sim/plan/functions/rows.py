"""Which tokens of a sequence the rows of a task's tensors are."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Rows:
    """``num_tokens`` of the ``num_total`` tokens of a sequence: from ``start`` on, or a rank's chunks.

    ``dealt_over``: a mesh axis of n ranks. The sequence has 2n equal chunks, and rank i has chunks i and 2n-1-i.
    Other axes of a layout share out these rows, in order.
    """

    num_tokens: int
    num_total: int
    start: int = 0
    dealt_over: str = ""

    @property
    def axes(self) -> tuple[str, ...]:
        """Return the mesh axes that deal out the sequence."""
        return (self.dealt_over,) if self.dealt_over else ()

    @property
    def attributes(self) -> Mapping[str, Any]:
        """Return the attributes with the rows' positions; empty if they count from 0."""
        if self.dealt_over:
            return {"dealt_over": self.dealt_over}
        return {"start": self.start} if self.start else {}
