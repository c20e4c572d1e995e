"""Sequences in equal blocks along one axis: rank i of n has block i of n."""

from sim.plan.functions.rows import Rows
from sim.plan.words.mesh import Axes
from sim.training.sequence.method import AXIS, SequenceMethod


class BlockMethod(SequenceMethod, frozen=True, kw_only=True):
    """A method whose ranks lie along one axis and have one block of a sequence each."""

    @property
    def axes(self) -> Axes:
        """Return the one axis."""
        return ((AXIS, self.degree),)

    def rows(self, num_tokens: int) -> Rows:
        """Return a rank's block."""
        return Rows(num_tokens // self.degree, num_tokens, cut_over=(AXIS,))

    @property
    def chunks(self) -> tuple[tuple[int, ...], ...]:
        """Return block i of rank i."""
        return tuple((index,) for index in range(self.degree))
