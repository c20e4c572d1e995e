"""Matrix products with one part of a weight that is split along its input dimension."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from torch import Tensor

from backends.torch.kernels.context import Attributes, KernelContext, KernelFunction
from backends.torch.kernels.gemm import as_matrix, matmul, matmul_input_gradient, matmul_weight_gradient


def _part_of(x: Tensor, attributes: Attributes) -> Tensor:
    """Return one part of an activation along its first contracted dimension, as a view."""
    index, count = attributes["part"]
    part: Tensor = x.chunk(count, x.dim() - int(attributes.get("contract", 1)))[index]
    return part


def matmul_part(context: KernelContext, inputs: Sequence[Tensor], attributes: Attributes) -> tuple[Tensor, ...]:
    """Return x[part] w, added to the product of other parts if that is given, plus the bias if there is one."""
    x, weight, *rest = inputs
    (y,) = matmul(context, (_part_of(x, attributes), weight), attributes)
    if not rest:
        return (y,)
    rest[0].add_(y)
    if len(rest) == 2:
        rest[0].add_(rest[1])
    return (rest[0],)


def matmul_part_input_gradient(
    context: KernelContext, inputs: Sequence[Tensor], attributes: Attributes
) -> tuple[Tensor, ...]:
    """Write dy w^T into this part of the gradient of x; return that gradient. In a new one, other parts are zero."""
    dy, weight, *rest = inputs
    (part,) = matmul_input_gradient(context, (dy, weight), attributes)
    contracted = as_matrix(weight, attributes)[1]
    leading = part.shape[: part.dim() - len(contracted)]
    dx = rest[0] if rest else part.new_zeros((*leading, contracted[0] * attributes["part"][1], *contracted[1:]))
    _part_of(dx, attributes).copy_(part)
    return (dx,)


def matmul_part_weight_gradient(
    context: KernelContext, inputs: Sequence[Tensor], attributes: Attributes
) -> tuple[Tensor, ...]:
    """Return x[part]^T dy, added to the gradient of the weight's part if there is one."""
    x, *rest = inputs
    return matmul_weight_gradient(context, (_part_of(x, attributes), *rest), attributes)


GEMM_PART_KERNELS: Final[Mapping[str, KernelFunction]] = MappingProxyType(
    {
        "matmul_part": matmul_part,
        "matmul_part_input_gradient": matmul_part_input_gradient,
        "matmul_part_weight_gradient": matmul_part_weight_gradient,
    }
)
