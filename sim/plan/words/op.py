"""Operations on buffers, each on one stream of one rank."""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from functools import cached_property
from typing import Any, Final

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace
from numpy.typing import NDArray

from sim.plan.words.mesh import Mesh

SEED: Final = "salt"
"""The attribute of kernels that tells the random numbers of one layer from those of another."""


class CollectiveKind(StrEnum):
    """The kinds of collective, in torch.distributed's spelling."""

    ALL_REDUCE = "all_reduce"
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    BROADCAST = "broadcast"
    REDUCE = "reduce"
    ALL_TO_ALL = "all_to_all"
    BARRIER = "barrier"


ROOTED: Final = (CollectiveKind.BROADCAST, CollectiveKind.REDUCE)


class Reduction(StrEnum):
    """The reduction of a collective over the ranks' terms."""

    SUM = "sum"
    MAX = "max"


class Direction(StrEnum):
    """The traffic of a message: of the pipeline, or of moving state. Each has its own streams."""

    FORWARD = "forward"
    BACKWARD = "backward"
    ADJUSTMENT = "adjustment"


class Compute(Struct, frozen=True):
    """A kernel: ``reads`` are its inputs in order, ``writes`` its outputs in order.

    A buffer in both is updated in place.
    """

    name: str
    kernel: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    stream: str = "compute"


class SizeTable(tuple[tuple[int, ...], ...]):
    """The rows that each position of a group sends to each. What keys, buffers and prices ask of it is found once."""

    @classmethod
    def of(cls, sizes: Iterable[tuple[int, ...]]) -> "SizeTable":
        """Return sizes as a table: themselves if they are one."""
        return sizes if isinstance(sizes, SizeTable) else cls(sizes)

    @cached_property
    def back(self) -> "SizeTable":
        """Return the rows in the other direction."""
        found = SizeTable(zip(*self, strict=True))
        found.__dict__["back"] = self
        return found

    @cached_property
    def array(self) -> NDArray[np.int64]:
        """Return the rows as an array [source, target], which is not to be changed."""
        return np.array(self, dtype=np.int64)

    @cached_property
    def most_sent(self) -> int:
        """Return the most rows that a position sends."""
        return max(map(sum, self))

    @cached_property
    def _hash(self) -> int:
        return super().__hash__()

    def __hash__(self) -> int:
        return self._hash


class Collective(Struct, frozen=True):
    """Communication in the group of ranks that differ from this rank only along ``axes``.

    ``members``: the positions of the group that take part; empty: all. For example, the tied embedding of first and
        last stage has a group over ``pp`` with members 0 and P-1.

    With ``dim``, one buffer is gathered or scattered along that dimension. Without it the buffers count as one flat
    vector, in order:

    * all_reduce works in place (``reads == writes``). ``span``: the elements to sum, (first, one past the last); the
      others stay; None: all elements.
    * reduce_scatter reads many buffers and writes this rank's flat piece, zero-padded to equal pieces. In place, this
      rank's piece of the vector becomes the sum, and the other pieces become undefined.
    * all_gather reads the flat piece and writes many buffers. In place, the other pieces come from their ranks.

    broadcast and reduce have a ``root``, a position in the group. broadcast writes the root's buffer on all ranks;
    other ranks need not read. reduce writes the sum at the root and zeros elsewhere, which makes the two conjugates of
    each other; other ranks need not write. ``root_only``: the written buffers of other ranks keep their contents, so
    that reduces with other roots can fill the same buffer.

    all_to_all cuts its buffer along ``dim``, sends slice t to position t, and joins the received slices along
    ``join_dim`` (None: along ``dim``), in group order. Slices are equal without ``sizes``. With it position s sends
    ``sizes[s][t]`` rows of ``dim`` to position t. If positions of one role have different numbers of rows, its buffers
    have the largest number. Rows beyond a rank's own are not sent, and are zero after a receive. ``levelled``: every
    position stands for the busiest one, and its links are in use as long as that one's; such a plan is not executed.

    A barrier moves no data: no member's next op on this stream starts before all members have arrived.
    """

    name: str
    kind: CollectiveKind
    axes: tuple[str, ...]
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    stream: str
    reduction: Reduction = Reduction.SUM
    dim: int | None = None
    members: tuple[int, ...] = ()
    root: int = 0
    root_only: bool = False
    join_dim: int | None = None
    sizes: tuple[tuple[int, ...], ...] = ()
    levelled: bool = False
    span: tuple[int, int] | None = None

    def group(self, mesh: Mesh, rank: int) -> tuple[int, ...]:
        """Return the ranks of the group of ``rank``, in group order."""
        group = mesh.group(rank, self.axes)
        return tuple(group[i] for i in self.members) if self.members else group

    def group_size(self, mesh: Mesh) -> int:
        """Return the number of ranks of a group."""
        return len(self.members) or mesh.degree(*self.axes)


class Send(Struct, frozen=True):
    """A message to the rank ``offset`` steps away along ``axis`` (wrapping around).

    A rank's k-th send with one (axis, offset, direction) meets the peer's k-th receive with (axis, -offset, direction).
    """

    name: str
    axis: str
    offset: int
    direction: Direction
    reads: tuple[str, ...]
    stream: str
    writes: tuple[str, ...] = ()


class Recv(Struct, frozen=True):
    """The receipt of a message from the rank ``offset`` steps away along ``axis`` (wrapping around)."""

    name: str
    axis: str
    offset: int
    direction: Direction
    writes: tuple[str, ...]
    stream: str
    reads: tuple[str, ...] = ()


class Copy(Struct, frozen=True):
    """A copy of buffers from one tier of memory to another, over the link between device and host, or host and drives.

    The buffers in ``reads`` count as one flat vector, and so do those in ``writes``. Both have the same length and
    type.
    """

    name: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    stream: str


Channel = tuple[str, int, str, bool]
"""A queue of messages: their axis, offset and direction, and whether it is the sending end."""


def channel_of(op: Send | Recv) -> Channel:
    """Return the channel of a message."""
    return op.axis, op.offset, op.direction, isinstance(op, Send)


Op = Compute | Collective | Send | Recv | Copy
LinkOp = Collective | Send | Copy
"""Ops that move bytes over links."""


def reads_from_outside(ops: Iterable[Op]) -> Mapping[str, Op]:
    """Return the buffers that ops, in this order, read before they write them, each with the op that reads it first."""
    found: dict[str, Op] = {}
    written: set[str] = set()
    for op in ops:
        for name in op.reads:
            if name not in written and name not in found:
                found[name] = op
        written.update(op.writes)
    return found


def on_other_buffers(op: Op, names: Mapping[str, str]) -> Op:
    """Return an op with buffers renamed by ``names``; other buffers stay."""
    reads, writes = (tuple(names.get(name, name) for name in side) for side in (op.reads, op.writes))
    return replace(op, reads=reads, writes=writes)
