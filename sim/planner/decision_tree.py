"""Galvatron's space: pipelines first, then decision trees of data and tensor parallelism in every stage."""

from collections.abc import Iterator
from typing import Literal

from msgspec import Struct

Paradigm = Literal["data", "sharded_data", "tensor"]
PARADIGMS: tuple[Paradigm, ...] = ("data", "sharded_data", "tensor")


class Tree(Struct, frozen=True):
    """One way to run a layer on its part of the devices.

    ``levels``: paradigms with their degrees, the outermost first; the last one has neighbouring devices.
    """

    pipeline: int
    levels: tuple[tuple[Paradigm, int], ...]

    def degree(self, paradigm: Paradigm) -> int:
        """Return the degree of a paradigm, 1 where the tree has none of it."""
        return dict(self.levels).get(paradigm, 1)

    @property
    def mixes_data(self) -> bool:
        """Return whether replicas of two kinds are nested. All of them sharded is as fast and takes less memory."""
        return self.degree("data") > 1 and self.degree("sharded_data") > 1


def decision_trees(num_devices: int, *, pruned: bool = True) -> tuple[Tree, ...]:
    """Return all trees of a power of two of devices, for every pipeline degree.

    Every level has another paradigm and a degree that is a power of two. ``pruned``: without trees that nest replicas
    of both kinds. Source: Miao et al., Galvatron, VLDB 2023.
    """
    if num_devices < 1 or num_devices & (num_devices - 1):
        message = f"degrees are powers of two, and so is the number of devices, not {num_devices}"
        raise ValueError(message)
    exponents = range(num_devices.bit_length())
    trees = (Tree(1 << k, levels) for k in exponents for levels in _levels(num_devices >> k, PARADIGMS))
    return tuple(tree for tree in trees if not (pruned and tree.mixes_data))


def _levels(num_devices: int, left: tuple[Paradigm, ...]) -> Iterator[tuple[tuple[Paradigm, int], ...]]:
    """Yield the levels of all trees on so many devices that use only some paradigms."""
    if num_devices == 1:
        yield ()
        return
    for paradigm in left:
        others = tuple(other for other in left if other != paradigm)
        for k in range(1, num_devices.bit_length()):
            for below in _levels(num_devices >> k, others):
                yield ((paradigm, 1 << k), *below)
