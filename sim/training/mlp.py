"""The MLP of a layer: from its normalised input to what the residual stream gets, biases apart."""

from sim.plan import functions as f
from sim.plan.tracing import TaskTracer, Tensor
from sim.training.layer import LayerBuilder


def mlp(b: LayerBuilder, t: TaskTracer, name: str, x: Tensor) -> Tensor:
    """Return the family's MLP of x: of two products around GELU, or of a gate, SwiGLU and a product."""
    h, ffn = b.model.hidden_size, b.model.ffn_hidden_size
    x = b.column_input(t, x)
    if b.model.family == "gpt":
        weight = b.weights(t, f"{name}.fc1", (h, ffn), b.shard(1))
        bias = t.program.parameter(f"{name}.fc1.bias", (ffn,), b.shard(0), "zeros")
        y = f.elementwise(t, f"{name}.gelu", "gelu", b.product(t, f"{name}.fc1", x, weight, bias))
    else:
        weight = b.weights(t, f"{name}.fc1", (h, 2, ffn), b.shard(2))
        y = f.elementwise(t, f"{name}.swiglu", "swiglu", b.product(t, f"{name}.fc1", x, weight))
    output = b.weights(t, f"{name}.fc2", (ffn, h), b.shard(0))
    return b.row_output(t, b.product(t, f"{name}.fc2", y, output))
