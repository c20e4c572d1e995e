"""Casts to eight bits, and products of such operands. A product is computed in full width on the scaled-back values."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

import torch
from torch import Tensor

from backends.torch.kernels.context import DTYPES, Attributes, KernelContext, KernelFunction, wide
from backends.torch.kernels.exact_moe import EXACT_MOE_KERNELS
from backends.torch.kernels.gemm import GEMM_KERNELS
from backends.torch.kernels.gemm_pieces import GEMM_PIECE_KERNELS
from backends.torch.kernels.moe import MOE_KERNELS
from costmodels.kernels.float8 import num_factors

_LARGEST_EXPONENT: Final = 126
"""Largest exponent of a scale: with it the inverse of the scale is still a normal float32."""


def cast_float8(_: KernelContext, inputs: Sequence[Tensor], attributes: Attributes) -> tuple[Tensor, ...]:
    """Return copies of x in eight bits, scaled by powers of two so that x fits, and the inverse scale.

    ``by_row``: each row [s, b] has a scale. Scaling by a power of two keeps the digits of all but the smallest elements
    (Micikevicius et al. 2022, section 3).
    """
    x, dtype = wide(inputs[0]), DTYPES[attributes["dtype"]]
    dims = tuple(range(2, x.dim())) if attributes.get("by_row") else ()
    scale = eight_bit_scale(x, dtype, dims)
    cast = (x * scale).to(dtype)
    inverse = 1.0 / scale if dims else (1.0 / scale).reshape(1)
    return cast, *(cast.clone() for _ in range(attributes["copies"] - 1)), inverse


def uncast_float8(_: KernelContext, inputs: Sequence[Tensor], attributes: Attributes) -> tuple[Tensor, ...]:
    """Return the values of a tensor in eight bits and its scale, or its rows' scales."""
    x, scale = inputs
    dtype = DTYPES[attributes["dtype"]]
    return ((x.to(torch.float64 if dtype == torch.float64 else torch.float32) * scale).to(dtype),)


def eight_bit_scale(x: Tensor, dtype: torch.dtype, dims: tuple[int, ...] = ()) -> Tensor:
    """Return the power of two, in float32, by which x is multiplied before it is cast to eight bits.

    ``dims``: dimensions that share a scale; all where none is named.
    """
    magnitudes = x.abs()
    if dims:
        largest = magnitudes.amax(dims, keepdim=True).float()
    else:
        largest = magnitudes.amax().float() if x.numel() else x.new_zeros((), dtype=torch.float32)
    exponent = torch.floor(torch.log2(torch.finfo(dtype).max / largest)).clamp(max=_LARGEST_EXPONENT)
    return torch.where(largest > 0, torch.exp2(exponent), 1.0)


def _product(plain: KernelFunction) -> KernelFunction:
    """Return the kernel of a product with eight-bit operands, from the kernel of the plain product."""

    def product(context: KernelContext, inputs: Sequence[Tensor], attributes: Attributes) -> tuple[Tensor, ...]:
        end = 2 * num_factors(attributes)
        rest = inputs[end:]
        dtype = DTYPES[attributes["dtype"]]
        width = torch.float64 if dtype == torch.float64 else torch.float32
        pairs = zip(inputs[0:end:2], inputs[1:end:2], strict=True)
        operands = (*(factor.to(width) * scale for factor, scale in pairs), *rest)
        (made,) = plain(context, operands, attributes)
        return (made if any(made is given for given in rest) else made.to(dtype),)

    return product


def transpose_float8(_: KernelContext, inputs: Sequence[Tensor], _attributes: Attributes) -> tuple[Tensor, ...]:
    """Return plain copies: no kernel of this backend depends on the order of elements."""
    return tuple(x.clone() for x in inputs)


_OF_EXPERTS: Final = {
    name: kernel
    for name, kernel in {**MOE_KERNELS, **EXACT_MOE_KERNELS}.items()
    if name.startswith(("grouped_", "ragged_"))
}
_PRODUCTS: Final = {**GEMM_KERNELS, **GEMM_PIECE_KERNELS, **_OF_EXPERTS}

FLOAT8_KERNELS: Final[Mapping[str, KernelFunction]] = MappingProxyType(
    {
        "cast_float8": cast_float8,
        "uncast_float8": uncast_float8,
        "transpose_float8": transpose_float8,
        **{f"float8_{name}": _product(plain) for name, plain in _PRODUCTS.items()},
    }
)
