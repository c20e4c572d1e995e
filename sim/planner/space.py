"""The strategies of a search: a grid of all combinations that pass the rules of numbers."""

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from sim.training.pipeline.spec import Recompute

Ints = NDArray[np.int64]

RECOMPUTE: Final[tuple[Recompute, ...]] = ("none", "selective", "full")


class Strategy(Struct, frozen=True, order=True):
    """A way to train: degrees, stages per rank (1: 1f1b, more: interleaved_1f1b), ZeRO, micro-batch, recomputation."""

    tensor: int
    context: int
    pipeline: int
    virtual_stages: int
    data: int
    expert: int
    zero_stage: int
    microbatch_size: int
    recompute: Recompute


class Sizes(Struct, frozen=True):
    """The sizes that strategies have to divide. ``global_batch_size`` in sequences."""

    world_size: int
    global_batch_size: int
    num_layers: int


class Grid(Struct, frozen=True):
    """Strategies as columns of equal length; ``recompute`` numbers ``RECOMPUTE``."""

    tensor: Ints
    context: Ints
    pipeline: Ints
    virtual_stages: Ints
    data: Ints
    expert: Ints
    zero_stage: Ints
    microbatch_size: Ints
    recompute: Ints
    num_microbatches: Ints

    def __len__(self) -> int:
        return len(self.tensor)

    def rows(self, kept: NDArray[np.bool_]) -> "Grid":
        """Return the rows of a mask."""
        return Grid(*(getattr(self, name)[kept] for name in self.__struct_fields__))

    def find(self, strategy: Strategy) -> int | None:
        """Return the row of a strategy, None where it is not in the grid."""
        columns = [name for name in Strategy.__struct_fields__ if name != "recompute"]
        same = self.recompute == RECOMPUTE.index(strategy.recompute)
        for name in columns:
            same = same & (getattr(self, name) == getattr(strategy, name))
        rows = np.flatnonzero(same)
        return int(rows[0]) if len(rows) else None

    def strategy(self, row: int) -> Strategy:
        """Return one row."""
        columns = {name: int(getattr(self, name)[row]) for name in Strategy.__struct_fields__ if name != "recompute"}
        return Strategy(**columns, recompute=RECOMPUTE[self.recompute[row]])


def grid(choices: Mapping[str, Sequence[int]], sizes: Sizes) -> Grid:
    """Return all combinations of choices that fill the cluster and divide batch, layers and micro-batches.

    ``choices``: values of each field of ``Strategy`` but ``data``, which is what the other degrees leave; where it has
    choices too, others are left out. Without replicas ZeRO changes nothing, so only the lowest stage is kept.
    """
    names = [name for name in Strategy.__struct_fields__ if name != "data"]
    axes = np.meshgrid(*[np.array(choices[name], dtype=np.int64) for name in names], indexing="ij")
    column = {name: axis.ravel() for name, axis in zip(names, axes, strict=True)}
    product = column["tensor"] * column["context"] * column["pipeline"]
    fills = sizes.world_size % product == 0
    data = np.maximum(sizes.world_size // product, 1)
    per_round = data * column["microbatch_size"]
    num_microbatches = sizes.global_batch_size // per_round
    stages = column["pipeline"] * column["virtual_stages"]
    interleaves = column["virtual_stages"] > 1
    ranks = column["pipeline"]
    keep = fills & (sizes.global_batch_size % per_round == 0)
    keep &= (stages <= sizes.num_layers) | (stages == sizes.num_layers + 2)
    keep &= ~interleaves | ((ranks > 1) & (num_microbatches % ranks == 0))
    keep &= data % column["expert"] == 0
    keep &= (data * column["context"] > 1) | (column["zero_stage"] == min(choices["zero_stage"]))
    if "data" in choices:
        keep &= np.isin(data, np.array(choices["data"]))
    kept = {name: values[keep] for name, values in column.items()}
    return Grid(**kept, data=data[keep], num_microbatches=num_microbatches[keep])
