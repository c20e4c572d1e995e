"""Packing of many tensors into one flat tensor, as a collective needs it."""

from collections.abc import Sequence

import torch
from torch import Tensor


class FlatMemory:
    """The flat memory in which one stream packs and receives the tensors of its collectives.

    Host memory is kept for the next collective: the first write to a fresh page takes several times as long as a copy
    into a used page. On a GPU the allocator keeps memory itself, and a collective's memory counts only while it runs.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[str, torch.dtype], Tensor] = {}

    def empty(self, use: str, numel: int, like: Tensor) -> Tensor:
        """Return a tensor [numel] like ``like``. On a host it takes the memory of the last one for the same ``use``."""
        if like.device.type != "cpu":
            return like.new_empty(numel)
        key = use, like.dtype
        if key not in self._kept or self._kept[key].numel() < numel:
            self._kept[key] = like.new_empty(numel)
        return self._kept[key][:numel]

    def packed(self, tensors: Sequence[Tensor], numel: int | None = None) -> Tensor:
        """Return the tensors, flattened and concatenated in this memory, padded with zeros to ``numel`` elements."""
        used = sum(tensor.numel() for tensor in tensors)
        flat = self.empty("packed", max(used, numel or 0), tensors[0])
        torch.cat([tensor.reshape(-1) for tensor in tensors], out=flat[:used])
        flat[used:].zero_()
        return flat


def unpack(flat: Tensor, tensors: Sequence[Tensor]) -> None:
    """Copy a flat vector into tensors, in order; its end may be padding."""
    start = 0
    for tensor in tensors:
        tensor.copy_(flat[start : start + tensor.numel()].reshape(tensor.shape))
        start += tensor.numel()
