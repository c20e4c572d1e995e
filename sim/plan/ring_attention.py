"""Attention with keys and values that go around a ring of ranks, one step a block (Liu et al. 2023, Ring Attention).

A rank has two chunks of the sequence (``sim.plan.context``). At step j it holds the keys and values of the rank j
places before it. Those of a rank earlier in the sequence have one chunk that all its queries see, and one that none
sees; those of a later rank are seen by its second chunk of queries alone. Either way half of the scores are left, and
no mask (Transformer Engine, AttnFuncWithCPAndKVP2P).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sim.plan import functions as f
from sim.plan.buffer import Buffer, Kind
from sim.plan.context import ContextPart, rows_of
from sim.plan.op import Direction, Recv, Send
from sim.plan.tracing import Gradients, TaskTracer, Tensor


def ring_attention(t: TaskTracer, name: str, qkv: Sequence[Tensor], part: ContextPart) -> Tensor:
    """Return causal attention of this rank's queries to the keys and values of all ranks.

    While a rank computes with what it has, that goes on to the next rank, and more comes from the one before; the
    results of all steps are merged by their log-sum-exp. Kept are the keys and values of the last step: backward passes
    them back, and after each pair the sum of its gradients.
    """
    q, *held = qkv
    y = lse = q
    for step in range(part.degree):
        block = _Block(part, step)
        coming = _pass_on(t, block.label(name), held, part.axis, Kind.ACTIVATION) if block.is_followed else held
        operands = (block.queries(t, name, q), *(block.keys(t, name, x) for x in held))
        result = t.compute(
            block.label(name), "flash_attention", operands, (q.layout, f.heads_layout(q)), labels=("", "lse"),
            **block.attributes,
        )  # fmt: skip
        if step == 0:
            y, lse = result
        else:
            t.update(f"{block.label(name)}.merge", "merge_attention", result, (y, lse), start=block.first_query)
        last, held = held, coming

    def backward(r: TaskTracer, gradients: Gradients) -> Gradients:
        return _backward(r, f"{name}.backward", part, (f.only(gradients), q, *last, y, lse))

    t.record(qkv, (y,), backward)
    return y


def _backward(r: TaskTracer, name: str, part: ContextPart, saved: Sequence[Tensor]) -> Gradients:
    """Return the gradients of q, k and v, of what the forward's last step read and what all of it gave.

    Sums of the gradients of keys and values follow these one step behind: they are needed once a step is computed.
    """
    dy, q, *held, y, lse = saved
    dq: Tensor | None = None
    sums: list[Tensor | None] = [None, None]
    for step in reversed(range(part.degree)):
        block = _Block(part, step)
        label = block.label(name)
        coming = _pass_on(r, label, held, part.axis, Kind.WORKSPACE, -1) if step else held
        dy_part, q_part, y_part = (
            block.queries(r, f"{name}.{what}", x) for what, x in (("dy", dy), ("q", q), ("y", y))
        )
        k, v = (block.keys(r, f"{name}.{what}", x) for what, x in zip("kv", held, strict=True))
        parts = r.compute(
            label, "flash_attention_backward", (dy_part, q_part, k, v, y_part, block.queries(r, f"{name}.lse", lse, 2)),
            (q.layout, k.layout, v.layout), labels=("q", "k", "v"), kind=Kind.WORKSPACE, **block.attributes,
        )  # fmt: skip
        dq = _added(r, f"{label}.q_sum", parts[0], dq, block.first_query, q.shape[0])
        if block.is_followed:
            sums = [_receive(r, f"{label}.sum", x, part.axis, 1, Kind.WORKSPACE, Direction.BACKWARD) for x in held]
        totals = [
            _added(r, f"{label}.{what}_sum", x, total, 0, q.shape[0])
            for what, x, total in zip("kv", parts[1:], sums, strict=True)
        ]
        if step:
            there = _Block(part, step - 1).label(name)
            for total in totals:
                _send(r, f"{there}.sum", total, part.axis, -1, Direction.BACKWARD)
        held = coming
    return [dq, *totals]


@dataclass(frozen=True, slots=True)
class _Block:
    """What a rank computes at one step: its own part at step 0, else half of the scores of two parts."""

    part: ContextPart
    step: int

    def label(self, name: str) -> str:
        """Return what the step's ops are called."""
        return f"{name}.{self.step}" if self.step else name

    @property
    def is_followed(self) -> bool:
        """Return whether there is another step after this one."""
        return self.step + 1 < self.part.degree

    @property
    def is_of_later(self) -> bool:
        """Return whether the keys are those of a rank later in the sequence, which the second chunk alone sees."""
        return self.step > self.part.index

    @property
    def first_query(self) -> int:
        """Return the first row of queries that sees any key."""
        return self.part.chunk if self.is_of_later else 0

    @property
    def attributes(self) -> Mapping[str, Any]:
        """Return what the attention kernels are told."""
        return {"causal": False} if self.step else {}

    def queries(self, t: TaskTracer, name: str, x: Tensor, dim: int = 0) -> Tensor:
        """Return what belongs to the queries that see any key, along a dimension of x."""
        if not self.is_of_later:
            return x
        return rows_of(t, self.label(name), x, self.part.chunk, self.part.chunk, Kind.WORKSPACE, dim)

    def keys(self, t: TaskTracer, name: str, x: Tensor) -> Tensor:
        """Return the rows of keys or values that any query sees."""
        if self.step == 0 or self.is_of_later:
            return x
        return rows_of(t, self.label(name), x, 0, self.part.chunk, Kind.WORKSPACE)


def _added(t: TaskTracer, name: str, x: Tensor, total: Tensor | None, start: int, rows: int) -> Tensor:
    """Return a total of so many rows with x added from ``start`` on: the one given, or a new one."""
    if total is None and x.shape[0] == rows:
        return x
    if total is None:
        return t.compute(name, "add_rows", (x,), (x.layout,), kind=Kind.WORKSPACE, start=start, rows=rows)[0]
    t.update(name, "add_rows", (x,), (total,), start=start, rows=rows)
    return total


# --- messages --------------------------------------------------------------------------------------------------


def _pass_on(
    t: TaskTracer, name: str, tensors: Sequence[Tensor], axis: str, kind: Kind, offset: int = 1
) -> list[Tensor]:
    """Send tensors to the rank ``offset`` places on; return the like ones that come from the other side."""
    coming = []
    for label, x in zip("kv", tensors, strict=True):
        _send(t, f"{name}.{label}", x, axis, offset, Direction.FORWARD)
        coming.append(_receive(t, f"{name}.{label}", x, axis, -offset, kind, Direction.FORWARD))
    return coming


def _send(t: TaskTracer, name: str, x: Tensor, axis: str, offset: int, direction: Direction) -> None:
    """Send a tensor to the rank ``offset`` places on; keys and values go forward, their gradients backward."""
    t.emit(Send(t.unique(f"{name}.send"), axis, offset, direction, (x.name,), f"{axis}_send_{direction}"))


def _receive(
    t: TaskTracer, name: str, like: Tensor, axis: str, offset: int, kind: Kind, direction: Direction
) -> Tensor:
    """Return a tensor like another, from the rank ``offset`` places on."""
    op_name = t.unique(f"{name}.recv")
    y = t.program.tensor(Buffer(op_name + t.part, like.shape, like.dtype, kind, t.scope), like.layout)
    t.emit(Recv(op_name, axis, offset, direction, (y.name,), f"{axis}_recv_{direction}"))
    return y
