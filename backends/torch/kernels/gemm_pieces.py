"""Matrix products of activations that travel between ranks in pieces."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

import torch
from torch import Tensor

from backends.torch.kernels.context import Attributes, KernelContext, KernelFunction
from backends.torch.kernels.gemm import matmul, matmul_input_gradient, matmul_weight_gradient


def _place(context: KernelContext, attributes: Attributes) -> int:
    """Return the number of a rank's piece in the whole."""
    place: int = (context.index(attributes["axes"]) + attributes["piece"]) % attributes["pieces"]
    return place


def _filling(plain: KernelFunction) -> KernelFunction:
    """Return the kernel that writes the product of one piece of the activation into its rows of the whole product."""

    def product(context: KernelContext, inputs: Sequence[Tensor], attributes: Attributes) -> tuple[Tensor, ...]:
        fills, count = attributes["fills"], attributes["pieces"]
        (piece,) = plain(context, inputs[:-1] if fills else inputs, attributes)
        whole = inputs[-1] if fills else piece.new_zeros((piece.shape[0] * count, *piece.shape[1:]))
        whole.chunk(count)[_place(context, attributes)].copy_(piece)
        return (whole,)

    return product


def matmul_rows(context: KernelContext, inputs: Sequence[Tensor], attributes: Attributes) -> tuple[Tensor, ...]:
    """Return the product of one piece of x and the weight."""
    piece = inputs[0].chunk(attributes["pieces"])[_place(context, attributes)]
    return matmul(context, (piece, *inputs[1:]), attributes)


def matmul_pieces_weight_gradient(
    context: KernelContext, inputs: Sequence[Tensor], attributes: Attributes
) -> tuple[Tensor, ...]:
    """Return x^T dy, added to the gradient of w. One operand comes in pieces, this rank's own piece first."""
    count, first = attributes["pieces"], 0 if attributes["in_pieces"] == "x" else 1
    pieces, position = inputs[first : first + count], context.index(attributes["axes"])
    whole = torch.cat([pieces[(place - position) % count] for place in range(count)])
    return matmul_weight_gradient(context, (*inputs[:first], whole, *inputs[first + count :]), attributes)


GEMM_PIECE_KERNELS: Final[Mapping[str, KernelFunction]] = MappingProxyType(
    {
        "matmul_piece": _filling(matmul),
        "matmul_piece_input_gradient": _filling(matmul_input_gradient),
        "matmul_rows": matmul_rows,
        "matmul_pieces_weight_gradient": matmul_pieces_weight_gradient,
    }
)
