"""Matrix products of one part of a weight that is split along its input dimension (operator splitting).

``part`` is (index, count): of ``count`` equal parts of the activation's first contracted dimension, the one that the
weight's part is multiplied with. Products of parts add up; their input gradients lie side by side. So a buffer given
last is added to, or filled further, in place; where there is none, a new one is made.
"""

from collections.abc import Sequence
from math import prod

from costmodels.kernels.gemm import leading_dims, weight_dims
from costmodels.kernels.tensor import Attributes, GemmShape, Kernel, TensorSpec, Work, require, total_bytes


def _whole(contracted: tuple[int, ...], attributes: Attributes) -> tuple[int, ...]:
    """Return the contracted dimensions of the whole weight, of those of a part."""
    index, count = attributes["part"]
    require(0 <= index < count, f"part {index} is not one of {count}")
    return (contracted[0] * count, *contracted[1:])


def _product_outputs(inputs: Sequence[TensorSpec], attributes: Attributes) -> tuple[TensorSpec, ...]:
    x, weight, *rest = inputs
    contracted, remaining = weight_dims(weight, attributes)
    y = x.like(*leading_dims(x, _whole(contracted, attributes), weight), *remaining)
    require(not rest or rest[0] == y, "the product of the other parts must have this one's shape", *inputs)
    require(len(rest) < 2 or rest[1].shape == remaining, f"the bias must be {list(remaining)}", *inputs)
    return (y,)


def _input_gradient_outputs(inputs: Sequence[TensorSpec], attributes: Attributes) -> tuple[TensorSpec, ...]:
    dy, weight, *rest = inputs
    contracted, remaining = weight_dims(weight, attributes)
    dx = dy.like(*leading_dims(dy, remaining, weight), *_whole(contracted, attributes))
    require(not rest or rest[0] == dx, "the gradient of the other parts must have this one's shape", *inputs)
    return (dx,)


def _weight_gradient_outputs(inputs: Sequence[TensorSpec], attributes: Attributes) -> tuple[TensorSpec, ...]:
    x, dy, *rest = inputs
    num_leading, (_, count) = len(x.shape) - int(attributes.get("contract", 1)), attributes["part"]
    leading, contracted, remaining = x.shape[:num_leading], x.shape[num_leading:], dy.shape[num_leading:]
    require(dy.shape[:num_leading] == leading, "x and dy must agree outside the weight's dimensions", x, dy)
    require(contracted[0] % count == 0, f"the first contracted dimension must divide by {count}", x)
    part = (contracted[0] // count, *contracted[1:])
    shape = (*remaining, *part) if attributes.get("transposed", False) else (*part, *remaining)
    require(not rest or rest[0].shape == shape, f"the gradient must be {list(shape)}", *inputs)
    return (rest[0] if rest else dy.like(*shape),)


def _product_work(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], attributes: Attributes) -> Work:
    x, weight, *rest = inputs
    contracted, remaining = weight_dims(weight, attributes)
    rows = outputs[0].num_elements // prod(remaining)
    read = x.num_bytes // attributes["part"][1] + weight.num_bytes + total_bytes(rest)
    return _work(rows, prod(remaining), prod(contracted), read, outputs[0].num_bytes)


def _input_gradient_work(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], attributes: Attributes) -> Work:
    dy, weight = inputs[:2]
    contracted, remaining = weight_dims(weight, attributes)
    written = outputs[0].num_bytes // attributes["part"][1]
    return _work(
        dy.num_elements // prod(remaining), prod(contracted), prod(remaining), total_bytes((dy, weight)), written
    )


def _weight_gradient_work(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], attributes: Attributes) -> Work:
    x, dy, *rest = inputs
    contracted, remaining = weight_dims(outputs[0], attributes)
    m, n = prod(contracted), prod(remaining)
    if attributes.get("transposed", False):
        m, n = n, m
    rows = dy.num_elements // prod(remaining)
    read = x.num_bytes // attributes["part"][1] + dy.num_bytes + total_bytes(rest)
    return _work(m, n, rows, read, outputs[0].num_bytes)


def _work(m: int, n: int, k: int, read: int, written: int) -> Work:
    flop = 2.0 * m * n * k
    return Work(flop, flop, read, written, GemmShape(m, n, k))


GEMM_PART_KERNELS = (
    Kernel("matmul_part", "gemm", (2, 4), _product_outputs, _product_work),
    Kernel("matmul_part_input_gradient", "gemm", (2, 3), _input_gradient_outputs, _input_gradient_work),
    Kernel("matmul_part_weight_gradient", "gemm", (2, 3), _weight_gradient_outputs, _weight_gradient_work),
)
