"""Ring self-attention: keys, then values go around a ring; the scores of all keys are kept (Li et al. 2021).

Each of N ranks has one block of a sequence. While the keys of all ranks pass by, a rank computes the scores of its
queries with all keys, [b, n, s/N, s]. After the softmax the values pass by. In backward, values and then keys go around
again. An all_reduce over the full length sums the gradients of all keys and values, and each rank takes its block.
"""

from collections.abc import Sequence
from math import sqrt
from typing import Any

from msgspec import Struct

from sim.plan.functions import basic as f
from sim.plan.functions.ring import Ring
from sim.plan.functions.tracing import Gradients, TaskTracer, Tensor
from sim.plan.words.buffer import Kind
from sim.plan.words.layout import PARTIAL, Layout
from sim.plan.words.op import Direction

Operands = tuple[Tensor, Tensor]


class _Blocks(Struct, frozen=True):
    """The ring of ``degree`` ranks along ``axis``. Each rank has one block of the sequence."""

    axis: str
    degree: int

    def products(
        self, t: TaskTracer, name: str, kernel: str, operands: Operands, layout: Layout, kind: Kind, factor: float
    ) -> Tensor:
        """Return the products of a tensor with the blocks of all ranks, summed or side by side, as the kernel does.

        ``operands``: the tensor, and this rank's block of the tensor that goes around.
        """
        x, held = operands
        ring, y, shared = Ring(self.axis, Direction.FORWARD), list[Tensor](), {"ring": self.axis, "blocks": self.degree}
        for step in range(self.degree):
            label, coming = f"{name}.{step}" if step else name, held
            if step + 1 < self.degree:
                ring.send(t, label, (held,), 1)
                (coming,) = ring.receive(t, f"{label}.recv", (held,), (".block",), -1, kind)
            told: dict[str, Any] = {**shared, "step": step, "factor": factor}
            if y:
                t.update(label, kernel, (x, held), y, **told)
            else:
                y += t.compute(label, kernel, (x, held), (layout,), kind=kind, **told)
            held = coming
        return y[0]

    def own_sum(self, r: TaskTracer, name: str, weights: Tensor, x: Tensor, like: Tensor, factor: float) -> Tensor:
        """Return this rank's block of the sum over ranks of weights^T x, a gradient of all keys or values."""
        (partial,) = r.compute(
            name, "transposed_context", (weights, x), (like.layout.with_(self.axis, PARTIAL),), kind=Kind.WORKSPACE,
            groups=like.shape[2], factor=factor,
        )  # fmt: skip
        return f.sliced(r, r.all_reduce(partial, self.axis), self.axis, 0, Kind.WORKSPACE).relaid(like.layout)


def ring_self_attention(
    t: TaskTracer,
    name: str,
    qkv: Sequence[Tensor],
    axis: str,
    *,
    causal: bool = True,
    dropout: float = 0.0,
    cap: float = 0.0,
) -> Tensor:
    """Return attention of this rank's queries to the keys and values of all ranks. Scores are kept for backward.

    ``dropout``: probability that a weight is dropped. ``cap``: soft limit of scores; 0: no limit.
    """
    q, k, v = qkv
    blocks = _Blocks(axis, t.mesh.degree(axis))
    scores = _scores(t, f"{name}.scores", q, k, blocks)
    if cap:
        scores = f.elementwise(t, f"{name}.soft_cap", "soft_cap", scores, cap=cap)
    probabilities = f.causal_softmax(t, f"{name}.softmax", scores, cut_over=(axis,), causal=causal)
    dropped = f.dropout(t, name, probabilities, dropout, batch_dim=0)
    return _context(t, f"{name}.context", dropped, v, blocks, q.layout)


def _scores(t: TaskTracer, name: str, q: Tensor, k: Tensor, blocks: _Blocks) -> Tensor:
    """Return q k^T / sqrt(d) for the keys of all ranks."""
    factor = 1.0 / sqrt(q.shape[-1])
    scores = blocks.products(t, name, "ring_scores", (q, k), f.heads_layout(q), Kind.ACTIVATION, factor)

    def backward(r: TaskTracer, gradients: Gradients) -> Gradients:
        ds, label = f.only(gradients), f"{name}.backward"
        dq = blocks.products(r, label, "ring_context", (ds, k), q.layout, Kind.WORKSPACE, factor)
        return [dq, blocks.own_sum(r, f"{label}.keys", ds, q, k, factor)]

    t.record((q, k), (scores,), backward)
    return scores


def _context(t: TaskTracer, name: str, weights: Tensor, v: Tensor, blocks: _Blocks, layout: Layout) -> Tensor:
    """Return weights times the values of all ranks."""
    y = blocks.products(t, name, "ring_context", (weights, v), layout, Kind.ACTIVATION, 1.0)

    def backward(r: TaskTracer, gradients: Gradients) -> Gradients:
        dy, label = f.only(gradients), f"{name}.backward"
        dw = blocks.products(r, label, "ring_scores", (dy, v), weights.layout, Kind.WORKSPACE, 1.0)
        return [dw, blocks.own_sum(r, f"{label}.values", weights, dy, v, 1.0)]

    t.record((weights, v), (y,), backward)
    return y
