"""Tesseract: layers of squares that share out the batch and have the same weights (Wang et al. 2021)."""

from typing import ClassVar, Final

from sim.plan.functions.blocks.summa import Grid
from sim.plan.words.mesh import Axes
from sim.training.tensor.method import DepthSync, Sizes
from sim.training.tensor.rules import check_divisors, check_form
from sim.training.tensor.two_dimensional import COLUMN, CUT, ROW, TwoDimensional

DEPTH: Final = "tp_depth"
_BATCH: Final = "training.microbatch_size"


class TwoAndAHalfDimensional(TwoDimensional, frozen=True, kw_only=True):
    """Blocks on q x q ranks, d times: each square has other sequences."""

    depth_sync: DepthSync = "per_backward"
    """Sum weights' gradients over the squares in every backward, or once a step like those of replicas."""

    name: ClassVar[str] = "2.5d"

    @property
    def depth(self) -> int:
        """Return the number of squares."""
        return self.mesh[2] if len(self.mesh) > 2 else 1

    @property
    def own_axes(self) -> Axes:
        """Return squares, rows and columns; the ranks of a square are neighbours."""
        return ((DEPTH, self.depth), (ROW, self.side), (COLUMN, self.side))

    @property
    def side_axes(self) -> tuple[str, ...]:
        """Return the axes in the order of the sides of ``mesh``."""
        return (ROW, COLUMN, DEPTH)

    @property
    def sample_axes(self) -> tuple[str, ...]:
        """Return the axes of squares and of rows."""
        return (DEPTH, ROW)

    def check(self, sizes: Sizes, *, scatters: bool) -> None:
        """Raise SpecError unless squares are alike and no fewer than deep, and their sides divide what they cut."""
        check_form(self.name, self.mesh, "q q d")
        self.check_placement()
        cut = dict.fromkeys(CUT, self.side) | {_BATCH: self.side * self.depth}
        check_divisors(sizes, cut, self.mesh)

    @property
    def grid(self) -> Grid:
        """Return the ranks of a product, and the axis of the copies of its weight."""
        depth = DEPTH if self.depth_sync == "per_backward" and self.depth > 1 else ""
        return Grid(ROW, COLUMN, prefetch=self.overlap == "prefetch", depth=depth)
