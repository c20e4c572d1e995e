"""Kernels on blocks of a mesh: norms of rows that several ranks hold together, and lookups in a block of a table.

A norm over a dimension that is cut takes two kernels each way: sums over this rank's part of every row, which are then
added up over the ranks, and the norm itself. The sums of a row are two numbers in layer norm and one in RMS norm.
"""

from collections.abc import Sequence

from costmodels.kernels.elementwise import streaming
from costmodels.kernels.tensor import Attributes, Kernel, TensorSpec, Work, require, statistics_dtype, total_bytes


def _sums_of(x: TensorSpec, count: int) -> TensorSpec:
    return TensorSpec((*x.shape[:-1], count), statistics_dtype(x))


def _check_norm(x: TensorSpec, weight: TensorSpec, sums: TensorSpec) -> None:
    require(weight.shape == x.shape[-1:], "the norm's weight must be the last dimension of x", x, weight)
    fits = sums in (_sums_of(x, 1), _sums_of(x, 2))
    require(fits, "the sums must be one or two numbers per row of x", x, sums)


def _sums_outputs(inputs: Sequence[TensorSpec], attributes: Attributes) -> tuple[TensorSpec, ...]:
    return (_sums_of(inputs[0], 2 if attributes["centred"] else 1),)


def _norm_outputs(inputs: Sequence[TensorSpec], _: Attributes) -> tuple[TensorSpec, ...]:
    x, weight, *_bias, sums = inputs
    _check_norm(x, weight, sums)
    require(sums.shape[-1] == len(inputs) - 2, "layer norm has a bias and two sums, RMS norm none and one", *inputs)
    return (x,)


def _backward_sums_outputs(inputs: Sequence[TensorSpec], _: Attributes) -> tuple[TensorSpec, ...]:
    dy, x, weight, sums = inputs
    _check_norm(x, weight, sums)
    require(dy.shape == x.shape, "dy and x must have one shape", dy, x)
    return (sums,)


def _norm_backward_outputs(inputs: Sequence[TensorSpec], _: Attributes) -> tuple[TensorSpec, ...]:
    """Return dx and the gradients of weight and, in layer norm, bias: those that are added to, or new ones."""
    dy, x, weight, sums, backward_sums, *given = inputs
    _check_norm(x, weight, sums)
    require(dy.shape == x.shape and sums == backward_sums, "dy must be like x, and both sums alike", *inputs)
    count = sums.shape[-1]
    require(len(given) in {0, count}, "all gradients of parameters must be given, or none", *inputs)
    return (x, *(given or (weight,) * count))


def _add_bias_outputs(inputs: Sequence[TensorSpec], _: Attributes) -> tuple[TensorSpec, ...]:
    """Return what the bias is added to."""
    bias, x = inputs
    require(bias.shape == x.shape[-len(bias.shape) :], "the bias must be the trailing dimensions of x", bias, x)
    return (x,)


def _lookup_outputs(inputs: Sequence[TensorSpec], _: Attributes) -> tuple[TensorSpec, ...]:
    """Return the rows of the block for ids in it, zeros for others; or what they are added to."""
    ids, block, *given = inputs
    require(len(block.shape) == 2, "the block must be [rows, h]", block)
    rows = block.like(*ids.shape, block.shape[1])
    require(not given or given[0] == rows, "the rows of other blocks must be as many, and as wide", *inputs)
    return (rows,)


def _lookup_work(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], _: Attributes) -> Work:
    """Return the work of one row of the block, or one of zeros, per token."""
    rows = outputs[0].num_bytes * (len(inputs) - 1)
    return Work(0.0, 0.0, inputs[0].num_bytes + rows, outputs[0].num_bytes)


def _lookup_backward_outputs(inputs: Sequence[TensorSpec], attributes: Attributes) -> tuple[TensorSpec, ...]:
    ids, dy = inputs
    require(dy.shape[:-1] == ids.shape, "dy must have a row per token", ids, dy)
    return (dy.like(attributes["rows"], dy.shape[-1]),)


def _lookup_backward_work(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], _: Attributes) -> Work:
    """Return the work of a block that is written once, its rows of tokens read once more to add to them."""
    ids, dy = inputs
    (gradient,) = outputs
    rows = gradient.like(min(ids.num_elements, gradient.shape[0]), gradient.shape[1]).num_bytes
    return Work(0.0, float(dy.num_elements), total_bytes(inputs) + rows, gradient.num_bytes)


BLOCK_KERNELS = (
    Kernel("norm_sums", "elementwise", (1, 1), _sums_outputs, streaming(3)),
    Kernel("norm_of_sums", "elementwise", (3, 4), _norm_outputs, streaming(5)),
    Kernel("norm_backward_sums", "elementwise", (4, 4), _backward_sums_outputs, streaming(8)),
    # two passes over dy and x: one along rows for dx, one along columns for the weight and bias gradients
    Kernel("norm_of_sums_backward", "elementwise", (5, 7), _norm_backward_outputs, streaming(12, reread=(0, 1))),
    Kernel("add_bias", "elementwise", (2, 2), _add_bias_outputs, streaming(1)),
    Kernel("block_embedding", "elementwise", (2, 3), _lookup_outputs, _lookup_work),
    Kernel("block_embedding_backward", "elementwise", (2, 2), _lookup_backward_outputs, _lookup_backward_work),
)
