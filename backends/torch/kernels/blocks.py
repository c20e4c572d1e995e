"""Kernels on blocks of a mesh: norms in two parts, and lookups in a block of an embedding table."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

import torch
from torch import Tensor

from backends.torch.kernels.context import Attributes, KernelContext, KernelFunction, wide


def norm_sums(_: KernelContext, inputs: Sequence[Tensor], attributes: Attributes) -> tuple[Tensor, ...]:
    """Return the sum of squares over the last dimension. If the norm is ``centred``, the sum comes before it."""
    x = wide(inputs[0])
    squares = x.square().sum(-1)
    return (torch.stack((x.sum(-1), squares) if attributes["centred"] else (squares,), -1),)


def _normed(x: Tensor, sums: Tensor, attributes: Attributes) -> tuple[Tensor, Tensor]:
    """Return normalised x and each row's reciprocal standard deviation, given the sums over whole rows."""
    mean_square = sums[..., -1:] / attributes["width"]
    if sums.shape[-1] == 1:
        rstd = torch.rsqrt(mean_square + attributes["epsilon"])
        return wide(x) * rstd, rstd
    mean = sums[..., :1] / attributes["width"]
    rstd = torch.rsqrt(mean_square - mean.square() + attributes["epsilon"])
    return (wide(x) - mean) * rstd, rstd


def norm_of_sums(_: KernelContext, inputs: Sequence[Tensor], attributes: Attributes) -> tuple[Tensor, ...]:
    """Return this rank's part of a layer norm, or of an RMS norm if there is no bias. Whole rows are ``width`` wide."""
    x, weight, *bias, sums = inputs
    y = _normed(x, sums, attributes)[0] * wide(weight)
    return ((y + wide(bias[0]) if bias else y).to(x.dtype),)


def norm_backward_sums(_: KernelContext, inputs: Sequence[Tensor], attributes: Attributes) -> tuple[Tensor, ...]:
    """Return the sum of d(normed) x normed over the last dimension; in layer norm, the sum of d(normed) before it."""
    dy, x, weight, sums = inputs
    normed, _rstd = _normed(x, sums, attributes)
    dnormed = wide(dy) * wide(weight)
    projected = (dnormed * normed).sum(-1)
    return (torch.stack((dnormed.sum(-1), projected) if sums.shape[-1] == 2 else (projected,), -1),)


def norm_of_sums_backward(_: KernelContext, inputs: Sequence[Tensor], attributes: Attributes) -> tuple[Tensor, ...]:
    """Return dx, and the gradients of weight and bias, added to the given ones if there are any."""
    dy, x, weight, sums, backward_sums, *given = inputs
    normed, rstd = _normed(x, sums, attributes)
    dys, means = wide(dy), backward_sums / attributes["width"]
    dx = dys * wide(weight) - normed * means[..., -1:]
    terms = [(dys * normed).flatten(0, -2).sum(0)]
    if sums.shape[-1] == 2:
        dx -= means[..., :1]
        terms.append(dys.flatten(0, -2).sum(0))
    gradients = [gradient.add_(term) for gradient, term in zip(given, terms, strict=True)] if given else terms
    return (dx * rstd).to(x.dtype), *(x if given else x.to(weight.dtype) for x in gradients)


def add_bias(_: KernelContext, inputs: Sequence[Tensor], _attributes: Attributes) -> tuple[Tensor, ...]:
    """Add the first tensor to every row of the second."""
    bias, x = inputs
    return (x.add_(bias),)


def _rows_in(ids: Tensor, num_rows: int, block: int) -> tuple[Tensor, Tensor]:
    """Return ids relative to the block's first row, 0 outside the block, and a mask of the ids inside it."""
    local = ids - block * num_rows
    inside = (local >= 0) & (local < num_rows)
    return torch.where(inside, local, 0), inside.unsqueeze(-1)


def block_embedding(_: KernelContext, inputs: Sequence[Tensor], attributes: Attributes) -> tuple[Tensor, ...]:
    """Return table rows for ids in the block, zeros for other ids. If rows of other blocks are given, add to them."""
    ids, table, *given = inputs
    rows, inside = _rows_in(ids, table.shape[0], attributes["block"])
    found = table[rows] * inside.to(table.dtype)
    return (given[0].add_(found) if given else found,)


def block_embedding_backward(_: KernelContext, inputs: Sequence[Tensor], attributes: Attributes) -> tuple[Tensor, ...]:
    """Return the gradient of a block of the table."""
    ids, dy = inputs
    rows, inside = _rows_in(ids, attributes["rows"], attributes["block"])
    gradient = dy.new_zeros((attributes["rows"], dy.shape[-1]))
    return (gradient.index_add_(0, rows.reshape(-1), (dy * inside.to(dy.dtype)).reshape(-1, dy.shape[-1])),)


BLOCK_KERNELS: Final[Mapping[str, KernelFunction]] = MappingProxyType(
    {
        "norm_sums": norm_sums,
        "norm_of_sums": norm_of_sums,
        "norm_backward_sums": norm_backward_sums,
        "norm_of_sums_backward": norm_of_sums_backward,
        "add_bias": add_bias,
        "block_embedding": block_embedding,
        "block_embedding_backward": block_embedding_backward,
    }
)
