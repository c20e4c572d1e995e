"""Models that predict clicks: inputs, interactions of embedding vectors, and the logistic loss.

b samples, T tables, w elements of a table's vector. Layers of such models are products and the kernels below.
"""

from collections.abc import Sequence
from math import prod

from costmodels.kernels.elementwise import streaming
from costmodels.kernels.tensor import Attributes, GemmShape, Kernel, TensorSpec, Work, require, total_bytes


def num_pairs(num_vectors: int) -> int:
    """Return the number of pairs of different vectors."""
    return num_vectors * (num_vectors - 1) // 2


def _inputs_outputs(_inputs: Sequence[TensorSpec], attributes: Attributes) -> tuple[TensorSpec, ...]:
    """Return numbers [b, n] and labels [b, 1] of a rank's samples."""
    shape, dtype = (attributes["num_samples"], attributes["num_numbers"]), attributes["dtype"]
    return TensorSpec(shape, dtype), TensorSpec((shape[0], 1), dtype)


def _inputs_work(_inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], _: Attributes) -> Work:
    return Work(0.0, 0.0, 0, total_bytes(outputs))


def _like_first(inputs: Sequence[TensorSpec], _: Attributes) -> tuple[TensorSpec, ...]:
    return (inputs[0],)


def _like_last(inputs: Sequence[TensorSpec], _: Attributes) -> tuple[TensorSpec, ...]:
    return (inputs[-1],)


def _features_outputs(inputs: Sequence[TensorSpec], attributes: Attributes) -> tuple[TensorSpec, ...]:
    """Return [b, n + T*d] from numbers [b, n] and the first d elements of vectors [b, T, w]."""
    numbers, vectors = inputs
    fits = len(vectors.shape) == 3 and numbers.shape[0] == vectors.shape[0] and attributes["width"] <= vectors.shape[2]
    require(fits, "numbers must be [b,n] and vectors [b,T,w]", numbers, vectors)
    return (numbers.like(numbers.shape[0], numbers.shape[1] + vectors.shape[1] * attributes["width"]),)


def _dot_outputs(inputs: Sequence[TensorSpec], _: Attributes) -> tuple[TensorSpec, ...]:
    """Return [b, d + pairs]: x [b, d], and the products of each two of x and the vectors [b, T, d]."""
    x, vectors = inputs
    require(x.shape == (vectors.shape[0], vectors.shape[2]), "x must be [b,d] for vectors [b,T,d]", x, vectors)
    return (x.like(x.shape[0], x.shape[1] + num_pairs(vectors.shape[1] + 1)),)


def _dot_work(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], _: Attributes) -> Work:
    """Return the work of joining all vectors, of their products in a batch, and of taking each pair once."""
    samples, width = inputs[0].shape
    count = inputs[1].shape[1] + 1
    flop = 2.0 * samples * count * count * width
    joined, products = inputs[0].like(samples, count, width).num_bytes, inputs[0].like(samples, count, count).num_bytes
    read = total_bytes(inputs) + joined + products
    return Work(flop, flop, read, total_bytes(outputs), GemmShape(count, count, width, samples), num_kernels=4)


def _dot_backward_outputs(inputs: Sequence[TensorSpec], _: Attributes) -> tuple[TensorSpec, ...]:
    _dy, x, vectors = inputs
    return (x, vectors)


def _dot_backward_work(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], _: Attributes) -> Work:
    """Return the work of the matrix of products' gradients, made symmetric, times the vectors."""
    _dy, x, vectors = inputs
    samples, width = x.shape
    count = vectors.shape[1] + 1
    flop = 2.0 * samples * count * count * width
    matrices = 3 * x.like(samples, count, count).num_bytes
    read = total_bytes(inputs) + matrices
    return Work(flop, flop, read, total_bytes(outputs), GemmShape(count, width, count, samples), num_kernels=5)


def _fm_outputs(inputs: Sequence[TensorSpec], _: Attributes) -> tuple[TensorSpec, ...]:
    """Return [b, 1] from vectors [b, T, d + 1]: first-order weights in the last column, and pairs of the others."""
    (vectors,) = inputs
    require(len(vectors.shape) == 3 and vectors.shape[2] > 1, "vectors must be [b,T,d+1]", vectors)
    return (vectors.like(vectors.shape[0], 1),)


def _cross_outputs(inputs: Sequence[TensorSpec], _: Attributes) -> tuple[TensorSpec, ...]:
    """Return x0 s + bias + x: x0 and x [b, k], s [b, 1], bias [k]."""
    x0, s, bias, x = inputs
    fits = x0.shape == x.shape and s.shape == (x.shape[0], 1) and bias.shape == x.shape[1:]
    require(fits, "x0 and x must be [b,k], s [b,1] and the bias [k]", *inputs)
    return (x,)


def _cross_backward_outputs(inputs: Sequence[TensorSpec], _: Attributes) -> tuple[TensorSpec, ...]:
    """Return the gradients of x0 and s."""
    _dy, x0, s = inputs
    return (x0, s)


def _loss_outputs(inputs: Sequence[TensorSpec], _: Attributes) -> tuple[TensorSpec, ...]:
    logits, labels, loss = inputs
    require(logits.shape == labels.shape, "labels must have the logits' shape", logits, labels)
    return (loss,)


def _joined_outputs(inputs: Sequence[TensorSpec], attributes: Attributes) -> tuple[TensorSpec, ...]:
    """Return [b, T, w] from one block [b, T_r, w] after the other, of each rank r, as rows [b*T, w]."""
    (rows,) = inputs
    count = sum(attributes["tables"])
    require(rows.shape[0] % count == 0, f"the rows must be those of {count} tables", rows)
    return (rows.like(rows.shape[0] // count, count, rows.shape[1]),)


def _parted_outputs(inputs: Sequence[TensorSpec], _: Attributes) -> tuple[TensorSpec, ...]:
    (vectors,) = inputs
    return (vectors.like(prod(vectors.shape[:2]), vectors.shape[2]),)


CLICK_MODEL_KERNELS = (
    Kernel("click_inputs", "none", (0, 0), _inputs_outputs, _inputs_work),
    Kernel("relu", "elementwise", (1, 1), _like_first, streaming(1)),
    Kernel("relu_backward", "elementwise", (2, 2), _like_first, streaming(1)),
    Kernel("features", "elementwise", (2, 2), _features_outputs, streaming(0)),
    Kernel("features_backward", "elementwise", (2, 2), _like_last, streaming(0)),
    Kernel("dot_interaction", "gemm", (2, 2), _dot_outputs, _dot_work),
    Kernel("dot_interaction_backward", "gemm", (3, 3), _dot_backward_outputs, _dot_backward_work),
    Kernel("factorization", "elementwise", (1, 1), _fm_outputs, streaming(3)),
    Kernel("factorization_backward", "elementwise", (2, 2), _like_last, streaming(3, reread=(1,))),
    Kernel("cross", "elementwise", (4, 4), _cross_outputs, streaming(3)),
    Kernel("cross_backward", "elementwise", (3, 3), _cross_backward_outputs, streaming(3)),
    Kernel("logistic_loss", "elementwise", (3, 3), _loss_outputs, streaming(8)),
    Kernel("logistic_loss_backward", "elementwise", (2, 2), _like_first, streaming(6)),
    Kernel("join_tables", "elementwise", (1, 1), _joined_outputs, streaming(0)),
    Kernel("part_tables", "elementwise", (1, 1), _parted_outputs, streaming(0)),
)
