"""Matrix products. Weights are [*k, *n], or [*n, *k] if ``transposed``; ``contract``: number of dimensions in *k."""

from collections.abc import Mapping, Sequence
from math import prod
from types import MappingProxyType
from typing import Final

from torch import Tensor

from backends.torch.kernels.context import Attributes, KernelContext, KernelFunction


def matmul(_: KernelContext, inputs: Sequence[Tensor], attributes: Attributes) -> tuple[Tensor, ...]:
    """Return x w, plus the bias if there is one."""
    x, weight = inputs[:2]
    matrix, contracted, remaining = as_matrix(weight, attributes)
    y = x.reshape(-1, matrix.shape[0]) @ matrix
    if len(inputs) == 3:
        y += inputs[2].reshape(-1)
    return (y.reshape(*x.shape[: -len(contracted)], *remaining),)


def matmul_input_gradient(_: KernelContext, inputs: Sequence[Tensor], attributes: Attributes) -> tuple[Tensor, ...]:
    """Return dy w^T."""
    dy, weight = inputs
    matrix, contracted, remaining = as_matrix(weight, attributes)
    dx = dy.reshape(-1, matrix.shape[1]) @ matrix.T
    return (dx.reshape(*dy.shape[: -len(remaining)], *contracted),)


def matmul_weight_gradient(_: KernelContext, inputs: Sequence[Tensor], attributes: Attributes) -> tuple[Tensor, ...]:
    """Return x^T dy (dy^T x if transposed), added to the gradient of w if there is one."""
    x, dy, *accumulated = inputs
    leading = x.dim() - int(attributes.get("contract", 1))
    contracted, remaining = x.shape[leading:], dy.shape[leading:]
    x, dy = x.reshape(-1, prod(contracted)), dy.reshape(-1, prod(remaining))
    transposed = attributes.get("transposed", False)
    product = (dy.T @ x if transposed else x.T @ dy).reshape(
        (*remaining, *contracted) if transposed else (*contracted, *remaining)
    )
    return (accumulated[0].add_(product) if accumulated else product,)


def as_matrix(weight: Tensor, attributes: Attributes) -> tuple[Tensor, tuple[int, ...], tuple[int, ...]]:
    """Return the weight as [k, n], with the shapes *k and *n."""
    contract = int(attributes.get("contract", 1))
    shape = tuple(weight.shape)
    if attributes.get("transposed", False):
        contracted, remaining = shape[-contract:], shape[:-contract]
        return weight.reshape(prod(remaining), prod(contracted)).T, contracted, remaining
    contracted, remaining = shape[:contract], shape[contract:]
    return weight.reshape(prod(contracted), prod(remaining)), contracted, remaining


GEMM_KERNELS: Final[Mapping[str, KernelFunction]] = MappingProxyType(
    {
        "matmul": matmul,
        "matmul_input_gradient": matmul_input_gradient,
        "matmul_weight_gradient": matmul_weight_gradient,
    }
)
