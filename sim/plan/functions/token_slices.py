"""Attention over slices of a sequence (Li et al. 2021, TeraPipe).

Slices run forward in order. Each slice writes its keys and values into caches with a row per token of the sequence,
and reads the rows of earlier slices there. Backwards run from the last slice to the first. The last slice writes the
gradients of the caches, and the others add to them in place. A slice takes its own rows after its addition: by then all
later slices have added to them.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from costmodels.kernels import KERNELS
from sim.plan.functions import basic as f
from sim.plan.functions.rows import Rows
from sim.plan.functions.token_part import Scoring
from sim.plan.functions.tracing import Gradients, TaskTracer, Tensor
from sim.plan.words.buffer import Buffer, Kind
from sim.plan.words.op import Compute


class TokenSlice(Struct, frozen=True):
    """Slice number ``index`` of a sequence of ``num_total`` tokens: ``num_tokens`` of them from ``start`` on."""

    index: int
    start: int
    num_tokens: int
    num_total: int

    @property
    def label(self) -> str:
        """Return the suffix of the names of its tasks and buffers."""
        return f"@{self.index}"

    @property
    def rows(self) -> Rows:
        """Return the positions of these tokens."""
        return Rows(self.num_tokens, self.num_total, self.start)

    def cached(self, t: TaskTracer, name: str, x: Tensor) -> Tensor:
        """Write x[s, ...] into the slice's rows of the cache ``name``; return it."""
        return append(t, name, x, self)

    def attention(self, t: TaskTracer, name: str, qkv: Sequence[Tensor], scoring: Scoring) -> Tensor:
        """Return causal attention of the slice's queries to the cached keys and values."""
        if scoring.fused:
            return flash_attention(t, name, qkv, self)
        return core_attention(t, name, qkv, scoring.dropout, self)


def token_slices(lengths: Sequence[int]) -> tuple[TokenSlice, ...]:
    """Return consecutive slices of these lengths."""
    total = sum(lengths)
    return tuple(TokenSlice(i, sum(lengths[:i]), length, total) for i, length in enumerate(lengths))


def append(t: TaskTracer, name: str, x: Tensor, part: TokenSlice) -> Tensor:
    """Write x[s, ...] into its slice's rows of the cache ``name``; return it. Backward takes the gradient's rows."""
    shape = (part.num_total, *x.shape[1:])
    known = name in t.program.buffers
    if not known:
        t.program.add_buffer(Buffer(name, shape, x.dtype, Kind.ACTIVATION, t.scope))
    cache = Tensor(name, shape, x.dtype, x.layout)
    reads = (x.name, name) if known else (x.name,)
    attributes = {"places": ((part.start, part.num_tokens),), "rows": part.num_total}
    t.emit(Compute(t.unique(f"{name}.append"), "append", reads, (name,), attributes))

    def backward(r: TaskTracer, gradients: Gradients) -> Gradients:
        return r.compute(
            f"{name}.own_gradient", "rows", (f.only(gradients),), (x.layout,), kind=Kind.WORKSPACE,
            start=part.start, count=part.num_tokens,
        )  # fmt: skip

    t.record((x,), (cache,), backward)
    return cache


def core_attention(
    t: TaskTracer, name: str, qkv: Sequence[Tensor], dropout_probability: float, part: TokenSlice
) -> Tensor:
    """Return attention of a slice's queries to cached keys and values, as separate kernels."""
    q, k, v = qkv
    context: dict[str, Any] = {"context": part.start}
    (scores,) = t.compute(f"{name}.scores", "attention_scores", (q, k), (f.heads_layout(q),), **context)
    t.record((q, k), (scores,), _cached_backward(f"{name}.scores", "attention_scores", (q, k), 1, context))
    probabilities = f.causal_softmax(t, f"{name}.softmax", scores)
    spans = {2: part.rows, 3: Rows(part.num_total, part.num_total)}
    dropped = f.dropout(t, name, probabilities, dropout_probability, batch_dim=0, spans=spans)
    (y,) = t.compute(f"{name}.context", "attention_context", (dropped, v), (q.layout,), **context)
    t.record((dropped, v), (y,), _cached_backward(f"{name}.context", "attention_context", (dropped, v), 1, context))
    return y


def flash_attention(t: TaskTracer, name: str, qkv: Sequence[Tensor], part: TokenSlice) -> Tensor:
    """Return attention of a slice's queries to cached keys and values, as one kernel."""
    q, k, v = qkv
    context: dict[str, Any] = {"context": part.start}
    layouts = (q.layout, f.heads_layout(q))
    y, lse = t.compute(name, "flash_attention", (q, k, v), layouts, labels=("", "lse"), **context)
    t.record((q, k, v), (y,), _cached_backward(name, "flash_attention", (q, k, v, y, lse), 2, context))
    return y


def _cached_backward(
    name: str, kernel: str, saved: Sequence[Tensor], num_caches: int, attributes: Mapping[str, Any]
) -> Any:
    """Return the backward rule of a kernel of a tensor and caches. ``saved``: operands of the backward kernel.

    In ``saved`` the caches follow the first tensor. Their gradients are new if no later slice has written them.
    """
    first, caches = saved[0], saved[1 : 1 + num_caches]

    def backward(r: TaskTracer, gradients: Gradients) -> Gradients:
        names = [f"{cache.name}.gradient" for cache in caches]
        given = [r.program.buffers[n] for n in names if n in r.program.buffers]
        reads = (f.only(gradients), *(r.saved(x) for x in saved))
        known = [Tensor(b.name, b.shape, b.dtype, c.layout) for b, c in zip(given, caches, strict=False)]
        op_name = r.unique(f"{name}.backward")
        specs = KERNELS[f"{kernel}_backward"].outputs([x.spec for x in (*reads, *known)], attributes)
        outputs = [Buffer(f"{op_name}.first{r.part}", specs[0].shape, specs[0].dtype, Kind.WORKSPACE, r.scope)]
        if not known:
            outputs += [
                Buffer(n, s.shape, s.dtype, Kind.WORKSPACE, r.scope) for n, s in zip(names, specs[1:], strict=True)
            ]
        new = [r.program.tensor(b, x.layout) for b, x in zip(outputs, (first, *caches), strict=False)]
        results = [*new, *known]
        r.emit(
            Compute(
                op_name, f"{kernel}_backward", tuple(x.name for x in (*reads, *known)),
                tuple(x.name for x in results), attributes,
            )
        )  # fmt: skip
        return results

    return backward
