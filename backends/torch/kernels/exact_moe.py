"""Experts with a row for every choice: choice, sorting, and grouped products of unequal groups.

Rows of all experts lie one after the other, [1, R, h]. How many each expert has, kernels read from ``counts``: rows by
source rank and expert, as these ranks have sent them.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

import torch
from torch import Tensor

from backends.torch.kernels.context import Attributes, KernelContext, KernelFunction
from backends.torch.kernels.moe import choice_weights, forced_experts


def route_exact(_: KernelContext, inputs: Sequence[Tensor], attributes: Attributes) -> tuple[Tensor, ...]:
    """Return the weights of the chosen experts, the experts, a row of each choice by expert, and rows per expert."""
    (logits,) = inputs
    experts = forced_experts(logits, attributes["forced"], attributes["top_k"])
    flat = experts.flatten()
    rows = torch.empty_like(flat)
    rows[flat.argsort(stable=True)] = torch.arange(flat.numel(), device=flat.device)
    counts = flat.bincount(minlength=logits.shape[-1])
    return choice_weights(logits, experts), experts.to(torch.int32), rows.view(experts.shape).to(torch.int32), counts


def sort_rows(_: KernelContext, inputs: Sequence[Tensor], attributes: Attributes) -> tuple[Tensor, ...]:
    """Return rows that lie by source rank and expert, by expert and source rank; or the other way."""
    x, counts = inputs
    by_rank = counts.view(attributes["parts"], -1)
    lies = by_rank if attributes["by_expert"] else by_rank.T
    blocks = torch.split_with_sizes(x[0], lies.flatten().tolist())
    across = [blocks[row * lies.shape[1] + column] for column in range(lies.shape[1]) for row in range(lies.shape[0])]
    return (torch.cat(across)[None],)


def ragged_matmul(_: KernelContext, inputs: Sequence[Tensor], _attributes: Attributes) -> tuple[Tensor, ...]:
    """Return every row of x[1, m, k] times the weight of its group, w[g, k, *n]."""
    x, weight, counts = inputs
    y = _times(x[0], weight.flatten(2), counts)
    return (y.view(1, -1, *weight.shape[2:]),)


def ragged_matmul_input_gradient(
    _: KernelContext, inputs: Sequence[Tensor], _attributes: Attributes
) -> tuple[Tensor, ...]:
    """Return dy w^T, every row with the weight of its group."""
    dy, weight, counts = inputs
    return (_times(dy[0].flatten(1), weight.flatten(2).mT, counts)[None],)


def _times(rows: Tensor, weight: Tensor, counts: Tensor) -> Tensor:
    """Return rows[m, k], sorted by group, times the weights [g, k, n] of their groups."""
    parts = torch.split_with_sizes(rows, _rows_of_groups(counts, len(weight)))
    return torch.cat([part @ own for part, own in zip(parts, weight, strict=True)])


def ragged_matmul_weight_gradient(
    _: KernelContext, inputs: Sequence[Tensor], attributes: Attributes
) -> tuple[Tensor, ...]:
    """Add x^T dy to the gradient of w, group by group; return it alone where there is none to add to."""
    x, dy, counts, *accumulated = inputs
    groups = len(attributes["rows"])
    sizes = _rows_of_groups(counts, groups)
    shape = (groups, x.shape[2], *dy.shape[2:])
    total = accumulated[0] if accumulated else dy.new_zeros(shape)
    of_groups = (torch.split_with_sizes(tensor, sizes) for tensor in (x[0], dy[0].flatten(1)))
    for own, rows, gradients in zip(total, *of_groups, strict=True):
        if len(rows):
            own.add_((rows.mT @ gradients).view(own.shape))
    return (total,)


def _rows_of_groups(counts: Tensor, num_groups: int) -> list[int]:
    """Return the rows of each of a rank's groups, of all that came from ranks."""
    sizes: list[int] = counts.view(-1, num_groups).sum(0).tolist()
    return sizes


EXACT_MOE_KERNELS: Final[Mapping[str, KernelFunction]] = MappingProxyType(
    {
        "route_exact": route_exact,
        "sort_rows": sort_rows,
        "ragged_matmul": ragged_matmul,
        "ragged_matmul_input_gradient": ragged_matmul_input_gradient,
        "ragged_matmul_weight_gradient": ragged_matmul_weight_gradient,
    }
)
