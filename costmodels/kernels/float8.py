"""Casts to eight bits, and matrix products of such operands (Micikevicius et al. 2022, FP8 Formats for Deep Learning).

A tensor in eight bits comes with its scale, one float32, or one for each row; elements times the scale are the values.
A row is all that the first two dimensions number: a token's vector. So a product takes
two pairs of tensor and scale (more if an operand is given in pieces), and then the other inputs of the plain product: a
bias, or the buffer that it adds to. ``dtype`` is the type of the result. A cast writes ``copies`` of the tensor.
Hopper's tensor cores take operands of eight bits only with the summed dimension innermost. So if two products sum over
different dimensions, the tensor is written in two orders (cuBLAS, cublasLtMatmul).
"""

from collections.abc import Sequence

from costmodels.kernels.elementwise import streaming
from costmodels.kernels.exact_moe import EXACT_MOE_KERNELS
from costmodels.kernels.gemm import GEMM_KERNELS
from costmodels.kernels.gemm_pieces import GEMM_PIECE_KERNELS
from costmodels.kernels.moe import MOE_KERNELS
from costmodels.kernels.tensor import Attributes, Kernel, TensorSpec, Work, require


def _cast_outputs(inputs: Sequence[TensorSpec], attributes: Attributes) -> tuple[TensorSpec, ...]:
    (x,) = inputs
    copy = TensorSpec(x.shape, attributes["dtype"])
    scale = TensorSpec(_of_rows(x) if attributes.get("by_row") else (1,), "float32")
    return (*[copy] * attributes["copies"], scale)


def _uncast_outputs(inputs: Sequence[TensorSpec], attributes: Attributes) -> tuple[TensorSpec, ...]:
    x, scale = inputs
    require(scale.shape in {(1,), _of_rows(x)}, "a scale is one float32, or one for each row", scale)
    return (TensorSpec(x.shape, attributes["dtype"]),)


def _of_rows(x: TensorSpec) -> tuple[int, ...]:
    """Return the shape of the scales of a tensor's rows."""
    return (*x.shape[:2], *[1] * (len(x.shape) - 2))


def num_factors(attributes: Attributes) -> int:
    """Return how many tensors with scales a product takes: two, or more where one factor is given in pieces."""
    return int(attributes["pieces"]) + 1 if "in_pieces" in attributes else 2


def _operands(inputs: Sequence[TensorSpec], attributes: Attributes) -> tuple[TensorSpec, ...]:
    """Return what the plain product takes: the inputs without the scales."""
    end = 2 * num_factors(attributes)
    for x, scale in zip(inputs[0:end:2], inputs[1:end:2], strict=True):
        fits = scale.dtype == "float32" and scale.shape in {(1,), _of_rows(x)}
        require(fits, "a scale is one float32, or one for each row", scale)
    return (*inputs[0:end:2], *inputs[end:])


def _like_all(inputs: Sequence[TensorSpec], _: Attributes) -> tuple[TensorSpec, ...]:
    return tuple(inputs)


def _product(plain: Kernel) -> Kernel:
    """Return the product of operands in eight bits that is like a plain one."""

    def outputs(inputs: Sequence[TensorSpec], attributes: Attributes) -> tuple[TensorSpec, ...]:
        operands = _operands(inputs, attributes)
        (made,) = plain.outputs(operands, attributes)
        accumulates = made is operands[-1] and len(operands) > num_factors(attributes)
        return (made if accumulates else TensorSpec(made.shape, attributes["dtype"]),)

    def work(inputs: Sequence[TensorSpec], made: Sequence[TensorSpec], attributes: Attributes) -> Work:
        return plain.work(_operands(inputs, attributes), made, attributes)

    least, most = plain.num_inputs
    return Kernel(f"float8_{plain.name}", plain.family, (least + 2, most + 2), outputs, work)


_OF_EXPERTS = [
    kernel for kernel in (*MOE_KERNELS, *EXACT_MOE_KERNELS) if kernel.name.startswith(("grouped_", "ragged_"))
]
FLOAT8_KERNELS = (
    # one pass: what made x knows the largest magnitude, or steps before do (Transformer Engine's delayed scaling)
    Kernel("cast_float8", "elementwise", (1, 1), _cast_outputs, streaming(2)),
    Kernel("uncast_float8", "elementwise", (2, 2), _uncast_outputs, streaming(1)),
    Kernel("transpose_float8", "elementwise", (1, float("inf")), _like_all, streaming(0)),
    *(_product(kernel) for kernel in (*GEMM_KERNELS, *GEMM_PIECE_KERNELS, *_OF_EXPERTS)),
)
