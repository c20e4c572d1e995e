"""Random numbers as pure functions of a key and a global index.

A rank can make its slice of a random tensor without the whole tensor, and every sharding gets the same numbers. Bits
come from two rounds of the splitmix64 finaliser (Steele, Lea and Flood 2014).
"""

from collections.abc import Sequence
from hashlib import sha256
from math import pi, prod

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_GOLDEN, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def key_of(*parts: int | str) -> int:
    """Return a signed 64-bit key that depends on every part and on their order."""
    return int.from_bytes(sha256(repr(parts).encode()).digest()[:8], "little", signed=True)


def global_index(shape: Sequence[int], places: Sequence[Tensor]) -> Tensor:
    """Return row-major indices of elements in a tensor of ``shape``. ``places``: int64 indices in each dimension."""
    return strided_index([prod(shape[dim + 1 :]) for dim in range(len(shape))], places)


def strided_index(strides: Sequence[int], places: Sequence[Tensor]) -> Tensor:
    """Return the sum of all places, each times its stride, for every element of a tensor with these dimensions."""
    index = torch.zeros((1,) * len(places), dtype=torch.int64, device=places[0].device if places else None)
    for dim, (stride, positions) in enumerate(zip(strides, places, strict=True)):
        index = index + (positions * stride).view((-1,) + (1,) * (len(places) - dim - 1))
    return index


def bits(key: int, index: Tensor, unused: int = 0) -> Tensor:
    """Return 64 random bits per index as signed integers. ``unused``: so many low bits are shifted out on the right.

    On a host numpy computes them: on small tensors each of torch's operations takes several times as long.
    """
    if index.device.type == "cpu":
        return torch.from_numpy(_bits_on_host(key, index.numpy(), unused))
    return bits_by_torch(key, index, unused)


def _bits_on_host(key: int, index: NDArray[np.int64], unused: int) -> NDArray[np.int64]:
    x = index.astype(np.uint64, order="C")
    x *= np.uint64(_GOLDEN)
    x += np.uint64(key % 2**64)
    for _ in range(2):
        x ^= x >> np.uint64(30)
        x *= np.uint64(_FIRST)
        x ^= x >> np.uint64(27)
        x *= np.uint64(_SECOND)
        x ^= x >> np.uint64(31)
    x >>= np.uint64(unused)
    return x.view(np.int64)


def bits_by_torch(key: int, index: Tensor, unused: int = 0) -> Tensor:
    """Return what ``bits`` does, on any device: torch multiplies signed integers modulo 2^64."""
    return _shifted(_mix(_mix(index * _signed(_GOLDEN) + key)), unused)


def uniform(key: int, index: Tensor) -> Tensor:
    """Return float64 numbers in [0, 1), multiples of 2^-53."""
    if index.device.type == "cpu":
        return torch.from_numpy(_bits_on_host(key, index.numpy(), 11) * 2.0**-53)
    return bits(key, index, 11).to(torch.float64) * 2.0**-53


def normal(key: int, index: Tensor) -> Tensor:
    """Return normally distributed float64 numbers, mean 0, standard deviation 1 (Box and Muller 1958)."""
    radius = torch.sqrt(-2.0 * torch.log1p(-uniform(key, 2 * index)))
    return radius * torch.cos(2.0 * pi * uniform(key, 2 * index + 1))


def integers(key: int, index: Tensor, bound: int) -> Tensor:
    """Return int64 numbers in [0, bound)."""
    return bits(key, index, 1) % bound


def _mix(x: Tensor) -> Tensor:
    x = (x ^ _shifted(x, 30)) * _signed(_FIRST)
    x = (x ^ _shifted(x, 27)) * _signed(_SECOND)
    return x ^ _shifted(x, 31)


def _shifted(x: Tensor, count: int) -> Tensor:
    """Return x shifted right by ``count`` bits; zeros enter from the left."""
    return (x >> count) & ((1 << (64 - count)) - 1) if count else x


def _signed(number: int) -> int:
    """Return the signed 64-bit number of the same bits."""
    return number - 2**64 if number >= 2**63 else number
