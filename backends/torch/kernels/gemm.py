"""Matrix products: weights are [*k, *n], or [*n, *k] where ``transposed``; ``contract`` counts the dimensions *k."""

from collections.abc import Mapping, Sequence
from math import prod
from types import MappingProxyType
from typing import Final

from torch import Tensor

from backends.torch.kernels.context import Attributes, KernelContext, KernelFunction


def matmul(_: KernelContext, inputs: Sequence[Tensor], attributes: Attributes) -> tuple[Tensor, ...]:
    """Return x w, plus a bias where there is one."""
    x, weight = inputs[:2]
    matrix, contracted, remaining = _as_matrix(weight, attributes)
    y = x.reshape(-1, matrix.shape[0]) @ matrix
    if len(inputs) == 3:
        y += inputs[2].reshape(-1)
    return (y.reshape(*x.shape[: -len(contracted)], *remaining),)


def matmul_input_gradient(_: KernelContext, inputs: Sequence[Tensor], attributes: Attributes) -> tuple[Tensor, ...]:
    """Return dy w^T."""
    dy, weight = inputs
    matrix, contracted, remaining = _as_matrix(weight, attributes)
    dx = dy.reshape(-1, matrix.shape[1]) @ matrix.T
    return (dx.reshape(*dy.shape[: -len(remaining)], *contracted),)


def matmul_weight_gradient(_: KernelContext, inputs: Sequence[Tensor], attributes: Attributes) -> tuple[Tensor, ...]:
    """Add x^T dy (dy^T x where transposed) to the gradient of w, or return it where there is none to add to."""
    x, dy, *accumulated = inputs
    if not accumulated:
        return (_fresh_gradient(x, dy, attributes),)
    (gradient,) = accumulated
    rows, columns = _as_matrix(gradient, attributes)[0].shape
    x, dy = x.reshape(-1, rows), dy.reshape(-1, columns)
    product = dy.T @ x if attributes.get("transposed", False) else x.T @ dy
    gradient += product.reshape(gradient.shape)
    return (gradient,)


def _fresh_gradient(x: Tensor, dy: Tensor, attributes: Attributes) -> Tensor:
    """Return x^T dy, or dy^T x where transposed, in the shape of w."""
    num_leading = x.ndim - int(attributes.get("contract", 1))
    contracted, remaining = x.shape[num_leading:], dy.shape[num_leading:]
    x, dy = x.reshape(-1, prod(contracted)), dy.reshape(-1, prod(remaining))
    if attributes.get("transposed", False):
        return (dy.T @ x).reshape(*remaining, *contracted)
    return (x.T @ dy).reshape(*contracted, *remaining)


def _as_matrix(weight: Tensor, attributes: Attributes) -> tuple[Tensor, tuple[int, ...], tuple[int, ...]]:
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
