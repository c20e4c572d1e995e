"""The description of an op in timelines of both backends."""

from math import prod

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from costmodels.kernels import KERNELS, TensorSpec, Work
from sim.plan.words.buffer import BYTES_PER_ELEMENT, Tier
from sim.plan.words.distinct_ops import unseeded
from sim.plan.words.op import Collective, CollectiveKind, Compute, Copy, Op, SizeTable
from sim.plan.words.program import Program, Task


class OpDescription(Struct, frozen=True):
    """The description of an op in a timeline.

    ``num_bytes``: bytes that a kernel reads and writes; or the bytes of a message or of a copy between tiers; or a
        collective's payload (all_reduce, broadcast, reduce: the tensor; all_gather: the gathered tensor;
        reduce_scatter: the tensor before it; all_to_all: the send buffer; barrier: 0).
    ``group``: the axes of a collective.
    """

    name: str
    kind: str
    num_bytes: int
    flop: float
    group: str


def describe(program: Program, task: Task, op: Op) -> OpDescription:
    """Return the description of one op in a timeline."""
    name = f"{task.name}/{op.name}"
    if isinstance(op, Compute):
        work = kernel_work(program, op)
        return OpDescription(name, "compute", work.num_bytes, work.flop, "")
    if isinstance(op, Collective):
        return OpDescription(name, str(op.kind), collective_bytes(program, op), 0.0, ",".join(op.axes))
    if isinstance(op, Copy):
        return OpDescription(name, "copy", payload_bytes(program, op.reads), 0.0, "")
    kind = type(op).__name__.lower()
    return OpDescription(name, kind, payload_bytes(program, (*op.reads, *op.writes)), 0.0, "")


def kernel_work(program: Program, op: Compute, *, fused: bool = True) -> Work:
    """Return the work of one call of a kernel; without ``fused``, in a framework that uses several kernels for it."""
    inputs = [buffer_spec(program, name) for name in op.reads]
    outputs = [buffer_spec(program, name) for name in op.writes]
    attributes = op.attributes if fused else {**op.attributes, "fused": False}
    return KERNELS[op.kernel].work(inputs, outputs, attributes)


def kernel_signature(program: Program, op: Compute) -> tuple[object, ...]:
    """Return a key that is equal for calls of a kernel with the same work: alike in all but names and seeds."""
    buffers = map(program.buffers.__getitem__, op.reads + op.writes)
    return (op.kernel, len(op.reads), tuple([(b.shape, b.dtype) for b in buffers]), unseeded(op.attributes))


def collective_bytes(program: Program, op: Collective) -> int:
    """Return a collective's payload in bytes."""
    if op.kind is CollectiveKind.BROADCAST:
        return payload_bytes(program, op.writes or op.reads)
    if op.span is not None:
        first, end = op.span
        return (end - first) * BYTES_PER_ELEMENT[program.buffers[op.reads[0]].dtype]
    return payload_bytes(program, op.writes if op.kind is CollectiveKind.ALL_GATHER else op.reads)


class PairBytes(Struct, frozen=True):
    """The bytes between each two members of an uneven all_to_all: ``rows`` of so many bytes. It can be a key."""

    rows: SizeTable
    row_bytes: int

    @property
    def array(self) -> NDArray[np.int64]:
        """Return the bytes by position, [source, target]."""
        return self.rows.array * self.row_bytes

    @property
    def total(self) -> int:
        """Return the bytes of all together."""
        return int(self.rows.array.sum()) * self.row_bytes


def pair_bytes(program: Program, op: Collective) -> PairBytes | None:
    """Return the bytes between each two members of an uneven all_to_all; None for any other collective."""
    if not op.sizes:
        return None
    assert op.dim is not None
    buffer = program.buffers[op.reads[0]]
    row_bytes = BYTES_PER_ELEMENT[buffer.dtype] * prod(n for dim, n in enumerate(buffer.shape) if dim != op.dim)
    return PairBytes(SizeTable.of(op.sizes), row_bytes)


def payload_bytes(program: Program, names: tuple[str, ...]) -> int:
    """Return the bytes of several buffers together."""
    return sum(map(program.bytes_of.__getitem__, names))


def runs_on_host(program: Program, op: Compute) -> bool:
    """Return whether a kernel's buffers lie in host memory: all of them do, or none."""
    buffers, reads, writes = program.buffers, op.reads, op.writes
    if reads and buffers[reads[0]].tier is Tier.HOST:
        return True
    return bool(writes) and buffers[writes[0]].tier is Tier.HOST


def buffer_spec(program: Program, name: str) -> TensorSpec:
    """Return a buffer's shape and element type for the cost models."""
    buffer = program.buffers[name]
    return TensorSpec(buffer.shape, buffer.dtype)
