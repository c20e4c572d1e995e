"""Dispatch and combination of experts' tokens as products with one-hot masks, as DeepSpeed-MoE and GShard do.

The results equal those of ``experts.dispatch`` and ``experts.combine``, which copy rows. The size of a mask is tokens
times slots. Masks live until backward.
"""

from msgspec import Struct

from sim.plan.functions import experts as ex
from sim.plan.functions.basic import only
from sim.plan.functions.tracing import Gradients, TaskTracer, Tensor
from sim.plan.words.buffer import Kind


class Masks(Struct, frozen=True):
    """Two masks [s, b, E, C] of tokens and slots: one marks a token's slots, one has the choices' weights there."""

    dispatching: Tensor
    combining: Tensor


def slot_masks(t: TaskTracer, name: str, routes: ex.Routes, dtype: str) -> Masks:
    """Return the masks of choices. ``dtype``: type of the tokens."""
    weights, slots = routes.weights, routes.slots
    ones, combining = t.compute(
        name, "slot_masks", (weights, slots), (slots.layout, weights.layout), labels=("ones", "weights"),
        num_experts=routes.num_experts, capacity=routes.capacity, dtype=dtype,
    )  # fmt: skip

    def backward(r: TaskTracer, gradients: Gradients) -> Gradients:
        gradient = only(gradients)
        return r.compute(
            f"{name}.backward", "slot_masks_backward", (gradient, slots), (gradient.layout,), kind=Kind.WORKSPACE
        )

    t.record((weights,), (combining,), backward, settles=False)
    return Masks(ones, combining)


def dispatch(t: TaskTracer, name: str, x: Tensor, masks: Masks, expert_axis: str = "") -> Tensor:
    """Return x[s, b, h] in the slots of its choices, [E, C, h]; see ``experts.dispatch``."""
    (y,) = t.compute(name, "einsum_dispatch", (x, masks.dispatching), (ex.slots_layout(x, expert_axis),))

    def backward(r: TaskTracer, gradients: Gradients) -> Gradients:
        dy = only(gradients)
        layout = ex.partial_over(x.layout, dy.layout.partial_axes)
        return r.compute(
            f"{name}.backward", "einsum_dispatch_backward", (dy, masks.dispatching), (layout,), kind=Kind.WORKSPACE
        )

    t.record((x,), (y,), backward, settles=False)
    return y


def combine(t: TaskTracer, name: str, y: Tensor, masks: Masks) -> Tensor:
    """Return the weighted sum of y[E, C, h] over the slots of every token, [s, b, h]; see ``experts.combine``."""
    mask, partial = masks.combining, y.layout.partial_axes
    (out,) = t.compute(name, "einsum_combine", (y, mask), (ex.partial_over(mask.layout, partial),))

    def backward(r: TaskTracer, gradients: Gradients) -> Gradients:
        layouts = (y.layout.without(*partial), ex.partial_over(mask.layout, partial))
        return r.compute(
            f"{name}.backward", "einsum_combine_backward", (only(gradients), y, mask), layouts,
            labels=("", "weights"), kind=Kind.WORKSPACE,
        )  # fmt: skip

    t.record((y, mask), (out,), backward)
    return out
