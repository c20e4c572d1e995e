"""Kernels of an expert layer: router, gate, dispatch to slots, grouped products, combination.

Dispatched tokens are [E, C, h]: C slots for each of E experts. ``experts`` and ``slots`` are [s, b, k], for the k
choices of every token. Slots are numbered over all experts; the number E C means that the choice has no slot.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

import torch
from torch import Tensor

from backends.torch.kernels.context import Attributes, KernelContext, KernelFunction, wide
from sim.moe.choices import GroupLimit, forced_choices

# --- router --------------------------------------------------------------------------------------------------------


def router_matmul(_: KernelContext, inputs: Sequence[Tensor], _attributes: Attributes) -> tuple[Tensor, ...]:
    """Return x w, computed in at least 32 bits."""
    x, weight = inputs
    return (wide(x) @ wide(weight),)


def router_matmul_input_gradient(
    _: KernelContext, inputs: Sequence[Tensor], _attributes: Attributes
) -> tuple[Tensor, ...]:
    """Return dy w^T in the weight's type."""
    dy, weight = inputs
    return ((dy @ wide(weight).T).to(weight.dtype),)


def router_matmul_weight_gradient(
    _: KernelContext, inputs: Sequence[Tensor], _attributes: Attributes
) -> tuple[Tensor, ...]:
    """Return x^T dy, added to the gradient of w if there is one, otherwise in the type of x."""
    x, dy, *accumulated = inputs
    product = wide(x).flatten(0, -2).T @ dy.flatten(0, -2)
    return (accumulated[0].add_(product) if accumulated else product.to(x.dtype),)


def gate_tokens(_: KernelContext, inputs: Sequence[Tensor], _attributes: Attributes) -> tuple[Tensor, ...]:
    """Return every token of x times the sigmoid of its gate."""
    x, gate = inputs
    return ((wide(x) * torch.sigmoid(wide(gate))).to(x.dtype),)


def gate_tokens_backward(_: KernelContext, inputs: Sequence[Tensor], _attributes: Attributes) -> tuple[Tensor, ...]:
    """Return the gradients of tokens and gates."""
    dy, x, gate = (wide(tensor) for tensor in inputs)
    weight = torch.sigmoid(gate)
    dgate = (dy * x).sum(-1, keepdim=True) * weight * (1.0 - weight)
    return (dy * weight).to(inputs[1].dtype), dgate.to(inputs[2].dtype)


# --- choice --------------------------------------------------------------------------------------------------------


def route(_: KernelContext, inputs: Sequence[Tensor], attributes: Attributes) -> tuple[Tensor, ...]:
    """Return the weights and numbers of the chosen experts, and the slot of each choice.

    ``balanced``: choices go to the experts in turn and ignore the logits. ``forced``: number of choices of each expert;
    they ignore the logits too. Otherwise each token chooses the experts with the ``top_k`` largest logits.
    """
    (logits,), top_k = inputs, attributes["top_k"]
    num_experts = logits.shape[-1]
    if "forced" in attributes:
        experts = forced_experts(logits, attributes)
    elif attributes["balanced"]:
        choices = torch.arange(logits[..., :1].numel() * top_k, device=logits.device) % num_experts
        experts = choices.view(*logits.shape[:-1], top_k)
    else:
        experts = logits.topk(top_k, -1).indices
    return choice_weights(logits, experts), *numbered(experts, num_experts, attributes)


def route_k_top_1(_: KernelContext, inputs: Sequence[Tensor], attributes: Attributes) -> tuple[Tensor, ...]:
    """Return the same for the best expert in each of ``top_k`` groups, with its share of the group's softmax."""
    (logits,) = inputs
    in_groups = _in_groups(logits, attributes["top_k"])
    starts = torch.arange(attributes["top_k"], device=logits.device) * in_groups.shape[-1]
    experts = in_groups.argmax(-1) + starts
    return _group_weights(logits, experts), *numbered(experts, logits.shape[-1], attributes)


def route_k_top_1_backward(_: KernelContext, inputs: Sequence[Tensor], _attributes: Attributes) -> tuple[Tensor, ...]:
    """Return the gradient of the logits through the softmax of each group at its one chosen expert."""
    gradient, logits, chosen = inputs
    experts = chosen.long()
    pull = _group_weights(logits, experts) * gradient
    shares = _in_groups(logits, experts.shape[-1]).softmax(-1)
    return ((shares * -pull[..., None]).flatten(-2).scatter_add(-1, experts, pull),)


def route_group_limited(_: KernelContext, inputs: Sequence[Tensor], attributes: Attributes) -> tuple[Tensor, ...]:
    """Return the same for the best experts in the ``top_groups`` best groups.

    The score of a group is the sum of its top_k / top_groups (at least 1) largest scores.
    """
    (logits,) = inputs
    experts = best_of_groups(logits, attributes)
    return choice_weights(logits, experts), *numbered(experts, logits.shape[-1], attributes)


def best_of_groups(scores: Tensor, attributes: Attributes) -> Tensor:
    """Return the best experts [..., k] by scores[..., E] in the ``top_groups`` best of ``num_groups`` groups."""
    top_k, kept = attributes["top_k"], attributes["top_groups"]
    in_groups = _in_groups(scores, attributes["num_groups"])
    counted = min(max(1, top_k // kept), in_groups.shape[-1])
    sums = in_groups.topk(counted, -1).values.sum(-1)
    is_out = torch.ones_like(sums, dtype=torch.bool).scatter_(-1, sums.topk(kept, -1).indices, value=False)
    return in_groups.masked_fill(is_out[..., None], -torch.inf).flatten(-2).topk(top_k, -1).indices


def numbered(experts: Tensor, num_experts: int, attributes: Attributes) -> tuple[Tensor, Tensor]:
    """Return the experts of all choices, and the slots of the choices."""
    return experts.to(torch.int32), first_come_slots(experts, num_experts, attributes["capacity"])


def forced_experts(logits: Tensor, attributes: Attributes) -> Tensor:
    """Return experts [..., k] for the tokens of logits[..., E], so that the numbers of choices are the forced ones.

    With ``num_groups`` a token chooses equally many experts in each of ``top_groups`` groups.
    """
    counts, top_k = attributes["forced"], attributes["top_k"]
    kept = attributes.get("top_groups", top_k)
    limit = GroupLimit(attributes.get("num_groups", len(counts)), kept, top_k // kept)
    chosen = torch.from_numpy(forced_choices(counts, logits[..., 0].numel(), limit)).to(logits.device)
    return chosen.view(*logits.shape[:-1], top_k)


def choice_weights(logits: Tensor, experts: Tensor) -> Tensor:
    """Return the softmax over the chosen experts; for k = 1, its share of the softmax over all (Fedus et al. 2021)."""
    if experts.shape[-1] == 1:
        return logits.softmax(-1).gather(-1, experts)
    return logits.gather(-1, experts).softmax(-1)


def _group_weights(logits: Tensor, experts: Tensor) -> Tensor:
    """Return the share of every chosen expert in the softmax of its own group. There is one group per choice."""
    shares = _in_groups(logits, experts.shape[-1]).softmax(-1).flatten(-2)
    return shares.gather(-1, experts)


def _in_groups(logits: Tensor, num_groups: int) -> Tensor:
    """Return the scores [..., E] as [..., groups, E / groups]."""
    return logits.reshape(*logits.shape[:-1], num_groups, -1)


def first_come_slots(experts: Tensor, num_experts: int, capacity: int) -> Tensor:
    """Return the slot, int32, of every choice of experts[..., k]. All first choices get slots before second ones.

    The number ``num_experts`` means a choice of no expert, which gets no slot.
    """
    flat = experts.flatten(0, -2).T.flatten()
    order = flat.argsort(stable=True)
    counts = flat.bincount(minlength=num_experts + 1)
    starts = counts.cumsum(0) - counts
    places = torch.empty_like(flat)
    places[order] = torch.arange(flat.numel(), device=flat.device) - starts[flat[order]]
    found = (places < capacity) & (flat < num_experts)
    slots = torch.where(found, flat * capacity + places, num_experts * capacity)
    return slots.view(experts.shape[-1], -1).T.contiguous().view(experts.shape).to(torch.int32)


def route_backward(_: KernelContext, inputs: Sequence[Tensor], attributes: Attributes) -> tuple[Tensor, ...]:
    """Return the gradient of the logits: from the gradient of the weights, and from the balance loss.

    ``balanced_choices``: number of a token's choices, from the first, that count in the balance loss; default all.
    """
    gradient, logits, chosen = inputs
    experts = chosen.long()
    weights = choice_weights(logits, experts)
    if experts.shape[-1] == 1:
        change = (weights * gradient) * (-logits.softmax(-1)).scatter_add(-1, experts, torch.ones_like(weights))
    else:
        of_chosen = weights * (gradient - (weights * gradient).sum(-1, keepdim=True))
        change = torch.zeros_like(logits).scatter_add_(-1, experts, of_chosen)
    if attributes["balance_loss"]:
        num_experts = logits.shape[-1]
        counted = experts[..., : attributes.get("balanced_choices")]
        parts = counted.flatten().bincount(minlength=num_experts).to(logits.dtype) / counted.numel()
        shares = logits.softmax(-1)
        pull = shares * (parts - (shares * parts).sum(-1, keepdim=True))
        change += attributes["balance_loss"] * num_experts * pull
    return (change,)


# --- dispatch and combination --------------------------------------------------------------------------------------


def _from_slots(y: Tensor, slots: Tensor) -> Tensor:
    """Return the rows [s, b, k, h] of y[E, C, h] in the choices' slots; zeros for choices without a slot."""
    rows = y.flatten(0, 1)
    found = slots < rows.shape[0]
    return rows[slots.long().clamp(max=rows.shape[0] - 1)] * found[..., None].to(y.dtype)


def _into_slots(rows: Tensor, slots: Tensor, shape: Sequence[int]) -> Tensor:
    """Return a tensor [E, C, h] with rows [s, b, k, h] in their slots, and zeros in empty slots."""
    num_slots = shape[0] * shape[1]
    filled = rows.new_zeros(num_slots + 1, rows.shape[-1])
    filled[slots.long()] = rows
    return filled[:num_slots].clone().view(*shape[:2], rows.shape[-1])


def dispatch(_: KernelContext, inputs: Sequence[Tensor], attributes: Attributes) -> tuple[Tensor, ...]:
    """Return the slots [E, C, h], filled with the tokens x that chose them."""
    x, slots = inputs
    rows = x.unsqueeze(-2).expand(*slots.shape, -1)
    return (_into_slots(rows, slots, (attributes["num_experts"], attributes["capacity"])),)


def dispatch_backward(_: KernelContext, inputs: Sequence[Tensor], _attributes: Attributes) -> tuple[Tensor, ...]:
    """Return the sum of dy over the choices of every token."""
    dy, slots = inputs
    return (wide(_from_slots(dy, slots)).sum(-2).to(dy.dtype),)


def combine(_: KernelContext, inputs: Sequence[Tensor], _attributes: Attributes) -> tuple[Tensor, ...]:
    """Return the weighted sum of y over the choices of every token."""
    y, weights, slots = inputs
    return ((wide(_from_slots(y, slots)) * weights[..., None]).sum(-2).to(y.dtype),)


def combine_backward(_: KernelContext, inputs: Sequence[Tensor], _attributes: Attributes) -> tuple[Tensor, ...]:
    """Return the gradients of y and of the weights."""
    dout, y, weights, slots = inputs
    rows = wide(dout).unsqueeze(-2)
    dy = _into_slots((rows * weights[..., None]).to(y.dtype), slots, y.shape)
    return dy, (rows * wide(_from_slots(y, slots))).sum(-1)


def regroup(_: KernelContext, inputs: Sequence[Tensor], attributes: Attributes) -> tuple[Tensor, ...]:
    """Return slots [G, P C, h] sorted by expert, from slots [P G, C, h] by source rank; or the inverse."""
    (x,), parts = inputs, attributes["parts"]
    if attributes["by_expert"]:
        sorted_ = x.view(parts, -1, *x.shape[1:]).transpose(0, 1)
        return (sorted_.clone(memory_format=torch.contiguous_format).view(x.shape[0] // parts, -1, x.shape[2]),)
    by_rank = x.view(x.shape[0], parts, -1, x.shape[2]).transpose(0, 1)
    return (by_rank.clone(memory_format=torch.contiguous_format).view(parts * x.shape[0], -1, x.shape[2]),)


# --- grouped products ----------------------------------------------------------------------------------------------


def grouped_matmul(_: KernelContext, inputs: Sequence[Tensor], _attributes: Attributes) -> tuple[Tensor, ...]:
    """Return the product of x[g, m, k] and w[g, k, *n], group by group."""
    x, weight = inputs
    return (torch.bmm(x, weight.flatten(2)).view(*x.shape[:2], *weight.shape[2:]),)


def grouped_matmul_input_gradient(
    _: KernelContext, inputs: Sequence[Tensor], _attributes: Attributes
) -> tuple[Tensor, ...]:
    """Return dy w^T, group by group."""
    dy, weight = inputs
    return (torch.bmm(dy.flatten(2), weight.flatten(2).mT),)


def grouped_matmul_weight_gradient(
    _: KernelContext, inputs: Sequence[Tensor], _attributes: Attributes
) -> tuple[Tensor, ...]:
    """Return x^T dy, group by group, added to the gradient of w if there is one."""
    x, dy, *accumulated = inputs
    product = torch.bmm(x.mT, dy.flatten(2)).view(x.shape[0], x.shape[2], *dy.shape[2:])
    return (accumulated[0].add_(product) if accumulated else product,)


MOE_KERNELS: Final[Mapping[str, KernelFunction]] = MappingProxyType(
    {
        "router_matmul": router_matmul,
        "router_matmul_input_gradient": router_matmul_input_gradient,
        "router_matmul_weight_gradient": router_matmul_weight_gradient,
        "gate_tokens": gate_tokens,
        "gate_tokens_backward": gate_tokens_backward,
        "route": route,
        "route_k_top_1": route_k_top_1,
        "route_k_top_1_backward": route_k_top_1_backward,
        "route_group_limited": route_group_limited,
        "route_backward": route_backward,
        "dispatch": dispatch,
        "dispatch_backward": dispatch_backward,
        "regroup": regroup,
        "combine": combine,
        "combine_backward": combine_backward,
        "grouped_matmul": grouped_matmul,
        "grouped_matmul_input_gradient": grouped_matmul_input_gradient,
        "grouped_matmul_weight_gradient": grouped_matmul_weight_gradient,
    }
)
