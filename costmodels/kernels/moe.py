"""Kernels of a layer of experts: router, choice of experts, dispatch, grouped products, combination.

Every rank has C slots per expert (drop and pad; Lepikhin et al. 2021, GShard): dispatched tokens are [E, C, h] whatever
was chosen, so that no shape depends on data. Experts and slots are [s, b, k], of the k choices of every token; a slot
is numbered over all experts, and E C stands for a choice that found none.
"""

from collections.abc import Sequence
from math import prod

from msgspec.structs import replace

from costmodels.kernels.elementwise import streaming
from costmodels.kernels.gemm import leading_dims, weight_dims
from costmodels.kernels.tensor import (
    Attributes,
    Count,
    GemmShape,
    Kernel,
    TensorSpec,
    Work,
    require,
    statistics_dtype,
    total_bytes,
)

ROUTING_KERNELS = 45
"""Kernels that choose experts where none is fused: Megatron-LM, router.py, moe_utils.py and token_dispatcher.py.

Scores, the best k, their weights and the map of tokens to experts, 14; those of the balance loss, 13; tokens per expert
and rank, 6; two selections by the map, 6 each.
"""
ROUTING_BACKWARD_KERNELS = 25
"""Their gradients': two for each kernel that has any."""

GROUP_LIMITED_KERNELS = ROUTING_KERNELS + 9
"""The same, where 9 more leave only some groups of experts (Megatron-LM, moe_utils.py, group_limited_topk)."""

# --- router --------------------------------------------------------------------------------------------------------


def _router_outputs(inputs: Sequence[TensorSpec], attributes: Attributes) -> tuple[TensorSpec, ...]:
    """Return logits in 32 bits at least, of operands as they are (products of 16 bits are exact in 32)."""
    x, weight = inputs
    contracted, remaining = weight_dims(weight, attributes)
    return (TensorSpec((*leading_dims(x, contracted, weight), *remaining), statistics_dtype(x)),)


def _router_input_gradient_outputs(inputs: Sequence[TensorSpec], attributes: Attributes) -> tuple[TensorSpec, ...]:
    dy, weight = inputs
    contracted, remaining = weight_dims(weight, attributes)
    return (weight.like(*leading_dims(dy, remaining, weight), *contracted),)


def _router_weight_gradient_outputs(inputs: Sequence[TensorSpec], _: Attributes) -> tuple[TensorSpec, ...]:
    x, dy, *gradient = inputs
    require(x.shape[:-1] == dy.shape[:-1], "x and dy must agree outside the weight's dimensions", x, dy)
    return (gradient[0],) if gradient else (x.like(x.shape[-1], dy.shape[-1]),)


def _router_work(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], _: Attributes) -> Work:
    x, weight = inputs
    m, n, k = x.num_elements // weight.shape[0], weight.shape[1], weight.shape[0]
    return products(GemmShape(m, n, k), inputs, outputs)


def _router_input_gradient_work(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], _: Attributes) -> Work:
    dy, weight = inputs
    m, n, k = dy.num_elements // weight.shape[1], weight.shape[0], weight.shape[1]
    return products(GemmShape(m, n, k), inputs, outputs)


def _router_weight_gradient_work(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], _: Attributes) -> Work:
    """Return the work of multiplying x, as wide as the gradient of the scores, with that."""
    h, e = outputs[0].shape
    return replace(products(GemmShape(h, e, inputs[0].num_elements // h), inputs, outputs), dtype=inputs[1].dtype)


def products(shape: GemmShape, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> Work:
    """Return the work of so many products of a shape."""
    flop = 2.0 * shape.m * shape.n * shape.k * shape.batch
    return Work(flop, flop, total_bytes(inputs), total_bytes(outputs), shape)


# --- choice, dispatch, combination ---------------------------------------------------------------------------------


def route_outputs(inputs: Sequence[TensorSpec], attributes: Attributes) -> tuple[TensorSpec, ...]:
    """Return weights, experts and slots of logits[..., E]."""
    (logits,) = inputs
    top_k = attributes["top_k"]
    require(1 <= top_k <= logits.shape[-1], f"{top_k} experts must be there to choose", logits)
    groups = attributes.get("num_groups", 1)
    require(logits.shape[-1] % groups == 0, f"experts must be {groups} equal groups", logits)
    choices = (*logits.shape[:-1], top_k)
    return (logits.like(*choices), TensorSpec(choices, "int32"), TensorSpec(choices, "int32"))


def _route_in_groups_outputs(inputs: Sequence[TensorSpec], attributes: Attributes) -> tuple[TensorSpec, ...]:
    """Return the same where each choice is from a group of its own."""
    return route_outputs(inputs, {**attributes, "num_groups": attributes["top_k"]})


def route_backward_outputs(inputs: Sequence[TensorSpec], _: Attributes) -> tuple[TensorSpec, ...]:
    """Return the gradient of the logits, given that of the weights, and what was chosen."""
    gradient, logits, experts = inputs
    require(gradient.shape == experts.shape, "every choice has a weight and an expert", gradient, experts)
    return (logits,)


def _dispatch_outputs(inputs: Sequence[TensorSpec], attributes: Attributes) -> tuple[TensorSpec, ...]:
    x, slots = inputs
    require(x.shape[:-1] == slots.shape[:-1], "every token has slots", x, slots)
    return (x.like(attributes["num_experts"], attributes["capacity"], x.shape[-1]),)


def _dispatch_backward_outputs(inputs: Sequence[TensorSpec], _: Attributes) -> tuple[TensorSpec, ...]:
    dy, slots = inputs
    return (dy.like(*slots.shape[:-1], dy.shape[-1]),)


def _combine_outputs(inputs: Sequence[TensorSpec], _: Attributes) -> tuple[TensorSpec, ...]:
    y, weights, slots = inputs
    require(weights.shape == slots.shape, "every slot has a weight", weights, slots)
    return (y.like(*slots.shape[:-1], y.shape[-1]),)


def _combine_backward_outputs(inputs: Sequence[TensorSpec], _: Attributes) -> tuple[TensorSpec, ...]:
    dout, y, weights, slots = inputs
    require(dout.shape[:-1] == slots.shape[:-1], "every token has slots", dout, slots)
    return (y, weights)


def routing(scores: int, flop_per_score: float, num_kernels: int) -> Count:
    """Return a count: one kernel, or unfused so many, of which every other passes over input ``scores``."""

    def count(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], attributes: Attributes) -> Work:
        fused = streaming(flop_per_score)(inputs, outputs, attributes)
        if attributes.get("fused", True):
            return fused
        passes = num_kernels // 2 * inputs[scores].num_bytes
        return replace(fused, bytes_read=passes, bytes_written=passes, num_kernels=num_kernels)

    return count


def _permuting(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], _: Attributes) -> Work:
    """Return the work of reading a row per slot, filled or not, and of writing the outputs."""
    rows = max(inputs[0].num_bytes, outputs[0].num_bytes)
    return Work(0.0, 0.0, rows + total_bytes(inputs[1:]), total_bytes(outputs))


def _summing(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], attributes: Attributes) -> Work:
    """Return the work of a sum over every token's slots; unfused each is added to its token, element by element."""
    work = _permuting(inputs, outputs, attributes)
    return work if attributes.get("fused", True) else replace(work, scattered_additions=inputs[0].num_elements)


def _regroup_outputs(inputs: Sequence[TensorSpec], attributes: Attributes) -> tuple[TensorSpec, ...]:
    """Return slots as they come from ``parts`` ranks, [P G, C, h], sorted by expert, [G, P C, h]; or the other way."""
    (x,) = inputs
    parts, dim = attributes["parts"], 0 if attributes["by_expert"] else 1
    require(len(x.shape) == 3 and x.shape[dim] % parts == 0, f"dimension {dim} must divide by {parts}", x)
    groups, slots, width = x.shape
    shape = (
        (groups // parts, slots * parts, width) if attributes["by_expert"] else (groups * parts, slots // parts, width)
    )
    return (x.like(*shape),)


# --- grouped products ----------------------------------------------------------------------------------------------


def _grouped_outputs(inputs: Sequence[TensorSpec], _: Attributes) -> tuple[TensorSpec, ...]:
    """Return x[g, m, k] times weight[g, k, *n], group by group."""
    x, weight = inputs
    fits = len(x.shape) == 3 and len(weight.shape) > 2 and (x.shape[0], x.shape[2]) == weight.shape[:2]
    require(fits, "x must be [g,m,k] and the weight [g,k,*n]", x, weight)
    return (x.like(*x.shape[:2], *weight.shape[2:]),)


def _grouped_input_gradient_outputs(inputs: Sequence[TensorSpec], _: Attributes) -> tuple[TensorSpec, ...]:
    dy, weight = inputs
    fits = dy.shape[0] == weight.shape[0] and dy.shape[2:] == weight.shape[2:]
    require(fits, "dy must be [g,m,*n] and the weight [g,k,*n]", dy, weight)
    return (dy.like(*dy.shape[:2], weight.shape[1]),)


def _grouped_weight_gradient_outputs(inputs: Sequence[TensorSpec], _: Attributes) -> tuple[TensorSpec, ...]:
    x, dy, *gradient = inputs
    require(x.shape[:2] == dy.shape[:2], "x and dy must agree in groups and rows", x, dy)
    return (gradient[0],) if gradient else (dy.like(x.shape[0], x.shape[2], *dy.shape[2:]),)


def _grouped_work(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], _: Attributes) -> Work:
    x, weight = inputs
    groups, m, k = x.shape
    return products(GemmShape(m, prod(weight.shape[2:]), k, groups), inputs, outputs)


def _grouped_input_gradient_work(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], _: Attributes) -> Work:
    dy, weight = inputs
    return products(GemmShape(dy.shape[1], weight.shape[1], prod(dy.shape[2:]), dy.shape[0]), inputs, outputs)


def _grouped_weight_gradient_work(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], _: Attributes) -> Work:
    (groups, m, k), n = inputs[0].shape, prod(inputs[1].shape[2:])
    return products(GemmShape(k, n, m, groups), inputs, outputs)


def _gate_tokens_outputs(inputs: Sequence[TensorSpec], _: Attributes) -> tuple[TensorSpec, ...]:
    """Return x[s, b, h], each token of which is weighed by the sigmoid of its gate[s, b, 1]."""
    x, gate = inputs
    require(gate.shape == (*x.shape[:-1], 1), "there must be one gate per token", x, gate)
    return (x,)


def _gate_tokens_backward_outputs(inputs: Sequence[TensorSpec], _: Attributes) -> tuple[TensorSpec, ...]:
    """Return the gradients of tokens and gates."""
    dy, x, gate = inputs
    require(
        dy.shape == x.shape and gate.shape == (*x.shape[:-1], 1), "dy must be like x, with one gate per token", dy, x
    )
    return (x, gate)


MOE_KERNELS = (
    Kernel("router_matmul", "gemm", (2, 2), _router_outputs, _router_work),
    Kernel(
        "router_matmul_input_gradient", "gemm", (2, 2), _router_input_gradient_outputs, _router_input_gradient_work
    ),
    Kernel(
        "router_matmul_weight_gradient", "gemm", (2, 3), _router_weight_gradient_outputs, _router_weight_gradient_work
    ),
    Kernel("gate_tokens", "elementwise", (2, 2), _gate_tokens_outputs, streaming(1)),
    Kernel("gate_tokens_backward", "elementwise", (3, 3), _gate_tokens_backward_outputs, streaming(4)),
    Kernel("route", "elementwise", (1, 1), route_outputs, routing(0, 20, ROUTING_KERNELS)),
    Kernel("route_k_top_1", "elementwise", (1, 1), _route_in_groups_outputs, routing(0, 20, ROUTING_KERNELS)),
    Kernel("route_group_limited", "elementwise", (1, 1), route_outputs, routing(0, 25, GROUP_LIMITED_KERNELS)),
    Kernel(
        "route_k_top_1_backward", "elementwise", (3, 3), route_backward_outputs,
        routing(1, 8, ROUTING_BACKWARD_KERNELS),
    ),
    Kernel(
        "route_backward", "elementwise", (3, 3), route_backward_outputs, routing(1, 8, ROUTING_BACKWARD_KERNELS)
    ),
    Kernel("dispatch", "elementwise", (2, 2), _dispatch_outputs, _permuting),
    Kernel("dispatch_backward", "elementwise", (2, 2), _dispatch_backward_outputs, _summing),
    Kernel("regroup", "elementwise", (1, 1), _regroup_outputs, streaming(0)),
    Kernel("combine", "elementwise", (3, 3), _combine_outputs, _summing),
    Kernel("combine_backward", "elementwise", (4, 4), _combine_backward_outputs, _permuting),
    Kernel("grouped_matmul", "gemm", (2, 2), _grouped_outputs, _grouped_work),
    Kernel(
        "grouped_matmul_input_gradient", "gemm", (2, 2), _grouped_input_gradient_outputs, _grouped_input_gradient_work
    ),
    Kernel(
        "grouped_matmul_weight_gradient", "gemm", (2, 3), _grouped_weight_gradient_outputs,
        _grouped_weight_gradient_work,
    ),
)  # fmt: skip
