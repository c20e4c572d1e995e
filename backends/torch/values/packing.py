"""Many tensors one after another, as a collective takes them."""

from collections.abc import Sequence

import torch
from torch import Tensor


class FlatMemory:
    """Where one stream lays tensors out flat, and receives them, for one collective after another.

    A host's memory is kept for the next one: to touch fresh pages takes several times as long as to copy into known
    ones. A GPU's allocator keeps its own, and what a collective holds there counts only while it runs.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[str, torch.dtype], Tensor] = {}

    def empty(self, use: str, numel: int, like: Tensor) -> Tensor:
        """Return [numel] of ``like``'s type and device; what was returned before for the same ``use`` is no more."""
        if like.device.type != "cpu":
            return like.new_empty(numel)
        key = use, like.dtype
        if key not in self._kept or self._kept[key].numel() < numel:
            self._kept[key] = like.new_empty(numel)
        return self._kept[key][:numel]

    def packed(self, tensors: Sequence[Tensor], numel: int | None = None) -> Tensor:
        """Return the tensors one after another, in memory of their own, with zeros after them up to ``numel``."""
        used = sum(tensor.numel() for tensor in tensors)
        flat = self.empty("packed", max(used, numel or 0), tensors[0])
        torch.cat([tensor.reshape(-1) for tensor in tensors], out=flat[:used])
        flat[used:].zero_()
        return flat


def unpack(flat: Tensor, tensors: Sequence[Tensor]) -> None:
    """Copy a flat vector (its end may be padding) into tensors, in order."""
    start = 0
    for tensor in tensors:
        tensor.copy_(flat[start : start + tensor.numel()].reshape(tensor.shape))
        start += tensor.numel()
