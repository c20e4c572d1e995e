"""A linear layer with a weight in parts, split along the input dimension: one product per part, summed in place.

So each part can be gathered, used and freed on its own (OSDP's operator splitting, Jiang et al. 2023, section 3.3).
"""

from collections.abc import Sequence
from typing import Any

from sim.plan.errors import LayoutError
from sim.plan.functions.basic import summed_layout
from sim.plan.functions.linear import WeightGradient, input_gradient_layout, product_layout
from sim.plan.functions.tracing import Gradients, Parameter, TaskTracer, Tensor
from sim.plan.words.buffer import Kind
from sim.plan.words.layout import Layout
from sim.plan.words.op import Compute


def split_linear(
    t: TaskTracer,
    name: str,
    x: Tensor,
    weights: Sequence[Parameter],
    bias: Parameter | None = None,
    *,
    weight_gradient: WeightGradient,
    contract: int = 1,
    transposed: bool = False,
) -> Tensor:
    """Return ``linear`` of two or more equal parts of a weight, in order; the last product adds the bias.

    Backward uses the parts in reverse order, each once.
    """
    layout = product_layout(x, weights[0].value, contract, transposed)
    if bias is not None and layout.partial_axes:
        raise LayoutError(f"{name}: a bias added to a partial product would be added once per rank")
    common: dict[str, Any] = {"contract": contract, "transposed": transposed}
    parts = [(index, common | {"part": (index, len(weights))}) for index in range(len(weights))]
    (y,) = t.compute(name, "matmul_part", (x, weights[0].value), (layout,), **parts[0][1])
    for index, attributes in parts[1:]:
        last = index == len(weights) - 1
        added = (bias.value,) if bias is not None and last else ()
        reads = (x, weights[index].value, y, *added)
        _in_place(t, f"{name}.part{index}", "matmul_part", reads, y, attributes)
    for weight in weights:
        kept_dims = range(len(x.shape) - contract, len(x.shape))
        t.program.set_gradient_layout(weight, summed_layout(weight, x, kept_dims))
    if bias is not None:
        t.program.set_gradient_layout(bias, summed_layout(bias, x))

    def backward(r: TaskTracer, gradients: Gradients) -> Gradients:
        (dy,) = gradients
        assert dy is not None
        kept, dx = r.saved(x), None
        if bias is not None:
            r.update(f"{name}.bias_gradient", "bias_gradient", (dy,), (bias.gradient,))
        for index, attributes in reversed(parts):
            weight, label = weights[index], f"{name}.part{index}"
            if not weight_gradient.overlapped:
                weight_gradient.emit(r, label, "matmul_part_weight_gradient", (kept, dy), weight, **attributes)
            dx = _input_gradient(r, label, dy, weight, dx, input_gradient_layout(x, weight.value), attributes)
            if weight_gradient.overlapped:
                weight_gradient.emit(r, label, "matmul_part_weight_gradient", (kept, dy), weight, **attributes)
        return [dx]

    t.record((x,), (y,), backward)
    return y


def _input_gradient(
    r: TaskTracer,
    label: str,
    dy: Tensor,
    weight: Parameter,
    dx: Tensor | None,
    layout: Layout,
    attributes: dict[str, Any],
) -> Tensor:
    """Emit the input gradient of a part: into the tensor of the other parts, or, for the first part, a new one."""
    kernel, name = "matmul_part_input_gradient", f"{label}.input_gradient"
    if dx is None:
        (made,) = r.compute(name, kernel, (dy, weight.value), (layout,), kind=Kind.WORKSPACE, **attributes)
        return made
    _in_place(r, name, kernel, (dy, weight.value, dx), dx, attributes)
    return dx


def _in_place(
    t: TaskTracer, name: str, kernel: str, reads: Sequence[Tensor], updated: Tensor, attributes: dict[str, Any]
) -> None:
    """Emit a kernel that updates one of the tensors that it reads."""
    t.emit(Compute(t.unique(name), kernel, tuple(x.name for x in reads), (updated.name,), attributes))
