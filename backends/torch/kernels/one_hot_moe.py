"""Dispatch and combination as matrix products with one-hot masks [s, b, E, C] of tokens and slots."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

import torch
from torch import Tensor

from backends.torch.kernels.context import DTYPES, Attributes, KernelContext, KernelFunction, wide


def slot_masks(_: KernelContext, inputs: Sequence[Tensor], attributes: Attributes) -> tuple[Tensor, ...]:
    """Return two masks: with a one, and with the choice's weight, in the slot of every choice."""
    weights, slots = inputs
    num_experts, capacity = attributes["num_experts"], attributes["capacity"]
    shape = (*slots.shape[:-1], num_experts * capacity + 1)
    mask = weights.new_zeros(shape).scatter_(-1, slots.long(), weights)[..., :-1]
    combining = mask.clone().view(*slots.shape[:-1], num_experts, capacity)
    ones = torch.zeros(shape, dtype=DTYPES[attributes["dtype"]], device=slots.device)
    ones = ones.scatter_(-1, slots.long(), 1.0)[..., :-1]
    return ones.clone().view_as(combining), combining


def slot_masks_backward(_: KernelContext, inputs: Sequence[Tensor], _attributes: Attributes) -> tuple[Tensor, ...]:
    """Return the gradient of the choices' weights, zero where a choice has no slot."""
    gradient, slots = inputs
    flat = gradient.flatten(-2)
    found = slots < flat.shape[-1]
    return (flat.gather(-1, slots.long().clamp(max=flat.shape[-1] - 1)) * found,)


def einsum_dispatch(_: KernelContext, inputs: Sequence[Tensor], _attributes: Attributes) -> tuple[Tensor, ...]:
    """Return the slots [E, C, h], filled with the tokens x that chose them."""
    x, mask = inputs
    return (torch.einsum("sbec,sbh->ech", mask, x),)


def einsum_dispatch_backward(_: KernelContext, inputs: Sequence[Tensor], _attributes: Attributes) -> tuple[Tensor, ...]:
    """Return the sum of dy over every token's slots."""
    dy, mask = inputs
    return (torch.einsum("sbec,ech->sbh", mask, dy),)


def einsum_combine(_: KernelContext, inputs: Sequence[Tensor], _attributes: Attributes) -> tuple[Tensor, ...]:
    """Return the weighted sum of y over every token's slots."""
    y, mask = inputs
    return (torch.einsum("sbec,ech->sbh", mask.to(y.dtype), y),)


def einsum_combine_backward(_: KernelContext, inputs: Sequence[Tensor], _attributes: Attributes) -> tuple[Tensor, ...]:
    """Return the gradients of y and of the mask."""
    dout, y, mask = inputs
    dy = torch.einsum("sbec,sbh->ech", mask.to(y.dtype), dout)
    return dy, torch.einsum("sbh,ech->sbec", wide(dout), wide(y)).to(mask.dtype)


ONE_HOT_MOE_KERNELS: Final[Mapping[str, KernelFunction]] = MappingProxyType(
    {
        "slot_masks": slot_masks,
        "slot_masks_backward": slot_masks_backward,
        "einsum_dispatch": einsum_dispatch,
        "einsum_dispatch_backward": einsum_dispatch_backward,
        "einsum_combine": einsum_combine,
        "einsum_combine_backward": einsum_combine_backward,
    }
)
