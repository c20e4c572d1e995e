"""The strategies of a search: a grid of all combinations that pass the rules of numbers."""

from collections.abc import Mapping, Sequence
from typing import Final, Literal

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from sim.training.errors import SpecError
from sim.training.pipeline.rules import TRAITS, Schedule, check_microbatches
from sim.training.pipeline.spec import Recompute

Ints = NDArray[np.int64]

OffloadChoice = Literal["none", "optimizer", "state"]
OFFLOADS: Final[tuple[OffloadChoice, ...]] = ("none", "optimizer", "state")
"""What lies on the hosts: nothing; beside ZeRO 2 gradients, master weights and moments (ZeRO-Offload); beside ZeRO 3
parameters as well (``memory.manager: angel_ptm``).
"""
OPTIMIZER_ON_HOST: Final = OFFLOADS.index("optimizer")
STATE_ON_HOST: Final = OFFLOADS.index("state")
_ZERO_STAGES: Final = (0, 2, 3)
"""The ZeRO stage that goes with each of ``OFFLOADS``; with the first any."""
RECOMPUTE: Final[tuple[Recompute, ...]] = ("none", "selective", "full")
SEARCHED: Final[tuple[Schedule, ...]] = (
    "1f1b", "interleaved_1f1b", "breadth_first", "zb_h1", "zb_h2", "zb_v", "dualpipe", "dualpipe_v",
)  # fmt: skip
"""The schedules that are searched where none is named."""
SCHEDULES: Final[tuple[Schedule, ...]] = (
    *SEARCHED, "chimera", "gpipe", "aiao", "zb_auto", "terapipe", "seq_1f1b",
)  # fmt: skip
"""The schedules that can be searched, in the order of their numbers."""
_CLOSED: Final[tuple[Schedule, ...]] = ("1f1b", "interleaved_1f1b", "seq_1f1b")
"""The schedules that have closed forms."""
ORDERED: Final = tuple(name for name in SCHEDULES if name not in _CLOSED)
"""The schedules that are estimated by their orders."""
ALL_FIRST: Final[tuple[Schedule, ...]] = ("breadth_first", "gpipe", "aiao", "terapipe")
"""The schedules with all forwards first: a recurrence over stages is exact, and no order has to be walked."""
SPLIT: Final[tuple[Schedule, ...]] = ("zb_h1", "zb_h2", "zb_v", "dualpipe", "dualpipe_v", "zb_auto")
"""The schedules that run the backward for weights on its own."""
SLICED: Final[tuple[Schedule, ...]] = ("terapipe", "seq_1f1b")
"""The schedules that send sequences in slices: estimates are those of whole sequences, as under gpipe and 1f1b."""
COPIED: Final[tuple[Schedule, ...]] = ("chimera", "dualpipe")
"""The schedules with two copies of the model."""
_WITHOUT_EXPERTS: Final[tuple[Schedule, ...]] = ("aiao", *SLICED)
"""The schedules under which ranks share out no experts."""
MOST_WALKED: Final = (32, 2)
"""Pipeline ranks, and stages per rank, of the schedules whose orders are walked: more take long to walk."""


class Strategy(Struct, frozen=True, order=True):
    """A way to train: degrees, schedule and stages per rank, ZeRO, micro-batch, recomputation."""

    tensor: int
    context: int
    pipeline: int
    schedule: Schedule
    virtual_stages: int
    data: int
    expert: int
    zero_stage: int
    offload: OffloadChoice
    microbatch_size: int
    recompute: Recompute


class Sizes(Struct, frozen=True):
    """The sizes that strategies have to divide. ``global_batch_size`` in sequences."""

    world_size: int
    global_batch_size: int
    num_layers: int


class Grid(Struct, frozen=True):
    """Strategies as columns of equal length; names are numbers of ``SCHEDULES``, ``OFFLOADS`` and ``RECOMPUTE``."""

    tensor: Ints
    context: Ints
    pipeline: Ints
    schedule: Ints
    virtual_stages: Ints
    data: Ints
    expert: Ints
    zero_stage: Ints
    offload: Ints
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
        same = np.ones(len(self), dtype=np.bool_)
        for name in Strategy.__struct_fields__:
            value = getattr(strategy, name)
            same &= getattr(self, name) == (_NAMED[name].index(value) if name in _NAMED else value)
        rows = np.flatnonzero(same)
        return int(rows[0]) if len(rows) else None

    def strategy(self, row: int) -> Strategy:
        """Return one row."""
        numbers = {name: int(getattr(self, name)[row]) for name in Strategy.__struct_fields__}
        schedule, recompute = SCHEDULES[numbers.pop("schedule")], RECOMPUTE[numbers.pop("recompute")]
        offload = OFFLOADS[numbers.pop("offload")]
        return Strategy(**numbers, schedule=schedule, recompute=recompute, offload=offload)

    def runs(self, schedules: Sequence[Schedule]) -> NDArray[np.bool_]:
        """Return which rows have one of some schedules."""
        return np.isin(self.schedule, [SCHEDULES.index(name) for name in schedules])


_NAMED: Final[Mapping[str, tuple[str, ...]]] = {
    "schedule": SCHEDULES, "recompute": RECOMPUTE, "offload": OFFLOADS
}  # fmt: skip
"""The names behind columns of numbers."""


def grid(choices: Mapping[str, Sequence[int]], sizes: Sizes) -> Grid:
    """Return all combinations of choices that fill the cluster, divide batch and layers, and have an order.

    ``choices``: values of each field of ``Strategy`` but ``data``, which is what the other degrees leave; where it has
    choices too, others are left out. Without replicas ZeRO changes nothing, so only the lowest stage is kept, or ZeRO 2
    and 3 with state on the host. On one pipeline rank no order waits, so only 1f1b is kept. All schedules but the
    first two go with ZeRO 0 and 1, and with pipelines of up to ``MOST_WALKED``, and some without ranks that share out
    experts.
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
    keep = fills & (sizes.global_batch_size % per_round == 0)
    keep &= (stages <= sizes.num_layers) | (stages == sizes.num_layers + 2)
    keep &= data % column["expert"] == 0
    offloads = column["offload"] > 0
    keep &= (data * column["context"] > 1) | offloads | (column["zero_stage"] == min(choices["zero_stage"]))
    keep &= ~offloads | (column["zero_stage"] == np.array(_ZERO_STAGES)[column["offload"]])
    walks = (column["pipeline"] <= MOST_WALKED[0]) & (column["virtual_stages"] <= MOST_WALKED[1])
    keep &= (column["schedule"] < 2) | ((column["zero_stage"] < 2) & walks)
    alone = np.isin(column["schedule"], [SCHEDULES.index(name) for name in _WITHOUT_EXPERTS])
    keep &= ~alone | (column["expert"] == 1)
    if "data" in choices:
        keep &= np.isin(data, np.array(choices["data"]))
    found = Grid(**column, data=data, num_microbatches=num_microbatches).rows(keep)
    return found.rows(_has_order(found))


def _has_order(found: Grid) -> NDArray[np.bool_]:
    """Return which rows have an order: by the rules of their schedule for ranks, stages and micro-batches."""
    columns = (found.schedule, found.pipeline, found.virtual_stages, found.num_microbatches)
    if not len(found):
        return np.zeros(0, dtype=np.bool_)
    shapes, which = np.unique(np.stack(columns), axis=1, return_inverse=True)
    allowed = [_is_allowed(SCHEDULES[at], *rest) for at, *rest in shapes.T.tolist()]
    return np.array(allowed)[which.ravel()]


def _is_allowed(schedule: Schedule, ranks: int, virtual_stages: int, num_microbatches: int) -> bool:
    traits = TRAITS[schedule]
    if not traits.fewest_stages <= virtual_stages <= traits.most_stages or (ranks == 1 and schedule != "1f1b"):
        return False
    try:
        check_microbatches(schedule, ranks, num_microbatches, virtual_stages=virtual_stages, group_size=0)
    except SpecError:
        return False
    return True
