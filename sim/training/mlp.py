"""The MLP of a layer: from its normalised input to what the residual stream gets, biases apart."""

from sim.plan import functions as f
from sim.plan.tracing import TaskTracer, Tensor
from sim.training.layer import LayerBuilder


def mlp(b: LayerBuilder, t: TaskTracer, name: str, x: Tensor) -> Tensor:
    """Return the family's MLP of x."""
    return b.row_output(t, two_products(b, t, name, b.column_input(t, x), b.model.ffn_hidden_size, biased=b.biased))


def two_products(b: LayerBuilder, t: TaskTracer, name: str, x: Tensor, width: int, *, biased: bool) -> Tensor:
    """Return two products of x around GELU, or a gate, SwiGLU and a product; a sum over tensor-parallel ranks."""
    h = b.model.hidden_size
    if b.model.family == "gpt":
        weight = b.weights(t, f"{name}.fc1", (h, width), b.shard(1))
        bias = t.program.parameter(f"{name}.fc1.bias", (width,), b.shard(0), "zeros") if biased else None
        y = f.elementwise(t, f"{name}.gelu", "gelu", b.product(t, f"{name}.fc1", x, weight, bias))
    else:
        weight = b.weights(t, f"{name}.fc1", (h, 2, width), b.shard(2))
        y = f.elementwise(t, f"{name}.swiglu", "swiglu", b.product(t, f"{name}.fc1", x, weight))
    return b.product(t, f"{name}.fc2", y, b.weights(t, f"{name}.fc2", (width, h), b.shard(0)))
