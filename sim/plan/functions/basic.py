"""Differentiable functions on symbolic tensors. A builder writes a forward pass with them.

Each function emits its forward ops and records its vector-Jacobian rule as plan ops. Layout rules: a matrix product
over a sharded contraction is ``Partial``; a sum over a sharded dimension (the gradient of a weight, a bias or a norm)
is ``Partial`` over the axes of that dimension.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

from sim.plan.errors import LayoutError
from sim.plan.functions.rows import Rows
from sim.plan.functions.tracing import Gradients, Parameter, TaskTracer, Tensor
from sim.plan.words.buffer import Kind
from sim.plan.words.layout import PARTIAL, Layout, Partial, Shard
from sim.plan.words.op import Reduction


def only(gradients: Gradients) -> Tensor:
    """Return the gradient of the first output, which must exist."""
    gradient = gradients[0]
    assert gradient is not None
    return gradient


def summed_layout(parameter: Parameter, x: Tensor, kept_dims: Sequence[int] = ()) -> Layout:
    """Return the layout of a parameter's gradient: a sum over all dimensions of ``x`` except ``kept_dims``."""
    layout = parameter.value.layout
    for axis, placement in x.layout.placements:
        if isinstance(placement, Shard) and placement.dim not in kept_dims and layout.get(axis) is None:
            layout = layout.with_(axis, PARTIAL)
    return layout


# --- changes of layout -------------------------------------------------------------------------------------


def all_reduce(t: TaskTracer, x: Tensor, axis: str) -> Tensor:
    """Change the layout from partial to replicated over an axis. Backward does nothing: the gradient is replicated."""
    y = t.all_reduce(x, axis)
    t.record((x,), (y,), lambda _, gradients: gradients)
    return y


def reduce_scatter(t: TaskTracer, x: Tensor, axis: str, dim: int) -> Tensor:
    """Change the layout from partial to sharded along ``dim``. Backward gathers."""
    y = t.scatter_sum(x, axis, dim, x.layout.without(axis).with_(axis, Shard(dim)), Kind.ACTIVATION)

    def backward(r: TaskTracer, gradients: Gradients) -> Gradients:
        return [r.gather(only(gradients), axis, dim, Kind.WORKSPACE)]

    t.record((x,), (y,), backward)
    return y


def all_gather(t: TaskTracer, x: Tensor, axis: str, dim: int, *, regather: bool = False) -> Tensor:
    """Change the layout from sharded along ``dim`` to replicated.

    Backward reduce-scatters the gradient, or slices it if it is already summed.
    ``regather``: keep only the slice and gather again in backward (Korthikanti et al. 2022, section 4.2.2).
    """
    y = t.gather(x, axis, dim, Kind.ACTIVATION)
    if regather:
        y = Tensor(y.name, y.shape, y.dtype, y.layout, lambda r: r.gather(x, axis, dim, Kind.WORKSPACE, "regather"))

    def backward(r: TaskTracer, gradients: Gradients) -> Gradients:
        dy = only(gradients)
        if isinstance(dy.layout.get(axis), Partial):
            layout = dy.layout.without(axis).with_(axis, Shard(dim))
            return [r.scatter_sum(dy, axis, dim, layout, Kind.WORKSPACE)]
        return [sliced(r, dy, axis, dim, Kind.WORKSPACE)]

    t.record((x,), (y,), backward, settles=False)
    return y


def all_to_all(t: TaskTracer, x: Tensor, axis: str, dim: int) -> Tensor:
    """Change the sharded dimension of x to ``dim``. Backward changes it back (Jacobs et al. 2023).

    Raises LayoutError unless ``axis`` shards ``x`` along another dimension, with the smallest slices.
    """
    y = t.exchange(x, axis, dim, Kind.ACTIVATION)
    old = x.layout.get(axis)
    assert isinstance(old, Shard)
    old_dim = old.dim

    def backward(r: TaskTracer, gradients: Gradients) -> Gradients:
        return [r.exchange(only(gradients), axis, old_dim, Kind.WORKSPACE).relaid(x.layout)]

    t.record((x,), (y,), backward)
    return y


def broadcast(t: TaskTracer, x: Tensor, axis: str, root: int) -> Tensor:
    """Return the root's slice of x on every rank of an axis that shards x (SUMMA).

    Backward sums the ranks' gradients at the root; other ranks get zeros. Raises LayoutError if ``axis`` does not shard
    ``x``, and in backward if the gradient is already summed, so that there are no terms to reduce.
    """
    own = x.layout.get(axis)
    if not isinstance(own, Shard):
        raise LayoutError(f"{x.name} is not sharded over {axis!r}: there is no slice of the root to broadcast")
    y = t.broadcast(x, axis, root, x.layout.without(axis), Kind.ACTIVATION)

    def backward(r: TaskTracer, gradients: Gradients) -> Gradients:
        dy = only(gradients)
        if not isinstance(dy.layout.get(axis), Partial):
            raise LayoutError(f"the gradient of the broadcast {y.name} has no terms over {axis!r} to reduce")
        return [r.reduce(dy, axis, root, dy.layout.without(axis).with_(axis, own), Kind.WORKSPACE)]

    t.record((x,), (y,), backward, settles=False)
    return y


def reduce(t: TaskTracer, x: Tensor, axis: str, root: int, dim: int) -> Tensor:
    """Sum a partial tensor at the root. The result is sharded along ``dim``: zeros in the slices of other ranks.

    Backward broadcasts the root's gradient, because the gradient of a partial tensor is replicated.
    Raises LayoutError if ``x`` is not partial over ``axis``.
    """
    if not isinstance(x.layout.get(axis), Partial):
        raise LayoutError(f"{x.name} is not partial over {axis!r}: there are no terms to reduce")
    y = t.reduce(x, axis, root, x.layout.without(axis).with_(axis, Shard(dim)), Kind.ACTIVATION)

    def backward(r: TaskTracer, gradients: Gradients) -> Gradients:
        dy = only(gradients)
        return [r.broadcast(dy, axis, root, dy.layout.without(axis), Kind.WORKSPACE)]

    t.record((x,), (y,), backward)
    return y


def slice_(t: TaskTracer, x: Tensor, axis: str, dim: int) -> Tensor:
    """Change the layout from replicated to sharded along ``dim``, without communication. Backward gathers."""
    y = sliced(t, x, axis, dim, Kind.ACTIVATION)
    t.record((x,), (y,), lambda r, gradients: [r.gather(only(gradients), axis, dim, Kind.WORKSPACE)])
    return y


def keep_slice(t: TaskTracer, x: Tensor, axis: str, dim: int) -> Tensor:
    """Return a replicated x of which only slices along ``dim`` are kept. Backward gathers the slices."""
    own = sliced(t, x, axis, dim, Kind.ACTIVATION)
    regather = partial(_gathered_again, own, axis, dim)
    y = Tensor(x.name, x.shape, x.dtype, x.layout, regather)
    t.record((x,), (y,), lambda _, gradients: gradients, settles=False)
    return y


def _gathered_again(own: Tensor, axis: str, dim: int, r: TaskTracer) -> Tensor:
    return r.gather(own, axis, dim, Kind.WORKSPACE, "regather")


def sliced(t: TaskTracer, x: Tensor, axis: str, dim: int, kind: Kind) -> Tensor:
    """Return a rank's slice along ``dim`` of a tensor that is replicated over ``axis``."""
    layout = x.layout.without(axis).with_(axis, Shard(dim))
    (y,) = t.compute(
        f"{x.name}.slice", "slice", (x,), (layout,), kind=kind, dim=dim, axes=(axis,), parts=t.mesh.degree(axis)
    )
    return y


# --- element-wise functions --------------------------------------------------------------------------------


def elementwise(t: TaskTracer, name: str, kernel: str, x: Tensor, **attributes: Any) -> Tensor:
    """Return kernel(x). The kernel's backward takes (dy, x): ``gelu``, ``swiglu``, ``geglu``, ``soft_cap``."""
    layout = x.layout
    if kernel in ("swiglu", "geglu"):
        layout = Layout(tuple((a, Shard(2) if p == Shard(3) else p) for a, p in layout.placements))
    (y,) = t.compute(name, kernel, (x,), (layout,), **attributes)

    def backward(r: TaskTracer, gradients: Gradients) -> Gradients:
        return r.compute(
            f"{name}.backward", f"{kernel}_backward", (only(gradients), r.saved(x)), (x.layout,),
            kind=Kind.WORKSPACE, **attributes,
        )  # fmt: skip

    t.record((x,), (y,), backward)
    return y


def scaled(t: TaskTracer, name: str, x: Tensor, factor: float) -> Tensor:
    """Return factor times x."""
    (y,) = t.compute(name, "scaled", (x,), (x.layout,), factor=factor)

    def backward(r: TaskTracer, gradients: Gradients) -> Gradients:
        dy = only(gradients)  # the gradient may be partial: scaling is linear
        return r.compute(f"{name}.backward", "scaled", (dy,), (dy.layout,), kind=Kind.WORKSPACE, factor=factor)

    t.record((x,), (y,), backward, settles=False)
    return y


def rotary(t: TaskTracer, name: str, x: Tensor, base: float, rows: Rows, width: int | None = None) -> Tensor:
    """Return x[s, b, n, d] with rotary position embedding (Su et al. 2021). Backward needs no kept tensor.

    ``width``: number of rotated channels, the last ones of each head; None: all.
    """
    attributes: dict[str, Any] = {"base": base, **rows.attributes} | ({} if width is None else {"width": width})
    (y,) = t.compute(name, "rotary", (x,), (x.layout,), **attributes)

    def backward(r: TaskTracer, gradients: Gradients) -> Gradients:
        dy = only(gradients)  # the gradient may be partial: rotation is linear
        return r.compute(f"{name}.backward", "rotary_backward", (dy,), (dy.layout,), kind=Kind.WORKSPACE, **attributes)

    t.record((x,), (y,), backward, settles=False)
    return y


def add(t: TaskTracer, name: str, a: Tensor, b: Tensor) -> Tensor:
    """Return a + b."""
    (y,) = t.compute(name, "add", (a, b), (a.layout,))
    t.record((a, b), (y,), lambda _, gradients: [only(gradients), only(gradients)])
    return y


Spans = Mapping[int, Rows]
"""The rows of a tensor along each dimension that is only a part of the whole sequence, by dimension."""


def _dropout_attributes(
    t: TaskTracer, x: Tensor, probability: float, salt: str, batch_dim: int, spans: Spans
) -> Mapping[str, Any]:
    """Return the attributes that make a mask a function of global positions, and of sample numbers in the batch."""
    dealt = {spans[dim].dealt_over for dim in spans}
    shards = (() if dim == batch_dim else x.layout.shard_axes(dim) for dim in range(len(x.shape)))
    axes = tuple(tuple(axis for axis in found if axis not in dealt) for found in shards)
    shape = tuple(n * (1 if dim == batch_dim else t.mesh.degree(*axes[dim])) for dim, n in enumerate(x.shape))
    attributes = {"probability": probability, "salt": salt, "shape": shape, "axes": axes, "batch_dim": batch_dim}
    attributes |= _shared_batch(x.layout.shard_axes(batch_dim))
    if spans:
        attributes["starts"] = tuple(spans[dim].start if dim in spans else 0 for dim in range(len(shape)))
        attributes["dealt_over"] = tuple(spans[dim].dealt_over if dim in spans else "" for dim in range(len(shape)))
        attributes["shape"] = tuple(spans[dim].num_total if dim in spans else n for dim, n in enumerate(shape))
    return attributes


def _shared_batch(axes: Sequence[str]) -> dict[str, Any]:
    """Return the attribute of a micro-batch shared by several ranks: the axes by which samples are numbered."""
    return {"batch_axes": tuple(axes)} if len(axes) > 1 else {}


def dropout(
    t: TaskTracer, name: str, x: Tensor, probability: float, *, batch_dim: int, spans: Spans = MappingProxyType({})
) -> Tensor:
    """Return x with some elements dropped. ``name`` is the salt of the mask: any sharding drops the same elements."""
    if not probability:
        return x
    attributes = _dropout_attributes(t, x, probability, name, batch_dim, spans)
    y, mask = t.compute(f"{name}.dropout", "dropout", (x,), (x.layout, x.layout), labels=("", "mask"), **attributes)

    def backward(r: TaskTracer, gradients: Gradients) -> Gradients:
        return r.compute(
            f"{name}.dropout.backward", "dropout_backward", (only(gradients), mask), (x.layout,),
            kind=Kind.WORKSPACE, probability=probability,
        )  # fmt: skip

    t.record((x,), (y,), backward)
    return y


def bias_dropout_add(
    t: TaskTracer, name: str, x: Tensor, bias: Parameter, residual: Tensor, probability: float,
    *, batch_dim: int, spans: Spans = MappingProxyType({}),
) -> Tensor:  # fmt: skip
    """Return residual + dropout(x + bias), one fused kernel as in Megatron-LM."""
    attributes = _dropout_attributes(t, x, probability, name, batch_dim, spans)
    labels = ("", "mask") if probability else ("",)
    outputs = t.compute(
        name, "bias_dropout_add", (x, bias.value, residual), [x.layout] * len(labels), labels=labels, **attributes
    )
    t.program.set_gradient_layout(bias, summed_layout(bias, x))

    def backward(r: TaskTracer, gradients: Gradients) -> Gradients:
        dy = dx = only(gradients)
        if probability:
            (dx,) = r.compute(
                f"{name}.backward", "dropout_backward", (dy, outputs[1]), (x.layout,),
                kind=Kind.WORKSPACE, probability=probability,
            )  # fmt: skip
        r.update(f"{name}.bias_gradient", "bias_gradient", (dx,), (bias.gradient,))
        return [dx, dy]

    t.record((x, residual), (outputs[0],), backward)
    return outputs[0]


def layer_norm(t: TaskTracer, name: str, x: Tensor, weight: Parameter, bias: Parameter) -> Tensor:
    """Return layer norm over the last dimension (Ba et al. 2016), epsilon 1e-5."""
    row = Layout(tuple((a, p) for a, p in x.layout.placements if p != Shard(len(x.shape) - 1)))
    y, mean, rstd = t.compute(
        name, "layer_norm", (x, weight.value, bias.value), (x.layout, row, row),
        labels=("", "mean", "rstd"), epsilon=1e-5,
    )  # fmt: skip
    for parameter in (weight, bias):
        t.program.set_gradient_layout(parameter, summed_layout(parameter, x))

    def backward(r: TaskTracer, gradients: Gradients) -> Gradients:
        inputs = (only(gradients), r.saved(x), weight.value, mean, rstd)
        return [_norm_backward(r, name, "layer_norm_backward", inputs, (weight.gradient, bias.gradient))]

    t.record((x,), (y,), backward)
    return y


def rms_norm(t: TaskTracer, name: str, x: Tensor, weight: Parameter) -> Tensor:
    """Return RMS norm over the last dimension (Zhang and Sennrich 2019), epsilon 1e-5."""
    row = Layout(tuple((a, p) for a, p in x.layout.placements if p != Shard(len(x.shape) - 1)))
    y, rstd = t.compute(name, "rms_norm", (x, weight.value), (x.layout, row), labels=("", "rstd"), epsilon=1e-5)
    t.program.set_gradient_layout(weight, summed_layout(weight, x))

    def backward(r: TaskTracer, gradients: Gradients) -> Gradients:
        inputs = (only(gradients), r.saved(x), weight.value, rstd)
        return [_norm_backward(r, name, "rms_norm_backward", inputs, (weight.gradient,))]

    t.record((x,), (y,), backward)
    return y


def _norm_backward(
    r: TaskTracer, name: str, kernel: str, inputs: Sequence[Tensor], updated: Sequence[Tensor]
) -> Tensor:
    """Emit a norm's backward: one kernel returns dx and adds to the gradients of the weights."""
    return r.compute_and_update(f"{name}.backward", kernel, inputs, updated, inputs[1].layout)


# --- attention ---------------------------------------------------------------------------------------------


def split_qkv(t: TaskTracer, name: str, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return q[s, b, g*r, d], k[s, b, g, d] and v[s, b, g, d] from qkv[s, b, g, r+2, d]."""
    layouts = (qkv.layout,) * 3
    q, k, v = t.compute(f"{name}.split", "split_qkv", (qkv,), layouts, labels=("q", "k", "v"))

    def backward(r: TaskTracer, gradients: Gradients) -> Gradients:
        present = [g for g in gradients if g is not None]
        assert len(present) == 3
        return r.compute(f"{name}.merge", "merge_qkv", present, (qkv.layout,), kind=Kind.WORKSPACE)

    t.record((qkv,), (q, k, v), backward)
    return q, k, v


def heads_layout(q: Tensor) -> Layout:
    """Return the layout of tensors [b, n, ...], given q[s, b, n, d]."""
    dims = {0: Shard(2), 1: Shard(0), 2: Shard(1)}
    return Layout(tuple((a, dims[p.dim]) for a, p in q.layout.placements if isinstance(p, Shard)))


def causal_softmax(
    t: TaskTracer, name: str, scores: Tensor, window: int = 0, *, cut_over: tuple[str, ...] = (), causal: bool = True
) -> Tensor:
    """Return the softmax of scores[b, n, queries, keys] over the keys up to each query's own.

    ``window``: a query sees at most this number of last keys; 0: no limit.
    ``cut_over``: mesh axes that split the queries of a sequence, in order.
    ``causal``: if False, every query sees all keys.
    """
    seen = masked(causal=causal, window=window) | ({"cut_over": cut_over} if cut_over and causal else {})
    (probabilities,) = t.compute(name, "causal_softmax", (scores,), (scores.layout,), **seen)

    def backward(r: TaskTracer, gradients: Gradients) -> Gradients:
        return r.compute(
            f"{name}.backward", "causal_softmax_backward", (only(gradients), probabilities), (scores.layout,),
            kind=Kind.WORKSPACE, **seen,
        )  # fmt: skip

    t.record((scores,), (probabilities,), backward)
    return probabilities


def masked(*, causal: bool, window: int = 0) -> dict[str, Any]:
    """Return the mask attributes of an attention kernel: no mask, a causal mask, or a causal mask with a window."""
    return ({"window": window} if window else {}) | ({} if causal else {"causal": False})


def core_attention(
    t: TaskTracer,
    name: str,
    qkv: Sequence[Tensor],
    dropout_probability: float,
    *,
    window: int = 0,
    cap: float = 0.0,
    causal: bool = True,
) -> Tensor:
    """Return attention as separate kernels. Scores, probabilities and dropout mask are kept for backward.

    ``window``: largest number of keys that a query sees; 0: no limit.
    ``cap``: soft limit of scores, cap tanh(score / cap) (Gemma 2); 0: no limit.
    """
    q, k, v = qkv
    seen = masked(causal=True, window=window)  # products compute all scores, masked or not
    (scores,) = t.compute(f"{name}.scores", "attention_scores", (q, k), (heads_layout(q),), **seen)
    t.record((q, k), (scores,), _two_input_backward(f"{name}.scores", "attention_scores", q, k, seen))
    if cap:
        scores = elementwise(t, f"{name}.soft_cap", "soft_cap", scores, cap=cap)
    probabilities = causal_softmax(t, f"{name}.softmax", scores, window, causal=causal)
    dropped = dropout(t, name, probabilities, dropout_probability, batch_dim=0)
    (y,) = t.compute(f"{name}.context", "attention_context", (dropped, v), (q.layout,), **seen)
    t.record((dropped, v), (y,), _two_input_backward(f"{name}.context", "attention_context", dropped, v, seen))
    return y


def _two_input_backward(name: str, kernel: str, a: Tensor, b: Tensor, attributes: Mapping[str, Any]) -> Any:
    def backward(r: TaskTracer, gradients: Gradients) -> Gradients:
        return r.compute(
            f"{name}.backward", f"{kernel}_backward", (only(gradients), r.saved(a), r.saved(b)), (a.layout, b.layout),
            labels=("first", "second"), kind=Kind.WORKSPACE, **attributes,
        )  # fmt: skip

    return backward


def flash_attention(
    t: TaskTracer, name: str, q: Tensor, k: Tensor, v: Tensor, *, window: int = 0, causal: bool = True
) -> Tensor:
    """Return attention as one kernel that keeps only the log-sum-exp of the scores (Dao et al. 2022).

    ``window``: largest number of keys that a query sees, its own and those before it; 0: no limit.
    """
    seen, layouts = masked(causal=causal, window=window), (q.layout, heads_layout(q))
    y, lse = t.compute(name, "flash_attention", (q, k, v), layouts, labels=("", "lse"), **seen)

    def backward(r: TaskTracer, gradients: Gradients) -> Gradients:
        return r.compute(
            f"{name}.backward", "flash_attention_backward", (only(gradients), q, k, v, y, lse),
            (q.layout, k.layout, v.layout), labels=("q", "k", "v"), kind=Kind.WORKSPACE, **seen,
        )  # fmt: skip

    t.record((q, k, v), (y,), backward)
    return y


# --- embedding and loss ------------------------------------------------------------------------------------


def tokens(
    t: TaskTracer, name: str, *, shift: int, rows: Rows, batch: int, vocabulary: int, axes: Sequence[str]
) -> Tensor:
    """Return token ids[s, b] of this rank's rows and samples; ``shift`` 1 gives the labels.

    ``axes``: mesh axes that split samples. The first gives micro-batches to ranks; other axes split a micro-batch.
    """
    layout = Layout((*((axis, Shard(1)) for axis in axes), *((axis, Shard(0)) for axis in rows.axes)))
    (ids,) = t.compute(
        name, "tokens", (), (layout,),
        shift=shift, sequence_length=rows.num_tokens, microbatch_size=batch, vocab_size=vocabulary, **rows.attributes,
        **_shared_batch(axes),
    )  # fmt: skip
    return ids


def embedding(t: TaskTracer, name: str, ids: Tensor, table: Parameter, *, whole_gradient: bool = False) -> Tensor:
    """Return the ids' rows of table[V, h]. The result is partial over axes that shard the vocabulary.

    Source: Shoeybi et al. 2019.
    ``whole_gradient``: backward computes a gradient of the whole table, as autograd does: it clears a tensor, adds to
    the ids' rows, and another kernel adds the tensor to the accumulated gradient. Otherwise backward adds to the ids'
    rows of the accumulated gradient.
    """
    axes = table.value.layout.shard_axes(0)
    layout = ids.layout
    for axis in axes:
        layout = layout.with_(axis, PARTIAL)
    (y,) = t.compute(name, "embedding", (ids, table.value), (layout,), vocab_axes=axes)
    t.program.set_gradient_layout(table, summed_layout(table, ids))

    def backward(r: TaskTracer, gradients: Gradients) -> Gradients:
        dy, label, gradient = only(gradients), f"{name}.backward", table.gradient
        if whole_gradient:
            (gradient,) = r.compute(
                f"{label}.zeros", "zeros", (), (gradient.layout,), kind=Kind.WORKSPACE,
                shapes=(table.value.shape,), dtype=dy.dtype,
            )  # fmt: skip
        r.update(label, "embedding_backward", (ids, dy), (gradient,), vocab_axes=axes)
        if whole_gradient:
            r.update(f"{label}.add", "add", (gradient,), (table.gradient,))
        return [None]

    t.record((ids,), (y,), backward)
    return y


def add_positions(t: TaskTracer, name: str, x: Tensor, table: Parameter, rows: Rows) -> Tensor:
    """Return x[s, b, h] plus the rows of the learned table[S, h] at the positions of x."""
    within = tuple(axis for axis in x.layout.shard_axes(0) if axis not in rows.axes)
    attributes: dict[str, Any] = {"sequence_axes": within, **rows.attributes}
    (y,) = t.compute(name, "add_positions", (x, table.value), (x.layout,), **attributes)
    t.program.set_gradient_layout(table, summed_layout(table, x))

    def backward(r: TaskTracer, gradients: Gradients) -> Gradients:
        dy = only(gradients)
        r.update(f"{name}.backward", "add_positions_backward", (dy,), (table.gradient,), **attributes)
        return [dy]

    t.record((x,), (y,), backward)
    return y


def cross_entropy(t: TaskTracer, name: str, logits: Tensor, labels: Tensor, loss: Tensor, scale: float) -> Tensor:
    """Add ``scale`` times the summed cross entropy to ``loss``, without gathering the logits.

    Three all_reduce of one number per token: maximum, sum of exponentials, target logit
    (Megatron-LM core/tensor_parallel/cross_entropy.py). Backward needs no communication.
    """
    last = len(logits.shape) - 1
    axes = logits.layout.shard_axes(last)
    rows = logits.layout.without(*axes)
    partial_rows = rows
    for axis in axes:
        partial_rows = partial_rows.with_(axis, PARTIAL)
    (maximum,) = t.compute(f"{name}.max", "logits_max", (logits,), (rows,))
    for axis in axes:
        t.all_reduce(maximum, axis, Reduction.MAX)
    exp, total, target = t.compute(
        f"{name}.exp", "exp_logits", (logits, maximum, labels), (logits.layout, partial_rows, partial_rows),
        labels=("", "sum", "target"), vocab_axes=axes,
    )  # fmt: skip
    for axis in axes:
        total, target = t.all_reduce(total, axis), t.all_reduce(target, axis)
    t.update(name, "cross_entropy", (total, target), (loss,), scale=scale)

    def backward(r: TaskTracer, _: Gradients) -> Gradients:
        return r.compute(
            f"{name}.backward", "cross_entropy_backward", (exp, total, labels), (logits.layout,),
            kind=Kind.WORKSPACE, vocab_axes=axes, scale=scale, dtype=logits.dtype,
        )  # fmt: skip

    t.record((logits,), (loss,), backward)
    return loss
