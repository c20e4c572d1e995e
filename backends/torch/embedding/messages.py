"""Messages between workers and a parameter server: a header with the number of rows, and tensors.

Rank 0 is the server, the others are workers.
"""

from typing import Final

import torch
import torch.distributed as dist
from torch import Tensor

SERVER: Final = 0
READ, WRITE, FLUSH = 0, 1, 2
"""What a worker asks for: rows, that a step's changes are applied, or the changes that it still holds."""

_HEADER_TAG: Final = 1
"""Headers are told apart from what follows them: the server takes them from whoever comes first."""


def rank_of(worker: int) -> int:
    """Return the rank of a worker."""
    return worker + 1


def send_header(kind: int, num_rows: int) -> None:
    """Tell the server what comes: a kind of request, and its number of rows."""
    dist.send(torch.tensor([kind, num_rows]), SERVER, tag=_HEADER_TAG)


def received_header(worker: int | None) -> tuple[int, int, int]:
    """Return who asks, for what, and the number of rows; ``worker``: None takes whoever comes first."""
    header = torch.zeros(2, dtype=torch.int64)
    rank = dist.recv(header, None if worker is None else rank_of(worker), tag=_HEADER_TAG)
    kind, num_rows = header.tolist()
    return rank - 1, kind, num_rows


def received(shape: tuple[int, ...], rank: int, dtype: torch.dtype = torch.int64) -> Tensor:
    """Return a tensor that another rank sends; one without elements is not sent."""
    tensor = torch.zeros(shape, dtype=dtype)
    if tensor.numel():
        dist.recv(tensor, rank)
    return tensor


def send(tensor: Tensor, rank: int) -> None:
    """Send a tensor to another rank; one without elements is not sent."""
    if tensor.numel():
        dist.send(tensor.contiguous(), rank)
