"""Latents cached in eight bits with a scale for 128 numbers each, beside the positions of their keys."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

import torch
from torch import Tensor

from backends.torch.kernels.cached_attention import cached_attention
from backends.torch.kernels.context import DTYPES, Attributes, KernelContext, KernelFunction, wide
from backends.torch.kernels.float8 import eight_bit_scale
from costmodels.kernels.scaled_latents import LATENT_DTYPE, SCALE_DTYPE, TILE


def append_latents(_: KernelContext, inputs: Sequence[Tensor], attributes: Attributes) -> tuple[Tensor, ...]:
    """Write latents [s, 1, r] and positions [s, 1, 1, p] into their places; return the caches, or new ones.

    A scale is the least power of two with which its numbers fit (FlashMLA, ``_cast_scale_inv_to_ue8m0``).
    """
    latent, position, *given = inputs
    numbers, scales = _scaled(wide(latent))
    rows = (numbers, scales, position.flatten(1, 2))
    caches = given or [x.new_empty((attributes["rows"], *x.shape[1:])) for x in rows]
    start = 0
    for first, count in attributes["places"]:
        for cache, x in zip(caches, rows, strict=True):
            cache[first : first + count] = x[start : start + count]
        start += count
    return tuple(caches)


def _scaled(latent: Tensor) -> tuple[Tensor, Tensor]:
    """Return latents in eight bits, and the scale of each tile by which its numbers are multiplied again."""
    dtype = DTYPES[LATENT_DTYPE]
    numbers, scales = [], []
    for tile in torch.split(latent, TILE, -1):
        scale = eight_bit_scale(tile, dtype, (-1,))
        numbers.append((tile * scale).to(dtype))
        scales.append(1.0 / scale)
    return torch.cat(numbers, -1), torch.cat(scales, -1).to(DTYPES[SCALE_DTYPE])


def decode_latents(context: KernelContext, inputs: Sequence[Tensor], attributes: Attributes) -> tuple[Tensor, ...]:
    """Return the attention of every query to its sequence's latents up to its own, widened to the queries' type."""
    q, numbers, scales, positions = inputs
    rank = numbers.shape[-1]
    latents = numbers.to(q.dtype) * scales.to(q.dtype).repeat_interleave(TILE, -1)[..., :rank]
    return cached_attention(context, (q, torch.cat((latents, positions), -1)), {**attributes, "value_size": rank})


SCALED_LATENT_KERNELS: Final[Mapping[str, KernelFunction]] = MappingProxyType(
    {"append_latents": append_latents, "decode_latents": decode_latents}
)
