"""Experts without padding, one row per choice: gate, sorting of rows, and grouped products of unequal groups.

Rows of all experts lie one after the other, [1, R, h]. ``counts`` states the number of rows by source rank and expert,
as the source ranks have sent it.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

import torch
from torch import Tensor

from backends.torch.kernels.context import Attributes, KernelContext, KernelFunction
from backends.torch.kernels.moe import choice_weights, forced_experts


def route_exact(context: KernelContext, inputs: Sequence[Tensor], attributes: Attributes) -> tuple[Tensor, ...]:
    """Return weights and numbers of the chosen experts, the row of each choice by expert, and the rows per expert."""
    weights, experts, counts = choose_exact(context, inputs, attributes)
    return weights, experts, _rows_by(experts), counts


def choose_exact(_: KernelContext, inputs: Sequence[Tensor], attributes: Attributes) -> tuple[Tensor, ...]:
    """Return weights and numbers of the chosen experts, and the number of choices of each expert."""
    (logits,) = inputs
    experts = forced_experts(logits, attributes)
    counts = experts.flatten().bincount(minlength=logits.shape[-1])
    return choice_weights(logits, experts), experts.to(torch.int32), counts


def assign_copies(_: KernelContext, inputs: Sequence[Tensor], attributes: Attributes) -> tuple[Tensor, ...]:
    """Return the row of each choice, sorted by copy, and the rows that come by source rank and own copy.

    Every rank derives both from the counts of all, so the ranks agree without a further exchange.
    """
    experts, gathered = inputs
    copies, place, width = attributes["copies"], attributes["place"], attributes["width"]
    tokens = copies.assigned(gathered.view(attributes["parts"], -1).cpu().numpy())  # [source, expert, rank]
    sent = [
        (expert, rank * width + index, int(tokens[place, expert, rank]))
        for rank, held in enumerate(copies.held)
        for index, expert in enumerate(held)
    ]
    received = torch.zeros(len(tokens), width, dtype=torch.int64)
    own = copies.held[place]
    received[:, : len(own)] = torch.from_numpy(tokens[:, own, place])
    return _rows_by(_copies_of(experts, sorted(sent))), received.flatten().to(gathered.device)


def assign_nodes(_: KernelContext, inputs: Sequence[Tensor], attributes: Attributes) -> tuple[Tensor, ...]:
    """Return the row of each choice, the experts that each row is for, and the rows by node.

    A token has a row for every node with experts of its choice, sorted by node. It belongs to the first choice there;
    others have the number of all rows. A row's experts are numbered within its node, whose number stands for others.
    """
    (experts,), parts, size = inputs, attributes["parts"], attributes["num_experts"] // attributes["parts"]
    chosen = experts.flatten(0, -2).long()
    node_of = chosen // size
    goes = torch.zeros(len(chosen), parts, dtype=torch.bool, device=chosen.device).scatter_(1, node_of, value=True)
    numbers = goes.T.flatten().cumsum(0).view(parts, -1).T - 1
    again = (node_of[:, :, None] == node_of[:, None]).tril(-1).any(-1)
    rows = numbers.gather(1, node_of).masked_fill(again, attributes["rows"])
    node, token = goes.T.nonzero(as_tuple=True)
    local = chosen[token] - node[:, None] * size
    local = local.masked_fill((local < 0) | (local >= size), size)
    return rows.view(experts.shape).to(torch.int32), local[None].to(torch.int32), goes.sum(0)


def hand_on(_: KernelContext, inputs: Sequence[Tensor], attributes: Attributes) -> tuple[Tensor, ...]:
    """Return the row of each choice, sorted by expert, of as many rows as came; and the choices of each expert.

    Choices of experts elsewhere have the number of all rows.
    """
    experts, counts = inputs
    came = experts[:, : int(counts.sum())]
    rows = _rows_by(came).clamp(max=attributes["rows"])
    return rows, came.flatten().bincount(minlength=attributes["num_experts"] + 1)[:-1].clone()


def _rows_by(targets: Tensor) -> Tensor:
    """Return the row of each choice, where rows are sorted by target and then by choice."""
    flat = targets.flatten()
    rows = torch.empty(flat.shape, dtype=torch.int32, device=flat.device)
    rows[flat.argsort(stable=True)] = torch.arange(flat.numel(), dtype=torch.int32, device=flat.device)
    return rows.view(targets.shape)


def sort_rows(_: KernelContext, inputs: Sequence[Tensor], attributes: Attributes) -> tuple[Tensor, ...]:
    """Return rows sorted by expert and source rank, from rows by source rank and expert; or the inverse."""
    x, counts = inputs
    by_rank = counts.view(attributes["parts"], -1)
    lies = by_rank if attributes["by_expert"] else by_rank.T
    blocks = torch.split_with_sizes(x[0], lies.flatten().tolist())
    across = [blocks[row * lies.shape[1] + column] for column in range(lies.shape[1]) for row in range(lies.shape[0])]
    return (torch.cat(across)[None],)


def _copies_of(experts: Tensor, sent: Sequence[tuple[int, int, int]]) -> Tensor:
    """Return the copy for each choice. ``sent``: expert, copy and choices; an expert's copies take them in turn."""
    copies, numbers = (torch.tensor(column) for column in list(zip(*sent, strict=True))[1:])
    flat = experts.flatten()
    found = torch.empty(flat.shape, dtype=torch.int64, device=flat.device)
    found[flat.argsort(stable=True)] = copies.repeat_interleave(numbers).to(flat.device)
    return found.view(experts.shape)


def part_rows(_: KernelContext, inputs: Sequence[Tensor], attributes: Attributes) -> tuple[Tensor, ...]:
    """Return the rows of each copy with rows, from received rows ordered by source rank."""
    x, counts = inputs
    by_rank = counts.view(attributes["parts"], -1)
    blocks = torch.split_with_sizes(x[0], by_rank.flatten().tolist())
    width = by_rank.shape[1]
    filled = [index for index, number in enumerate(attributes["rows"]) if number]
    return tuple(torch.cat(blocks[index::width])[None] for index in filled)


def join_rows(_: KernelContext, inputs: Sequence[Tensor], attributes: Attributes) -> tuple[Tensor, ...]:
    """Return the rows of all copies ordered by source rank, ready to be sent back."""
    counts, *parts = inputs
    by_rank = counts.view(attributes["parts"], -1)
    filled = [index for index, number in enumerate(attributes["rows"]) if number]
    blocks = [
        torch.split_with_sizes(part[0], by_rank[:, index].tolist()) for index, part in zip(filled, parts, strict=True)
    ]
    return (torch.cat([of_copy[rank] for rank in range(attributes["parts"]) for of_copy in blocks])[None],)


def ragged_matmul(_: KernelContext, inputs: Sequence[Tensor], _attributes: Attributes) -> tuple[Tensor, ...]:
    """Return the product of every row of x[1, m, k] and the weight of its group, w[g, k, *n]."""
    x, weight, counts = inputs
    y = _times(x[0], weight.flatten(2), counts)
    return (y.view(1, -1, *weight.shape[2:]),)


def ragged_matmul_input_gradient(
    _: KernelContext, inputs: Sequence[Tensor], _attributes: Attributes
) -> tuple[Tensor, ...]:
    """Return dy w^T, with the weight of each row's group."""
    dy, weight, counts = inputs
    return (_times(dy[0].flatten(1), weight.flatten(2).mT, counts)[None],)


def _times(rows: Tensor, weight: Tensor, counts: Tensor) -> Tensor:
    """Return rows[m, k], sorted by group, times the weights [g, k, n] of their groups."""
    parts = torch.split_with_sizes(rows, _rows_of_groups(counts, len(weight)))
    return torch.cat([part @ own for part, own in zip(parts, weight, strict=True)])


def ragged_matmul_weight_gradient(
    _: KernelContext, inputs: Sequence[Tensor], attributes: Attributes
) -> tuple[Tensor, ...]:
    """Return x^T dy, group by group, added to the gradient of w if there is one."""
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
    """Return the number of received rows of each of this rank's groups."""
    sizes: list[int] = counts.view(-1, num_groups).sum(0).tolist()
    return sizes


EXACT_MOE_KERNELS: Final[Mapping[str, KernelFunction]] = MappingProxyType(
    {
        "route_exact": route_exact,
        "choose_exact": choose_exact,
        "assign_copies": assign_copies,
        "assign_nodes": assign_nodes,
        "hand_on": hand_on,
        "sort_rows": sort_rows,
        "part_rows": part_rows,
        "join_rows": join_rows,
        "ragged_matmul": ragged_matmul,
        "ragged_matmul_input_gradient": ragged_matmul_input_gradient,
        "ragged_matmul_weight_gradient": ragged_matmul_weight_gradient,
    }
)
