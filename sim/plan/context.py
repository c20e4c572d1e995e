"""Attention over sequences that ranks share: context parallelism.

A sequence is cut into two chunks per rank. Rank i of n has chunks i and 2n-1-i, so that under the causal mask all ranks
have as many scores to compute, and everything but attention is done where the tokens are (Megatron-LM, context
parallelism; Grattafiori et al. 2024, Llama 3, section 3.3.2).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from sim.plan import functions as f
from sim.plan.buffer import Buffer, Kind
from sim.plan.layout import PARTIAL
from sim.plan.op import Compute
from sim.plan.rows import Rows
from sim.plan.tracing import Gradients, TaskTracer, Tensor


@dataclass(frozen=True, slots=True)
class ContextPart:
    """The two chunks of rank ``index`` of the ``degree`` ranks along ``axis`` that share ``num_total`` tokens."""

    axis: str
    index: int
    degree: int
    num_total: int

    @property
    def chunk(self) -> int:
        """Return how many tokens a chunk has."""
        return self.num_total // (2 * self.degree)

    @property
    def starts(self) -> tuple[int, int]:
        """Return where the two chunks begin."""
        return self.index * self.chunk, (2 * self.degree - 1 - self.index) * self.chunk

    @property
    def rows(self) -> Rows:
        """Return which tokens these are."""
        return Rows(2 * self.chunk, self.num_total, self.starts, (self.axis,))


# --- keys and values gathered ------------------------------------------------------------------------------


def gathering_attention(t: TaskTracer, name: str, qkv: Sequence[Tensor], part: ContextPart) -> Tensor:
    """Return causal attention of this rank's queries to all ranks' keys and values, gathered before.

    Kept are this rank's own keys and values; backward gathers again, and sums the gradients of all of them with a
    reduce_scatter. Each chunk of queries is a call of its own, its result copied to its place and kept for backward
    (Transformer Engine, AttnFuncWithCPAndKVAllGather, which has the two calls on streams of their own).
    """
    q, k, v = qkv
    everything = [_gathered(t, x, part, Kind.ACTIVATION, "all_gather") for x in (k, v)]
    results = []
    for chunk, start in enumerate(part.starts):
        own = rows_of(t, f"{name}.q", q, chunk * part.chunk, part.chunk, Kind.ACTIVATION)
        results.append(
            t.compute(
                name, "flash_attention", (own, *everything), (q.layout, f.heads_layout(q)), labels=("chunk", "lse"),
                context=start,
            )
        )  # fmt: skip
    y = put_together(t, name, [chunk for chunk, _ in results], Kind.ACTIVATION)

    def backward(r: TaskTracer, gradients: Gradients) -> Gradients:
        again = [_gathered(r, x, part, Kind.WORKSPACE, "regather") for x in (k, v)]
        sums = [_zeros_like(r, f"{name}.{label}_gradient", x) for label, x in zip("kv", again, strict=True)]
        parts = []
        for chunk, (start, result) in enumerate(zip(part.starts, results, strict=True)):
            dy, own = (
                rows_of(r, f"{name}.{label}", x, chunk * part.chunk, part.chunk, Kind.WORKSPACE)
                for label, x in (("output_gradient", f.only(gradients)), ("backward_q", q))
            )
            operands = (dy, own, *again, *result)
            parts.append(
                r.compute_and_update(
                    f"{name}.backward", "flash_attention_backward", operands, sums, q.layout, context=start
                )
            )
        dq = put_together(r, f"{name}.q_gradient", parts, Kind.WORKSPACE)
        return [dq, *(_own_sum(r, x, like, part) for x, like in zip(sums, (k, v), strict=True))]

    t.record((q, k, v), (y,), backward)
    return y


def _gathered(t: TaskTracer, x: Tensor, part: ContextPart, kind: Kind, label: str) -> Tensor:
    """Return x of all ranks in the order of the sequence."""
    dealt = t.gather(x, part.axis, 0, kind, label)
    order = [0] * (2 * part.degree)
    for index in range(part.degree):
        order[index], order[-1 - index] = 2 * index, 2 * index + 1
    return _reordered(t, dealt, order, kind)


def _own_sum(r: TaskTracer, gradient: Tensor, like: Tensor, part: ContextPart) -> Tensor:
    """Return the sum over ranks of this rank's chunks of a gradient in the order of the sequence."""
    order = [chunk for index in range(part.degree) for chunk in (index, 2 * part.degree - 1 - index)]
    dealt = _reordered(r, gradient.relaid(like.layout.with_(part.axis, PARTIAL)), order, Kind.WORKSPACE)
    return r.scatter_sum(dealt, part.axis, 0, like.layout, Kind.WORKSPACE)


def _reordered(t: TaskTracer, x: Tensor, order: Sequence[int], kind: Kind) -> Tensor:
    """Return x with its equal chunks of rows in another order: the i-th is that of number ``order[i]``."""
    (y,) = t.compute(f"{x.name}.reordered", "take_chunks", (x,), (x.layout,), kind=kind, order=tuple(order))
    return y


def _zeros_like(t: TaskTracer, name: str, x: Tensor) -> Tensor:
    (y,) = t.compute(name, "zeros", (), (x.layout,), kind=Kind.WORKSPACE, shapes=(x.shape,), dtype=x.dtype)
    return y


# --- rows ----------------------------------------------------------------------------------------------------


def rows_of(t: TaskTracer, name: str, x: Tensor, start: int, count: int, kind: Kind, dim: int = 0) -> Tensor:
    """Return a copy of ``count`` rows of x from ``start`` on, or of what lies along another dimension."""
    (y,) = t.compute(f"{name}.rows", "rows", (x,), (x.layout,), kind=kind, start=start, count=count, dim=dim)
    return y


def put_together(t: TaskTracer, name: str, parts: Sequence[Tensor], kind: Kind) -> Tensor:
    """Return a new tensor whose rows are those of ``parts``."""
    op_name, like = t.unique(f"{name}.output"), parts[0]
    shape = (sum(part.shape[0] for part in parts), *like.shape[1:])
    y = t.program.tensor(Buffer(op_name + t.part, shape, like.dtype, kind, t.scope), like.layout)
    start = 0
    for part in parts:
        reads = (part.name, y.name) if start else (part.name,)
        t.emit(Compute(t.unique(f"{op_name}.copy"), "append", reads, (y.name,), {"start": start, "rows": y.shape[0]}))
        start += part.shape[0]
    return y
