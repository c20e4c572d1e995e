"""Copies between tiers of memory: device, host and drive."""

from collections.abc import Sequence
from os import posix_fallocate
from tempfile import NamedTemporaryFile, gettempdir

import torch
from torch import Tensor

from backends.execution.errors import ExecutionError
from sim.plan.words.buffer import Buffer, Tier


def place_of(buffer: Buffer, device: torch.device) -> torch.device:
    """Return the torch device of a buffer's tensor: the rank's device, or its host."""
    return device if buffer.tier is Tier.DEVICE else torch.device("cpu")


def empty(buffer: Buffer, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return an uninitialised tensor for a buffer. Beside a GPU, host memory is pinned, for asynchronous copies."""
    if buffer.tier is Tier.NVME:
        return on_drive(buffer, dtype)
    pinned = buffer.tier is Tier.HOST and device.type == "cuda"
    return torch.empty(buffer.shape, dtype=dtype, device=place_of(buffer, device), pin_memory=pinned)


def on_drive(buffer: Buffer, dtype: torch.dtype) -> Tensor:
    """Return a tensor in a file of its own. The file has no name and vanishes with the tensor.

    Raises ExecutionError if the file cannot be made, as on a full disk.
    """
    num_bytes = max(1, buffer.num_bytes)
    try:
        with NamedTemporaryFile(prefix="meshtwin-") as file:
            posix_fallocate(file.fileno(), 0, num_bytes)
            tensor = torch.from_file(file.name, shared=True, size=buffer.num_elements, dtype=dtype)
    except OSError as error:
        raise ExecutionError(
            f"buffer {buffer.name!r}: no file of {num_bytes:,} bytes in {gettempdir()}: {error.strerror}; "
            "make room there, or set TMPDIR to a folder of another drive"
        ) from error
    return tensor.reshape(buffer.shape)


def copy_between_tiers(reads: Sequence[Tensor], writes: Sequence[Tensor], *, muted: bool) -> None:
    """Copy a flat vector, stored in several tensors, into other tensors. ``muted``: write zeros instead."""
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
