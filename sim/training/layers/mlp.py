"""The MLP of a layer: from its normalised input to what the residual stream gets, biases apart."""

from sim.plan.functions import basic as f
from sim.plan.functions.tracing import Parameter, TaskTracer, Tensor
from sim.training.layers.layer import LayerBuilder


def mlp(b: LayerBuilder, t: TaskTracer, name: str, x: Tensor) -> Tensor:
    """Return the family's MLP of x."""
    width = b.model.ffn_hidden_size
    weights, bias = _first(b, t, name, width, biased=b.biased)
    y = _activated(b, t, name, b.column(t, f"{name}.fc1", x, weights, bias))
    return b.row(t, f"{name}.fc2", y, _second(b, t, name, width))


def two_products(b: LayerBuilder, t: TaskTracer, name: str, x: Tensor, width: int, *, biased: bool) -> Tensor:
    """Return two products of x around GELU, or a gate, SwiGLU and a product; a sum over tensor-parallel ranks."""
    weights, bias = _first(b, t, name, width, biased=biased)
    y = _activated(b, t, name, b.product(t, f"{name}.fc1", x, weights, bias))
    return b.product(t, f"{name}.fc2", y, _second(b, t, name, width))


def _first(
    b: LayerBuilder, t: TaskTracer, name: str, width: int, *, biased: bool
) -> tuple[list[Parameter], Parameter | None]:
    h = b.model.hidden_size
    if b.model.family == "llama":
        return b.weights(t, f"{name}.fc1", (h, 2, width), b.shard(2)), None
    weights = b.weights(t, f"{name}.fc1", (h, width), b.shard(1))
    return weights, t.program.parameter(f"{name}.fc1.bias", (width,), b.shard(0), "zeros") if biased else None


def _second(b: LayerBuilder, t: TaskTracer, name: str, width: int) -> list[Parameter]:
    return b.weights(t, f"{name}.fc2", (width, b.model.hidden_size), b.shard(0))


def _activated(b: LayerBuilder, t: TaskTracer, name: str, y: Tensor) -> Tensor:
    kernel = "gelu" if b.model.family == "gpt" else "swiglu"
    return f.elementwise(t, f"{name}.{kernel}", kernel, y)
