"""Kernels of dispatch and combination as products with one-hot masks (Lepikhin et al. 2021, GShard; DeepSpeed-MoE).

A mask is [s, b, E, C]: of every token, expert and slot, zero but where the token has the slot. A product with it
multiplies every token with every slot: 2 T E C h FLOP, where looking up rows needs none. They are no work of the model.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from costmodels.kernels.elementwise import streaming
from costmodels.kernels.moe import products
from costmodels.kernels.tensor import Attributes, GemmShape, Kernel, TensorSpec, Work, require


def _masks_outputs(inputs: Sequence[TensorSpec], attributes: Attributes) -> tuple[TensorSpec, ...]:
    """Return the mask that dispatches, in the type ``dtype``, and the one that combines, in the type of the weights."""
    weights, slots = inputs
    require(weights.shape == slots.shape, "every slot has a weight", weights, slots)
    shape = (*slots.shape[:-1], attributes["num_experts"], attributes["capacity"])
    return TensorSpec(shape, attributes["dtype"]), weights.like(*shape)


def _masks_backward_outputs(inputs: Sequence[TensorSpec], _: Attributes) -> tuple[TensorSpec, ...]:
    """Return the gradient of the weights, given that of the mask that combines, and the slots."""
    gradient, slots = inputs
    require(gradient.shape[:-2] == slots.shape[:-1], "the mask must be that of the slots' tokens", gradient, slots)
    return (gradient.like(*slots.shape),)


def _dispatch_outputs(inputs: Sequence[TensorSpec], _: Attributes) -> tuple[TensorSpec, ...]:
    x, mask = inputs
    require(x.shape[:-1] == mask.shape[:-2], "the mask must be that of the tokens", x, mask)
    return (x.like(*mask.shape[-2:], x.shape[-1]),)


def _tokens_outputs(inputs: Sequence[TensorSpec], _: Attributes) -> tuple[TensorSpec, ...]:
    """Return tokens, given rows in slots and a mask."""
    y, mask = inputs
    require(y.shape[:2] == mask.shape[-2:], "the mask must be that of the slots", y, mask)
    return (y.like(*mask.shape[:-2], y.shape[-1]),)


def _combine_backward_outputs(inputs: Sequence[TensorSpec], _: Attributes) -> tuple[TensorSpec, ...]:
    """Return the gradients of rows and mask."""
    dout, y, mask = inputs
    require(dout.shape[:-1] == mask.shape[:-2], "the mask must be that of the tokens", dout, mask)
    return y, mask


def _dispatching(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], _: Attributes) -> Work:
    num_slots, width = outputs[0].shape[0] * outputs[0].shape[1], outputs[0].shape[2]
    return _product(GemmShape(num_slots, width, inputs[1].num_elements // num_slots), inputs, outputs)


def _combining(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], _: Attributes) -> Work:
    num_slots, width = inputs[0].shape[0] * inputs[0].shape[1], inputs[0].shape[2]
    return _product(GemmShape(inputs[1].num_elements // num_slots, width, num_slots), inputs, outputs)


def _combining_backward(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], _: Attributes) -> Work:
    """Return the work of two products, of the gradients of rows and of the mask, timed as twice the first."""
    num_slots, width = outputs[0].shape[0] * outputs[0].shape[1], outputs[0].shape[2]
    shape = GemmShape(num_slots, width, outputs[1].num_elements // num_slots, batch=2)
    return replace(_product(shape, inputs, outputs), num_kernels=2)


def _product(shape: GemmShape, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> Work:
    """Return the work of a product of the tokens' type, none of which counts as work of the model."""
    return replace(products(shape, inputs, outputs), flop=0.0, dtype=inputs[0].dtype)


ONE_HOT_MOE_KERNELS = (
    Kernel("slot_masks", "elementwise", (2, 2), _masks_outputs, streaming(1)),
    Kernel("slot_masks_backward", "elementwise", (2, 2), _masks_backward_outputs, streaming(1)),
    Kernel("einsum_dispatch", "gemm", (2, 2), _dispatch_outputs, _dispatching),
    Kernel("einsum_dispatch_backward", "gemm", (2, 2), _tokens_outputs, _combining),
    Kernel("einsum_combine", "gemm", (2, 2), _tokens_outputs, _combining),
    Kernel("einsum_combine_backward", "gemm", (3, 3), _combine_backward_outputs, _combining_backward),
)
