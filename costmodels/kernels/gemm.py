"""Matrix products: forward, input gradient and weight gradient of a linear layer.

The activation is [..., *k] or [..., *n], the weight [*k, *n], or [*n, *k] where ``transposed``;
``contract`` says how many trailing dimensions of the activation are *k (1 unless said).
FLOP: 2MKN per product (Narayanan et al. 2021, appendix).
"""

from collections.abc import Sequence
from math import prod

from costmodels.kernels.tensor import Attributes, GemmShape, Kernel, TensorSpec, Work, require, total_bytes


def weight_dims(weight: TensorSpec, attributes: Attributes) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the contracted (*k) and the remaining (*n) dimensions of a weight."""
    contract = int(attributes.get("contract", 1))
    require(1 <= contract < len(weight.shape), f"contract {contract} must leave both sides of the weight", weight)
    if attributes.get("transposed", False):
        return weight.shape[-contract:], weight.shape[:-contract]
    return weight.shape[:contract], weight.shape[contract:]


def leading_dims(tensor: TensorSpec, trailing: tuple[int, ...], weight: TensorSpec) -> tuple[int, ...]:
    """Return the dimensions of an activation that lie before those of a weight; KernelError where they do not fit."""
    count = len(trailing)
    require(
        len(tensor.shape) >= count and tensor.shape[-count:] == trailing,
        f"the activation must end in {list(trailing)} to fit the weight",
        tensor,
        weight,
    )
    return tensor.shape[:-count]


def _product(m: int, n: int, k: int, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> Work:
    flop = 2.0 * m * n * k
    return Work(flop, flop, total_bytes(inputs), total_bytes(outputs), GemmShape(m, n, k))


def _matmul_outputs(inputs: Sequence[TensorSpec], attributes: Attributes) -> tuple[TensorSpec, ...]:
    x, weight = inputs[:2]
    contracted, remaining = weight_dims(weight, attributes)
    if len(inputs) == 3:
        require(inputs[2].shape == remaining, f"the bias must be {list(remaining)}", inputs[2], weight)
    return (x.like(*leading_dims(x, contracted, weight), *remaining),)


def _matmul_work(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], attributes: Attributes) -> Work:
    contracted, remaining = weight_dims(inputs[1], attributes)
    k, n = prod(contracted), prod(remaining)
    return _product(inputs[0].num_elements // k, n, k, inputs, outputs)


def _input_gradient_outputs(inputs: Sequence[TensorSpec], attributes: Attributes) -> tuple[TensorSpec, ...]:
    dy, weight = inputs
    contracted, remaining = weight_dims(weight, attributes)
    return (dy.like(*leading_dims(dy, remaining, weight), *contracted),)


def _input_gradient_work(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], attributes: Attributes) -> Work:
    contracted, remaining = weight_dims(inputs[1], attributes)
    n, k = prod(contracted), prod(remaining)
    return _product(inputs[0].num_elements // k, n, k, inputs, outputs)


def _weight_gradient_outputs(inputs: Sequence[TensorSpec], attributes: Attributes) -> tuple[TensorSpec, ...]:
    x, dy = inputs[:2]
    gradient = inputs[2] if len(inputs) == 3 else _fresh_gradient(x, dy, attributes)
    contracted, remaining = weight_dims(gradient, attributes)
    require(
        leading_dims(x, contracted, gradient) == leading_dims(dy, remaining, gradient),
        "x and dy must agree outside the weight's dimensions",
        x,
        dy,
    )
    return (gradient,)


def _fresh_gradient(x: TensorSpec, dy: TensorSpec, attributes: Attributes) -> TensorSpec:
    """Return the gradient of a product that is not added to what is there already, in the type of dy."""
    num_leading = len(x.shape) - int(attributes.get("contract", 1))
    contracted, remaining = x.shape[num_leading:], dy.shape[num_leading:]
    require(0 < num_leading < len(dy.shape), "dy must have x's leading dimensions and its own", x, dy)
    return dy.like(*remaining, *contracted) if attributes.get("transposed", False) else dy.like(*contracted, *remaining)


def _weight_gradient_work(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], attributes: Attributes) -> Work:
    contracted, remaining = weight_dims(outputs[0], attributes)
    m, n = prod(contracted), prod(remaining)
    if attributes.get("transposed", False):
        m, n = n, m
    return _product(m, n, inputs[0].num_elements // prod(contracted), inputs, outputs)


GEMM_KERNELS = (
    Kernel("matmul", "gemm", (2, 3), _matmul_outputs, _matmul_work),
    Kernel("matmul_input_gradient", "gemm", (2, 2), _input_gradient_outputs, _input_gradient_work),
    Kernel("matmul_weight_gradient", "gemm", (2, 3), _weight_gradient_outputs, _weight_gradient_work),
)
