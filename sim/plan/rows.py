"""Which tokens of a sequence the rows of a task's tensors are."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Rows:
    """``num_tokens`` of the ``num_total`` tokens of a sequence: equal runs of neighbours, from ``starts`` on.

    ``axes``: mesh axes that share out the sequence by these runs, each of whose ranks has ``starts`` of its own.
    Axes that a layout names besides share out the rows themselves, in order.
    """

    num_tokens: int
    num_total: int
    starts: tuple[int, ...] = (0,)
    axes: tuple[str, ...] = ()

    @property
    def attributes(self) -> Mapping[str, Any]:
        """Return what a kernel needs to know the rows' positions: nothing where they count from 0."""
        return {} if self.starts == (0,) else {"starts": self.starts}
