"""Linear layers: products with a weight, forward and backward, and the accumulation of weight gradients."""

from collections.abc import Sequence
from typing import Any, ClassVar, Final, Literal

from msgspec import Struct

from costmodels.kernels import TensorSpec
from sim.plan.errors import LayoutError
from sim.plan.functions.basic import only, summed_layout
from sim.plan.functions.tracing import Gradients, Parameter, TaskTracer, Tensor
from sim.plan.words.buffer import Buffer, Kind, Scope
from sim.plan.words.layout import PARTIAL, Layout, Shard
from sim.plan.words.op import Compute


class WeightGradient(Struct, frozen=True):
    """The method of computing and accumulating a weight gradient.

    ``overlapped``: it runs after the input gradient, during that gradient's collective; otherwise before it.
    ``fused``: the kernel of the product adds to the accumulated gradient; otherwise a second kernel adds the product.
    ``placeholder``: with ``fused``, autograd still needs a gradient and gets an empty tensor. ``kept``: one permanent
    tensor for all weights of a shape (Transformer Engine, get_dummy_wgrad). ``fresh``: a new tensor each time
    (Megatron-LM's own linear layers).
    """

    overlapped: bool = True
    fused: bool = True
    placeholder: Literal["none", "kept", "fresh"] = "none"

    def emit(
        self,
        r: TaskTracer,
        name: str,
        kernel: str,
        operands: Sequence[Tensor],
        weight: Parameter,
        *,
        grouped: bool = False,
        **attributes: Any,
    ) -> None:
        """Emit the ops that add x^T dy, the product of the operands, to the weight's gradient.

        ``grouped``: the weight's first dimension counts experts, and autograd has one weight per expert.
        """
        label = f"{name}.weight_gradient"
        if self.fused:
            r.update(label, kernel, operands, (weight.gradient,), **attributes)
            shape = weight.value.shape[1:] if grouped else weight.value.shape
            self._hold_place(r, label, operands, weight.value.spec.like(*shape))
            return
        layouts = (weight.gradient.layout,)
        (product,) = r.compute(label, kernel, operands, layouts, kind=Kind.WORKSPACE, **attributes)
        r.update(f"{label}.add", "add", (product,), (weight.gradient,))

    def _hold_place(self, r: TaskTracer, label: str, operands: Sequence[Tensor], spec: TensorSpec) -> None:
        """Emit the placeholder that autograd gets instead of the gradient, while the operands still live."""
        kept = self.placeholder == "kept"
        shape = "x".join(map(str, spec.shape))
        name = f"gradient_placeholder.{shape}" if kept else f"{label}.placeholder{r.part}"
        if self.placeholder == "none" or (kept and name in r.program.buffers):
            return
        scope = Scope.PERSISTENT if kept else Scope.MICROBATCH
        place = r.program.tensor(Buffer(name, spec.shape, spec.dtype, Kind.WORKSPACE, scope))
        reads, writes = tuple(operand.name for operand in operands), (place.name,)
        r.emit(Compute(r.unique(f"{label}.placeholder"), "delay", reads, writes, {"duration_s": 0.0}))


Twice = tuple[tuple[Tensor, ...], tuple[Tensor, ...]]
"""The two forms of a factor that two products share, one form for each product."""


class Products(Struct, frozen=True):
    """The products of a linear layer, from an input, a weight and a gradient in their own types.

    ``input_gradient``: whether the input gets a gradient; that of a whole model needs none. ``prefix``: prefix of the
    kernels' names.
    """

    weight_gradient: WeightGradient = WeightGradient()
    input_gradient: bool = True
    prefix: ClassVar[str] = ""

    def attributes(self, _x: Tensor) -> dict[str, Any]:
        """Return attributes of the kernels besides the shapes, for an input x."""
        return {}

    def weight(self, _t: TaskTracer, weight: Parameter) -> Twice:
        """Return the weight for the output's product, and for the input gradient's product."""
        return (weight.value,), (weight.value,)

    def activation(self, _t: TaskTracer, _name: str, x: Tensor) -> Twice:
        """Return the activation for the output's product, and the kept part of it for the weight gradient's product."""
        return (x,), (x,)

    def kept(self, r: TaskTracer, _name: str, x: Tensor, _taken: Twice) -> tuple[Tensor, ...]:
        """Return the activation for the weight gradient's product, given the result of ``activation``."""
        return (r.saved(x),)

    def gradient(self, _r: TaskTracer, _name: str, dy: Tensor) -> Twice:
        """Return the output gradient for the input gradient's product, and for the weight gradient's product."""
        return (dy,), (dy,)

    def piece(self, _t: TaskTracer, _name: str, x: Tensor) -> tuple[Tensor, ...]:
        """Return the form in which a piece of an input is sent and kept."""
        return (x,)

    def gradient_piece(self, _r: TaskTracer, _name: str, dy: Tensor) -> tuple[Tensor, ...]:
        """Return the form in which a piece of an output's gradient is sent."""
        return (dy,)

    def turned(self, _r: TaskTracer, _name: str, pieces: Sequence[tuple[Tensor, ...]]) -> Sequence[tuple[Tensor, ...]]:
        """Return all pieces in the form that the weight gradient's product needs."""
        return pieces


PLAIN: Final = Products()


def linear(
    t: TaskTracer,
    name: str,
    x: Tensor,
    weight: Parameter,
    bias: Parameter | None = None,
    *,
    contract: int = 1,
    transposed: bool = False,
    products: Products = PLAIN,
) -> Tensor:
    """Return x[..., *k] times weight[*k, *n] (or weight[n, k] transposed), plus bias[*n].

    Layouts, for each axis: if the weight is sharded along n, y is sharded along n. If x and weight are sharded along
    the first contracted dimension, y is partial. If x is sharded along a row dimension, so is y.
    """
    attributes: dict[str, Any] = {"contract": contract, "transposed": transposed, **products.attributes(x)}
    kernel = f"{products.prefix}matmul"
    layout = product_layout(x, weight.value, contract, transposed)
    if bias is not None and layout.partial_axes:
        raise LayoutError(f"{name}: a bias added to a partial product would be added once per rank")
    taken, factor = products.activation(t, name, x), products.weight(t, weight)
    inputs = (*taken[0], *factor[0]) if bias is None else (*taken[0], *factor[0], bias.value)
    (y,) = t.compute(name, kernel, inputs, (layout,), **attributes)
    t.program.set_gradient_layout(weight, summed_layout(weight, x, range(len(x.shape) - contract, len(x.shape))))
    if bias is not None:
        t.program.set_gradient_layout(bias, summed_layout(bias, x))

    def backward(r: TaskTracer, gradients: Gradients) -> Gradients:
        dy = only(gradients)
        kept, given = products.kept(r, name, x, taken), products.gradient(r, name, dy)
        if not products.input_gradient:
            of_parameters(r, (*kept, *given[1]), dy)
            return [None]
        dx_layout = input_gradient_layout(x, weight.value)
        if not products.weight_gradient.overlapped:
            of_parameters(r, (*kept, *given[1]), dy)
        (dx,) = r.compute(
            f"{name}.input_gradient", f"{kernel}_input_gradient", (*given[0], *factor[1]), (dx_layout,),
            kind=Kind.WORKSPACE, **attributes,
        )  # fmt: skip
        if products.weight_gradient.overlapped:
            of_parameters(r, (*kept, *given[1]), dy)
        return [dx]

    def of_parameters(r: TaskTracer, factors: Sequence[Tensor], dy: Tensor) -> None:
        products.weight_gradient.emit(r, name, f"{kernel}_weight_gradient", factors, weight, **attributes)
        if bias is not None:
            r.update(f"{name}.bias_gradient", "bias_gradient", (dy,), (bias.gradient,))

    t.record((x,), (y,), backward)
    return y


def product_layout(x: Tensor, w: Tensor, contract: int, transposed: bool) -> Layout:
    """Return the layout of x w. Raises LayoutError if the layouts of x and w do not fit a product."""
    rows = len(x.shape) - contract
    layout = Layout(tuple((a, p) for a, p in x.layout.placements if isinstance(p, Shard) and p.dim < rows))
    contracted, kept = ((1,), (0,)) if transposed else (range(contract), range(contract, len(w.shape)))
    for axis, placement in x.layout.placements:
        if w.layout.get(axis) is None and layout.get(axis) != placement:
            raise LayoutError(f"{x.name} lies {placement} over {axis!r}, over which {w.name} is replicated")
    for axis, placement in w.layout.placements:
        assert isinstance(placement, Shard)
        if layout.get(axis) is not None:
            raise LayoutError(f"{x.name} and {w.name} are both sharded over {axis!r}, along different dimensions")
        if placement.dim in contracted:
            if x.layout.get(axis) != Shard(rows + placement.dim - contracted[0]):
                raise LayoutError(f"{x.name} must be sharded over {axis!r} as {w.name} is")
            layout = layout.with_(axis, PARTIAL)
        else:
            layout = layout.with_(axis, Shard(rows + placement.dim - kept[0]))
    return layout


def input_gradient_layout(x: Tensor, w: Tensor) -> Layout:
    """Return the layout of the input gradient of x w."""
    layout = x.layout
    for axis, _ in w.layout.placements:
        if x.layout.get(axis) is None:
            layout = layout.with_(axis, PARTIAL)
    return layout
