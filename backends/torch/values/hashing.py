"""Random numbers as pure functions of a key and a global index.

A rank can make its slice of a random tensor without the whole tensor, and every sharding gets the same numbers. Bits
come from two rounds of the splitmix64 finaliser (Steele, Lea and Flood 2014).
"""

from collections.abc import Sequence
from hashlib import sha256
from math import pi, prod

import torch
from torch import Tensor

_GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15 as a signed 64-bit number
_FIRST = -4658895280553007687  # 0xBF58476D1CE4E5B9
_SECOND = -7723592293110705685  # 0x94D049BB133111EB


def key_of(*parts: int | str) -> int:
    """Return a signed 64-bit key that depends on every part and on their order."""
    return int.from_bytes(sha256(repr(parts).encode()).digest()[:8], "little", signed=True)


def global_index(shape: Sequence[int], places: Sequence[Tensor]) -> Tensor:
    """Return row-major indices of elements in a tensor of ``shape``. ``places``: int64 indices in each dimension."""
    index = torch.zeros((1,) * len(shape), dtype=torch.int64, device=places[0].device if places else None)
    for dim, positions in enumerate(places):
        steps = positions * prod(shape[dim + 1 :])
        index = index + steps.reshape([-1 if d == dim else 1 for d in range(len(shape))])
    return index


def bits(key: int, index: Tensor) -> Tensor:
    """Return 64 random bits per index, as signed integers (torch multiplies them modulo 2^64)."""
    return _mix(_mix(index * _GOLDEN + key))


def uniform(key: int, index: Tensor) -> Tensor:
    """Return float64 numbers in [0, 1), multiples of 2^-53."""
    return _shifted(bits(key, index), 11).to(torch.float64) * 2.0**-53


def normal(key: int, index: Tensor) -> Tensor:
    """Return normally distributed float64 numbers, mean 0, standard deviation 1 (Box and Muller 1958)."""
    radius = torch.sqrt(-2.0 * torch.log1p(-uniform(key, 2 * index)))
    return radius * torch.cos(2.0 * pi * uniform(key, 2 * index + 1))


def integers(key: int, index: Tensor, bound: int) -> Tensor:
    """Return int64 numbers in [0, bound)."""
    return _shifted(bits(key, index), 1) % bound


def _mix(x: Tensor) -> Tensor:
    x = (x ^ _shifted(x, 30)) * _FIRST
    x = (x ^ _shifted(x, 27)) * _SECOND
    return x ^ _shifted(x, 31)


def _shifted(x: Tensor, count: int) -> Tensor:
    """Return x shifted right by ``count`` bits; zeros enter from the left."""
    return (x >> count) & ((1 << (64 - count)) - 1)
