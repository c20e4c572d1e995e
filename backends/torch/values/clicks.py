"""Drawn samples of models that predict clicks: numbers and labels."""

import torch
from torch import Tensor

from backends.torch.values.hashing import key_of


def drawn_clicks(seed: int, step: int, batch_size: int, num_numbers: int) -> tuple[Tensor, Tensor]:
    """Return normal numbers [batch, n] and labels [batch, 1], 0 or 1, of a step's whole batch, in 64 bits."""
    generator = torch.Generator().manual_seed(key_of("clicks", seed, step))
    numbers = torch.randn(batch_size, num_numbers, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, 2, (batch_size, 1), generator=generator).double()
    return numbers, labels


def drawn_rows(seed: int, num_rows: int, width: int) -> Tensor:
    """Return the rows of all tables before the first step, normal numbers of deviation 0.1 in 64 bits."""
    generator = torch.Generator().manual_seed(key_of("rows", seed))
    return 0.1 * torch.randn(num_rows, width, generator=generator, dtype=torch.float64)
