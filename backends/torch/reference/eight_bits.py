"""What eight bits keep of a number, and a dense model whose products and caches see no more than that.

E4M3 (Micikevicius et al. 2022, FP8 Formats for Deep Learning, table 1): three bits after the leading one, exponents of
-6 and more, below which numbers are multiples of 2^-9, and 448 as the largest number. A tensor is scaled by the largest
power of two with which it fits, and so are 128 neighbouring numbers of a cached latent.
"""

from collections.abc import Mapping
from typing import Final

import torch
from msgspec.structs import replace
from torch import Tensor

from backends.torch.reference.dense import DenseModel

_TILE: Final = 128
_LARGEST: Final = 448.0
_LEAST_EXPONENT: Final = -6
_DIGITS: Final = 3
_WIDE: Final = ("norm", "embedding.", "head.", ".router.", ".bias", "shared_gate", ".kv_up.")
"""Parts of the names of parameters that no product of a layer in eight bits takes."""


def rounded(x: Tensor) -> Tensor:
    """Return what eight bits keep of x, without a scale; what is larger than 448 becomes 448."""
    x = x.clamp(-_LARGEST, _LARGEST)
    exponent = torch.frexp(x).exponent - 1
    unit = torch.exp2(exponent.clamp(min=_LEAST_EXPONENT).to(x.dtype) - _DIGITS)
    return torch.round(x / unit) * unit


def scaled_and_rounded(x: Tensor, dims: tuple[int, ...] = ()) -> Tensor:
    """Return what eight bits keep of x with scales. ``dims``: dimensions that share a scale; all if none is named."""
    largest = x.abs().amax(dims, keepdim=True) if dims else x.abs().max()
    scale = torch.where(largest > 0, torch.exp2(torch.floor(torch.log2(_LARGEST / largest))), 1.0)
    return rounded(x * scale) / scale


class EightBitModel(DenseModel, frozen=True):
    """A dense model in eight bits. ``ranks``: that share every layer, and scale their own parts of inputs.

    ``operands``: inputs of products are rounded, token by token. ``caches``: keys and values are, or latents, 128
    numbers of which share a scale. ``num_prompt``: first tokens, which see each other's latents before they are cached.
    """

    ranks: int = 1
    operands: bool = True
    caches: bool = False
    num_prompt: int = 0

    def operand(self, x: Tensor, *, rows: int = 2, shared: int | None = None) -> Tensor:
        """Return an input of a product, rounded row by row; see ``DenseModel``."""
        if not self.operands:
            return x
        dims = tuple(range(rows, x.dim()))
        if shared is None:
            return scaled_and_rounded(x, dims)
        return torch.cat([scaled_and_rounded(part, dims) for part in x.chunk(self.ranks, shared)], shared)

    def kept(self, x: Tensor) -> Tensor:
        """Return keys, values or latents as caches keep them."""
        if not self.caches:
            return x
        if self.job.model.latent_attention is None:
            return rounded(x)
        return torch.cat([scaled_and_rounded(tile, (-1,)) for tile in torch.split(x, _TILE, -1)], -1)

    def context(self, index: int, x: Tensor) -> Tensor:
        """Return the attention of a layer's input; see ``DenseModel``."""
        found = super().context(index, x)
        if not self.caches or self.job.model.latent_attention is None:
            return found
        prompt = replace(self, caches=False).context(index, x[: self.num_prompt])
        return torch.cat((prompt, found[self.num_prompt :]))


def rounded_weights(parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return parameters of which those that products take are rounded, each tensor with one scale."""
    return {
        name: value if any(part in name for part in _WIDE) else scaled_and_rounded(value)
        for name, value in parameters.items()
    }
