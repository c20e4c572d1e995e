"""Copies between tiers of memory: between a device's tensors and its host's."""

from collections.abc import Sequence

import torch
from torch import Tensor

from sim.plan.words.buffer import Buffer, Tier


def place_of(buffer: Buffer, device: torch.device) -> torch.device:
    """Return where the tensor of a buffer lives: on the device, or on its host."""
    return torch.device("cpu") if buffer.tier is Tier.HOST else device


def empty(buffer: Buffer, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return memory for a buffer; that of a GPU's host is pinned, so that copies need not wait for it."""
    pinned = buffer.tier is Tier.HOST and device.type == "cuda"
    return torch.empty(buffer.shape, dtype=dtype, device=place_of(buffer, device), pin_memory=pinned)


def copy_between_tiers(reads: Sequence[Tensor], writes: Sequence[Tensor], *, muted: bool) -> None:
    """Copy a flat vector in pieces into another one, in its own pieces; muted: leave zeros."""
    if muted:
        for tensor in writes:
            tensor.zero_()
        return
    flat = reads[0].reshape(-1) if len(reads) == 1 else torch.cat([tensor.reshape(-1) for tensor in reads])
    start = 0
    for tensor in writes:
        piece = flat[start : start + tensor.numel()]
        tensor.copy_(piece.reshape(tensor.shape), non_blocking=True)
        start += tensor.numel()
