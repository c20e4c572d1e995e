"""Kernels that memory bandwidth bounds: norms, activations, dropout, additions and layout changes.

Bytes: every input read once and every output written once, unless the kernel says better. ``executed_flop`` is a
rough count per element of the largest tensor (transcendentals as several operations); it never decides the
time on a device with more than about 10 FLOP per byte of bandwidth.
"""

from collections.abc import Sequence

from costmodels.kernels.tensor import (
    Attributes,
    Count,
    Kernel,
    TensorSpec,
    Work,
    require,
    statistics_dtype,
    total_bytes,
)


def streaming(flop_per_element: float, reread: Sequence[int] = ()) -> Count:
    """Return a count: all inputs read once (those at ``reread`` twice), all outputs written once."""

    def count(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], _: Attributes) -> Work:
        largest = max(tensor.num_elements for tensor in (*inputs, *outputs))
        read = total_bytes(inputs) + sum(inputs[index].num_bytes for index in reread)
        return Work(0.0, flop_per_element * largest, read, total_bytes(outputs))

    return count


def _copying(_inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], _: Attributes) -> Work:
    """Return the work of reading exactly what is written."""
    return Work(0.0, 0.0, total_bytes(outputs), total_bytes(outputs))


def _writing(_inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], _: Attributes) -> Work:
    return Work(0.0, 0.0, 0, total_bytes(outputs))


def _zeros_outputs(_inputs: Sequence[TensorSpec], attributes: Attributes) -> tuple[TensorSpec, ...]:
    """Return float tensors of the stated ``shapes`` and ``dtype``."""
    return tuple(TensorSpec(tuple(shape), attributes["dtype"]) for shape in attributes["shapes"])


def _like_first(inputs: Sequence[TensorSpec], _: Attributes) -> tuple[TensorSpec, ...]:
    return (inputs[0],)


def _like_all(inputs: Sequence[TensorSpec], _: Attributes) -> tuple[TensorSpec, ...]:
    return tuple(inputs)


def _like_equals(inputs: Sequence[TensorSpec], _: Attributes) -> tuple[TensorSpec, ...]:
    require(all(tensor.shape == inputs[0].shape for tensor in inputs), "all inputs must have one shape", *inputs)
    return (inputs[0],)


def _squared_norm_outputs(inputs: Sequence[TensorSpec], _: Attributes) -> tuple[TensorSpec, ...]:
    """Return one number, in 32 bits at least."""
    return (TensorSpec((1,), statistics_dtype(inputs[0])),)


def _mask_of(tensor: TensorSpec) -> TensorSpec:
    return TensorSpec(tensor.shape, "uint8")


def _dropout_outputs(inputs: Sequence[TensorSpec], _: Attributes) -> tuple[TensorSpec, ...]:
    return (inputs[0], _mask_of(inputs[0]))


def _bias_dropout_add_outputs(inputs: Sequence[TensorSpec], attributes: Attributes) -> tuple[TensorSpec, ...]:
    x, bias, residual = inputs
    require(bias.shape == x.shape[-len(bias.shape) :], "the bias must be the trailing dimensions of x", x, bias)
    require(x.shape == residual.shape, "x and residual must have one shape", x, residual)
    return (x, _mask_of(x)) if attributes["probability"] > 0 else (x,)


def _bias_gradient_outputs(inputs: Sequence[TensorSpec], attributes: Attributes) -> tuple[TensorSpec, ...]:
    """Return the gradient that is added to, or a new one of ``dims`` dimensions."""
    dx, *given = inputs
    gradient = given[0] if given else dx.like(*dx.shape[-attributes["dims"] :])
    count = len(gradient.shape)
    require(
        dx.shape[-count:] == gradient.shape, "the bias gradient must be the trailing dimensions of dx", dx, gradient
    )
    return (gradient,)


def _check_weight(x: TensorSpec, weight: TensorSpec) -> None:
    require(weight.shape == x.shape[-1:], "the norm's weight must be the last dimension of x", x, weight)


def _statistics(x: TensorSpec) -> TensorSpec:
    return TensorSpec(x.shape[:-1], statistics_dtype(x))


def _layer_norm_outputs(inputs: Sequence[TensorSpec], _: Attributes) -> tuple[TensorSpec, ...]:
    _check_weight(inputs[0], inputs[1])
    return (inputs[0], _statistics(inputs[0]), _statistics(inputs[0]))


def _layer_norm_backward_outputs(inputs: Sequence[TensorSpec], _: Attributes) -> tuple[TensorSpec, ...]:
    """Return dx and the gradients of weight and bias: those that are added to, or new ones."""
    _check_weight(inputs[1], inputs[2])
    require(len(inputs) != 6, "both gradients must be given, or none", *inputs)
    return (inputs[1], *(inputs[5:] or (inputs[2], inputs[2])))


def _rms_norm_outputs(inputs: Sequence[TensorSpec], _: Attributes) -> tuple[TensorSpec, ...]:
    _check_weight(inputs[0], inputs[1])
    return (inputs[0], _statistics(inputs[0]))


def _rms_norm_backward_outputs(inputs: Sequence[TensorSpec], _: Attributes) -> tuple[TensorSpec, ...]:
    _check_weight(inputs[1], inputs[2])
    return (inputs[1], *(inputs[4:] or (inputs[2],)))


def _split_qkv_outputs(inputs: Sequence[TensorSpec], _: Attributes) -> tuple[TensorSpec, ...]:
    (qkv,) = inputs
    fits = len(qkv.shape) == 5 and qkv.shape[3] >= 3
    require(fits, "qkv must be [s,b,g,r+2,d] with r >= 1", qkv)
    s, b, groups, slots, head_size = qkv.shape
    key = qkv.like(s, b, groups, head_size)
    return (qkv.like(s, b, groups * (slots - 2), head_size), key, key)


def _merge_qkv_outputs(inputs: Sequence[TensorSpec], _: Attributes) -> tuple[TensorSpec, ...]:
    dq, dk, dv = inputs
    s, b, groups, head_size = dk.shape
    require(dk.shape == dv.shape and dq.shape[2] % groups == 0, "dk and dv need one shape, g dividing n", *inputs)
    return (dq.like(s, b, groups, dq.shape[2] // groups + 2, head_size),)


def _rotary_outputs(inputs: Sequence[TensorSpec], attributes: Attributes) -> tuple[TensorSpec, ...]:
    """Return x with its last ``width`` channels turned, of which there must be an even number; default all."""
    (x,) = inputs
    width = attributes.get("width", x.shape[-1])
    require(width % 2 == 0 and 0 < width <= x.shape[-1], "rotary positions turn pairs of channels that there are", x)
    return (x,)


def _gated_outputs(inputs: Sequence[TensorSpec], _: Attributes) -> tuple[TensorSpec, ...]:
    (x,) = inputs
    require(len(x.shape) == 4 and x.shape[2] == 2, "x must be [s,b,2,f]", x)
    return (x.like(x.shape[0], x.shape[1], x.shape[3]),)


def _gated_backward_outputs(inputs: Sequence[TensorSpec], _: Attributes) -> tuple[TensorSpec, ...]:
    dy, x = inputs
    require((*dy.shape[:2], 2, dy.shape[-1]) == x.shape, "dy must be [s,b,f] and x [s,b,2,f]", dy, x)
    return (x,)


def _slice_outputs(inputs: Sequence[TensorSpec], attributes: Attributes) -> tuple[TensorSpec, ...]:
    (x,) = inputs
    dim, parts = attributes["dim"], attributes["parts"]
    require(x.shape[dim] % parts == 0, f"dimension {dim} must divide by {parts}", x)
    shape = list(x.shape)
    shape[dim] //= parts
    return (x.like(*shape),)


def _copy_outputs(inputs: Sequence[TensorSpec], _: Attributes) -> tuple[TensorSpec, ...]:
    """Return the second input, which the first overwrites."""
    require(inputs[0] == inputs[1], "both inputs must be alike", *inputs)
    return (inputs[1],)


def _append_outputs(inputs: Sequence[TensorSpec], attributes: Attributes) -> tuple[TensorSpec, ...]:
    """Return the cache with x[s, ...] at its ``places``: the one given, or a new one of ``rows`` rows.

    ``places``: first row and number of rows, of each run of rows of x. ``dtype``: of a new cache, if it is not x's.
    """
    x, *given = inputs
    fresh = TensorSpec((attributes["rows"], *x.shape[1:]), attributes.get("dtype", x.dtype))
    cache, places = given[0] if given else fresh, attributes["places"]
    has_room = all(first + count <= cache.shape[0] for first, count in places)
    fits = cache.shape == (attributes["rows"], *x.shape[1:]) and sum(count for _, count in places) == x.shape[0]
    require(fits and has_room, "the cache must have the stated rows, as wide as x's, and room for x", *inputs)
    return (cache,)


def _append_work(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], _: Attributes) -> Work:
    """Return the work of copying x; the cache's other rows are not touched."""
    x = inputs[0]
    return Work(0.0, 0.0, x.num_bytes, outputs[0].like(*x.shape).num_bytes)


def _rows_outputs(inputs: Sequence[TensorSpec], attributes: Attributes) -> tuple[TensorSpec, ...]:
    """Return ``count`` rows of x from ``start`` on."""
    (x,), start, count = inputs, attributes["start"], attributes["count"]
    require(start >= 0 and 0 < count <= x.shape[0] - start, f"there must be {count} rows from {start} on", x)
    return (x.like(count, *x.shape[1:]),)


def _take_rows_outputs(inputs: Sequence[TensorSpec], attributes: Attributes) -> tuple[TensorSpec, ...]:
    """Return the rows of x with these numbers."""
    (x,), rows = inputs, attributes["rows"]
    require(bool(rows) and 0 <= min(rows) <= max(rows) < x.shape[0], f"there must be rows {rows}", x)
    return (x.like(len(rows), *x.shape[1:]),)


def _take_chunks_outputs(inputs: Sequence[TensorSpec], attributes: Attributes) -> tuple[TensorSpec, ...]:
    """Return x with its rows, in as many equal chunks as ``order`` has, in that order."""
    (x,), order = inputs, attributes["order"]
    require(sorted(order) == list(range(len(order))), f"{order} must name every chunk once", x)
    require(bool(order) and x.shape[0] % len(order) == 0, f"rows must make {len(order)} equal chunks", x)
    return (x,)


_MANY = float("inf")

ELEMENTWISE_KERNELS = (
    Kernel("dropout", "elementwise", (1, 1), _dropout_outputs, streaming(10)),
    Kernel("dropout_backward", "elementwise", (2, 2), _like_equals, streaming(2)),
    Kernel("bias_dropout_add", "elementwise", (3, 3), _bias_dropout_add_outputs, streaming(12)),
    Kernel("bias_gradient", "elementwise", (1, 2), _bias_gradient_outputs, streaming(1)),
    Kernel("layer_norm", "elementwise", (3, 3), _layer_norm_outputs, streaming(8)),
    # two passes over dy and x: one along rows for dx, one along columns for the weight and bias gradients
    Kernel("layer_norm_backward", "elementwise", (5, 7), _layer_norm_backward_outputs, streaming(16, reread=(0, 1))),
    Kernel("rms_norm", "elementwise", (2, 2), _rms_norm_outputs, streaming(5)),
    Kernel("rms_norm_backward", "elementwise", (4, 5), _rms_norm_backward_outputs, streaming(12, reread=(0, 1))),
    Kernel("split_qkv", "elementwise", (1, 1), _split_qkv_outputs, streaming(0)),
    Kernel("merge_qkv", "elementwise", (3, 3), _merge_qkv_outputs, streaming(0)),
    Kernel("rotary", "elementwise", (1, 1), _rotary_outputs, streaming(3)),
    Kernel("rotary_backward", "elementwise", (1, 1), _rotary_outputs, streaming(3)),
    Kernel("gelu", "elementwise", (1, 1), _like_first, streaming(12)),
    Kernel("gelu_backward", "elementwise", (2, 2), _like_equals, streaming(20)),
    Kernel("swiglu", "elementwise", (1, 1), _gated_outputs, streaming(4)),
    Kernel("swiglu_backward", "elementwise", (2, 2), _gated_backward_outputs, streaming(8)),
    Kernel("geglu", "elementwise", (1, 1), _gated_outputs, streaming(7)),
    Kernel("geglu_backward", "elementwise", (2, 2), _gated_backward_outputs, streaming(12)),
    Kernel("soft_cap", "elementwise", (1, 1), _like_first, streaming(8)),
    Kernel("soft_cap_backward", "elementwise", (2, 2), _like_equals, streaming(10)),
    Kernel("scaled", "elementwise", (1, 1), _like_first, streaming(1)),
    Kernel("add", "elementwise", (2, _MANY), _like_equals, streaming(1)),
    Kernel("append", "elementwise", (1, 2), _append_outputs, _append_work),
    Kernel("rows", "elementwise", (1, 1), _rows_outputs, _copying),
    Kernel("take_rows", "elementwise", (1, 1), _take_rows_outputs, _copying),
    Kernel("take_chunks", "elementwise", (1, 1), _take_chunks_outputs, _copying),
    Kernel("slice", "elementwise", (1, 1), _slice_outputs, _copying),
    Kernel("copy", "elementwise", (2, 2), _copy_outputs, _copying),
    Kernel("zero", "elementwise", (1, _MANY), _like_all, _writing),
    Kernel("scale", "elementwise", (1, _MANY), _like_all, streaming(1)),
    Kernel("squared_norm", "elementwise", (1, _MANY), _squared_norm_outputs, streaming(2)),
    Kernel("zeros", "elementwise", (0, 0), _zeros_outputs, _writing),
)
