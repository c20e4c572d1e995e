"""The MLP of a layer: from its normalised input to what the residual stream gets, biases apart."""

from sim.plan.functions import basic as f
from sim.plan.functions.tracing import Parameter, TaskTracer, Tensor
from sim.training.layers.layer import LayerBuilder


def mlp(b: LayerBuilder, t: TaskTracer, name: str, x: Tensor) -> Tensor:
    """Return the family's MLP of x."""
    width = b.model.ffn_hidden_size
    weights, bias = _first(b, t, name, width), b.column_bias(t, f"{name}.fc1", (width,))
    y = _activated(b, t, name, b.column(t, f"{name}.fc1", x, weights, bias))
    return b.row(t, f"{name}.fc2", y, _second(b, t, name, width))


def two_products(b: LayerBuilder, t: TaskTracer, name: str, x: Tensor, width: int) -> Tensor:
    """Return two products of x around GELU, or a gate, SwiGLU and a product, without biases; x entered, none leaves."""
    y = _activated(b, t, name, b.product(t, f"{name}.fc1", x, _first(b, t, name, width)))
    return b.product(t, f"{name}.fc2", y, _second(b, t, name, width))


def _first(b: LayerBuilder, t: TaskTracer, name: str, width: int) -> list[Parameter]:
    inner = (2, width) if b.model.family == "llama" else (width,)
    return b.column_weights(t, f"{name}.fc1", (b.model.hidden_size, *inner), outputs=len(inner))


def _second(b: LayerBuilder, t: TaskTracer, name: str, width: int) -> list[Parameter]:
    return b.row_weights(t, f"{name}.fc2", (width, b.model.hidden_size))


def _activated(b: LayerBuilder, t: TaskTracer, name: str, y: Tensor) -> Tensor:
    kernel = b.model.activation
    return f.elementwise(t, f"{name}.{kernel}", kernel, y)
