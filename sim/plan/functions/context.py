"""Attention with gathered keys and values, for sequences that are split over ranks.

With two chunks of the sequence per rank, all ranks run one program: kernels compute a rank's chunks from its place
along the axis. With one block per rank, the causal mask leaves rank i only the keys of i + 1 ranks. So every place
along the axis has a program of its own.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from sim.plan.functions import basic as f
from sim.plan.functions.tracing import Gradients, TaskTracer, Tensor
from sim.plan.words.buffer import Kind
from sim.plan.words.layout import PARTIAL


class SharedSequence(Struct, frozen=True):
    """A sequence whose tokens are split over ``degree`` = n ranks along ``axis``.

    ``zigzag``: the sequence has 2n chunks, and rank i has chunks i and 2n-1-i. Otherwise it has n blocks, and rank i
    has block i.
    ``causal``: a query sees the keys up to its own; otherwise it sees all keys.
    """

    axis: str
    degree: int
    zigzag: bool = True
    causal: bool = True

    @property
    def gathers_in_order(self) -> bool:
        """Return whether gathered keys can stay in rank order: it is the sequence's order, or order does not matter."""
        return not (self.zigzag and self.causal)

    def place(self, t: TaskTracer) -> int:
        """Return the place along the axis of the ranks of a program; the program must be for one place only."""
        return t.program.role[self.axis]

    def mask(self, t: TaskTracer, own_tokens: int) -> Mapping[str, Any]:
        """Return the kernel attributes that state which gathered keys a rank's queries see."""
        if not self.causal:
            return f.masked(causal=False)
        return {"dealt_over": self.axis} if self.zigzag else {"context": self.place(t) * own_tokens}


def gathering_attention(t: TaskTracer, name: str, qkv: Sequence[Tensor], shared: SharedSequence) -> Tensor:
    """Return attention of this rank's queries to the gathered keys and values of all ranks.

    Only this rank's own keys and values are kept. Backward gathers them again, and sums the gradients of all keys and
    values with a reduce_scatter. The kernel's result is kept for backward, and a copy of it is the output. Source:
    Transformer Engine, AttnFuncWithCPAndKVAllGather. It has two calls, one per chunk of queries, each on a stream of
    its own; here they are one call.
    """
    q, k, v = qkv
    everything = [_gathered(t, x, shared, Kind.ACTIVATION, "all_gather") for x in (k, v)]
    layouts, mask = (q.layout, f.heads_layout(q)), shared.mask(t, q.shape[0])
    result = t.compute(name, "flash_attention", (q, *everything), layouts, labels=("result", "lse"), **mask)
    y = _copied(t, f"{name}.output", result[0], Kind.ACTIVATION)

    def backward(r: TaskTracer, gradients: Gradients) -> Gradients:
        again = [_gathered(r, x, shared, Kind.WORKSPACE, "regather") for x in (k, v)]
        sums = [zeros_like(r, f"{name}.{label}_gradient", x) for label, x in zip("kv", again, strict=True)]
        operands = (f.only(gradients), q, *again, *result)
        part = r.compute_and_update(f"{name}.backward", "flash_attention_backward", operands, sums, q.layout, **mask)
        dq = _copied(r, f"{name}.q_gradient", part, Kind.WORKSPACE)
        return [dq, *(_own_sum(r, x, like, shared) for x, like in zip(sums, (k, v), strict=True))]

    t.record((q, k, v), (y,), backward)
    return y


def _gathered(t: TaskTracer, x: Tensor, shared: SharedSequence, kind: Kind, label: str) -> Tensor:
    """Return x gathered from all ranks, in the order of the sequence."""
    dealt = t.gather(x, shared.axis, 0, kind, label)
    if shared.gathers_in_order:
        return dealt
    order = [0] * (2 * shared.degree)
    for index in range(shared.degree):
        order[index], order[-1 - index] = 2 * index, 2 * index + 1
    return _reordered(t, dealt, order, kind)


def _own_sum(r: TaskTracer, gradient: Tensor, like: Tensor, shared: SharedSequence) -> Tensor:
    """Return the sum over ranks of this rank's chunks of a gradient that is in the order of the sequence."""
    dealt = gradient.relaid(like.layout.with_(shared.axis, PARTIAL))
    if not shared.gathers_in_order:
        order = [chunk for index in range(shared.degree) for chunk in (index, 2 * shared.degree - 1 - index)]
        dealt = _reordered(r, dealt, order, Kind.WORKSPACE)
    return r.scatter_sum(dealt, shared.axis, 0, like.layout, Kind.WORKSPACE)


def _reordered(t: TaskTracer, x: Tensor, order: Sequence[int], kind: Kind) -> Tensor:
    """Return x with its equal chunks of rows in another order: chunk i of the result is chunk ``order[i]`` of x."""
    (y,) = t.compute(f"{x.name}.reordered", "take_chunks", (x,), (x.layout,), kind=kind, order=tuple(order))
    return y


def _copied(t: TaskTracer, name: str, x: Tensor, kind: Kind) -> Tensor:
    (y,) = t.compute(name, "rows", (x,), (x.layout,), kind=kind, start=0, count=x.shape[0])
    return y


def zeros_like(t: TaskTracer, name: str, x: Tensor) -> Tensor:
    """Return zeros with the shape and type of x, to which a backward adds."""
    (y,) = t.compute(name, "zeros", (), (x.layout,), kind=Kind.WORKSPACE, shapes=(x.shape,), dtype=x.dtype)
    return y
