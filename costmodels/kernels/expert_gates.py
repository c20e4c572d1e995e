"""Kernels of gates that do more than take the best scores: draws, choices by experts, and a table of words.

Shapes are those of ``moe.py``: weights, experts and slots of logits[s, b, E] are [s, b, k]. Where experts choose, and
where a token has any number of them, it has a place for each expert, k = E.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from costmodels.kernels.elementwise import streaming
from costmodels.kernels.moe import (
    GROUP_LIMITED_KERNELS,
    ROUTING_BACKWARD_KERNELS,
    ROUTING_KERNELS,
    route_backward_outputs,
    route_outputs,
    routing,
)
from costmodels.kernels.tensor import Attributes, Kernel, TensorSpec, Work, require

NEAR_KERNELS = ROUTING_KERNELS + 11
"""The same, where tokens are kept near: fmoe/gates/faster_gate.py masks, counts, and chooses twice more."""
MIXED_KERNELS = ROUTING_KERNELS + 12
"""The same, where a softmax is summed by group, and tokens are numbered in groups too (6, as tokens of experts)."""


def _by_expert_outputs(inputs: Sequence[TensorSpec], attributes: Attributes) -> tuple[TensorSpec, ...]:
    """Return weights and slots [..., E] of logits[..., E], by token and expert."""
    (logits,) = inputs
    num_tokens = logits.num_elements // logits.shape[-1]
    require(attributes["capacity"] <= num_tokens, "an expert must not have more slots than tokens", logits)
    return logits, TensorSpec(logits.shape, "int32")


def _softmax_backward_outputs(inputs: Sequence[TensorSpec], _: Attributes) -> tuple[TensorSpec, ...]:
    """Return the gradient of the logits, given that of the weights of all experts and these."""
    gradient, weights = inputs
    require(gradient.shape == weights.shape, "every weight has a gradient", gradient, weights)
    return (weights,)


def _hash_outputs(inputs: Sequence[TensorSpec], attributes: Attributes) -> tuple[TensorSpec, ...]:
    """Return weights, experts and slots [..., 1] of token ids."""
    (ids,) = inputs
    choices = (*ids.shape, 1)
    return TensorSpec(choices, attributes["dtype"]), TensorSpec(choices, "int32"), TensorSpec(choices, "int32")


def _auction_work(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], attributes: Attributes) -> Work:
    """Return the work of an auction (Bertsekas 1992), in each round of which all tokens bid: all scores are read.

    It has as many rounds as an expert has slots. This is an assumption: their number depends on the scores.
    """
    work = routing(0, 3.0 * attributes["capacity"], ROUTING_KERNELS)(inputs, outputs, attributes)
    return replace(work, bytes_read=work.bytes_read + (attributes["capacity"] - 1) * inputs[0].num_bytes)


def _base_outputs(inputs: Sequence[TensorSpec], attributes: Attributes) -> tuple[TensorSpec, ...]:
    """Return weights, experts and slots [..., 1] of logits[..., E], which have a slot for every token."""
    (logits,) = inputs
    num_slots, num_tokens = logits.shape[-1] * attributes["capacity"], logits.num_elements // logits.shape[-1]
    require(num_slots >= num_tokens, f"{num_slots} slots must be as many as tokens", logits)
    return route_outputs(inputs, attributes)


def _biased_outputs(inputs: Sequence[TensorSpec], attributes: Attributes) -> tuple[TensorSpec, ...]:
    """Return weights, experts and slots of logits[..., E] and a bias[E]."""
    logits, bias = inputs
    require(bias.shape == logits.shape[-1:], "every expert has a bias", logits, bias)
    return route_outputs((logits,), attributes)


def _mixed_outputs(inputs: Sequence[TensorSpec], attributes: Attributes) -> tuple[TensorSpec, ...]:
    """Return weights, experts and slots of logits[..., E], and the slots [..., 1] in groups."""
    (logits,) = inputs
    return *route_outputs(inputs, attributes), TensorSpec((*logits.shape[:-1], 1), "int32")


def _dispatch_slots_outputs(inputs: Sequence[TensorSpec], attributes: Attributes) -> tuple[TensorSpec, ...]:
    """Return the slots [s, b, k] of choices, at the places of their tokens in groups, [G, C, k]."""
    slots, of_group = inputs
    require(of_group.shape == (*slots.shape[:-1], 1), "a token is in one group", slots, of_group)
    return (slots.like(attributes["num_experts"], attributes["capacity"], slots.shape[-1]),)


def _own_slots_outputs(inputs: Sequence[TensorSpec], attributes: Attributes) -> tuple[TensorSpec, ...]:
    """Return the slots [G, P C, k] of rows from ``parts`` ranks, numbered among this rank's experts."""
    (slots,) = inputs
    require(slots.shape[1] % attributes["parts"] == 0, f"rows must be of {attributes['parts']} ranks", slots)
    return (slots,)


def _counts_outputs(inputs: Sequence[TensorSpec], _: Attributes) -> tuple[TensorSpec, ...]:
    """Return the counts of choices, to which those of experts[..., k] are added."""
    return (inputs[1],)


def _bias_outputs(inputs: Sequence[TensorSpec], _: Attributes) -> tuple[TensorSpec, ...]:
    """Return a bias[E] and the counts[E] that it follows."""
    bias, counts = inputs
    require(bias.shape == counts.shape, "every bias has a count", bias, counts)
    return bias, counts


EXPERT_GATE_KERNELS = (
    Kernel("route_biased", "elementwise", (2, 2), _biased_outputs, routing(0, 27, GROUP_LIMITED_KERNELS)),
    Kernel(
        "route_biased_backward", "elementwise", (3, 3), route_backward_outputs,
        routing(1, 10, ROUTING_BACKWARD_KERNELS),
    ),
    Kernel("count_choices", "elementwise", (2, 2), _counts_outputs, streaming(1)),
    Kernel("update_bias", "elementwise", (2, 2), _bias_outputs, streaming(3)),
    Kernel("route_gshard", "elementwise", (1, 1), route_outputs, routing(0, 25, ROUTING_KERNELS)),
    Kernel("route_expert_choice", "elementwise", (1, 1), _by_expert_outputs, routing(0, 20, ROUTING_KERNELS)),
    Kernel("route_dense_to_sparse", "elementwise", (1, 1), _by_expert_outputs, routing(0, 30, ROUTING_KERNELS)),
    Kernel(
        "route_softmax_backward", "elementwise", (2, 2), _softmax_backward_outputs,
        routing(1, 8, ROUTING_BACKWARD_KERNELS),
    ),
    Kernel("route_near", "elementwise", (1, 1), route_outputs, routing(0, 25, NEAR_KERNELS)),
    Kernel("route_mixed", "elementwise", (1, 1), _mixed_outputs, routing(0, 30, MIXED_KERNELS)),
    Kernel("dispatch_slots", "elementwise", (2, 2), _dispatch_slots_outputs, streaming(0)),
    Kernel("own_slots", "elementwise", (1, 1), _own_slots_outputs, streaming(6)),
    Kernel("route_base", "elementwise", (1, 1), _base_outputs, _auction_work),
    Kernel("route_hash", "elementwise", (1, 1), _hash_outputs, streaming(0)),
)  # fmt: skip
