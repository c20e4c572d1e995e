"""Gates with other rules than the best scores: random second choices, choices by experts, and a hash of tokens."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from backends.torch.kernels.context import DTYPES, Attributes, KernelContext, KernelFunction, rows_of
from backends.torch.kernels.moe import best_of_groups, choice_weights, first_come_slots, numbered
from backends.torch.values.randomness import expert_draws, gumbel_noise, hashed_experts


def route_gshard(context: KernelContext, inputs: Sequence[Tensor], attributes: Attributes) -> tuple[Tensor, ...]:
    """Return weights, experts and slots of the two best; the second gets a slot if a draw is below twice its weight."""
    (logits,) = inputs
    num_experts, (num_rows, num_samples) = logits.shape[-1], logits.shape[:2]
    experts = logits.topk(2, -1).indices
    weights = choice_weights(logits, experts)
    draws = expert_draws(
        context.rank.seed, context.rank.step, attributes["salt"],
        first_sample=context.first_sample(num_samples), num_samples=num_samples,
        positions=context.positions(num_rows, **rows_of(attributes)),
    )  # fmt: skip
    is_sent = torch.stack([torch.ones_like(draws, dtype=torch.bool), draws < 2.0 * weights[..., 1]], -1)
    sent = torch.where(is_sent, experts, num_experts)
    return weights, experts.to(torch.int32), first_come_slots(sent, num_experts, attributes["capacity"])


def route_expert_choice(_: KernelContext, inputs: Sequence[Tensor], attributes: Attributes) -> tuple[Tensor, ...]:
    """Return the softmax of every token, and its slot at each expert that has the token among its best."""
    (logits,), capacity = inputs, attributes["capacity"]
    weights, num_experts = logits.softmax(-1), logits.shape[-1]
    best = weights.flatten(0, -2).topk(capacity, 0).indices  # [slot of an expert, expert]
    numbers = torch.arange(num_experts * capacity, device=logits.device).view(num_experts, capacity).T
    slots = torch.full_like(logits.flatten(0, -2), num_experts * capacity, dtype=torch.int32)
    slots.scatter_(0, best, numbers.to(torch.int32))
    return weights, slots.view(logits.shape)


def route_dense_to_sparse(
    context: KernelContext, inputs: Sequence[Tensor], attributes: Attributes
) -> tuple[Tensor, ...]:
    """Return a Gumbel softmax over all experts, and slots at the experts above the threshold, or at the best alone."""
    (logits,), capacity = inputs, attributes["capacity"]
    num_rows, num_samples, num_experts = logits.shape
    noise = gumbel_noise(
        context.rank.seed, context.rank.step, attributes["salt"], num_experts,
        first_sample=context.first_sample(num_samples), num_samples=num_samples,
        positions=context.positions(num_rows, **rows_of(attributes)),
    )  # fmt: skip
    weights = ((logits + noise.to(logits.dtype)) / attributes["temperature"]).softmax(-1)
    is_active = weights > attributes["threshold"]
    if attributes["hard"]:
        is_active = torch.zeros_like(is_active).scatter_(-1, weights.argmax(-1, keepdim=True), value=True)
    places = is_active.flatten(0, 1).cumsum(0).view(logits.shape) - 1
    numbers = torch.arange(num_experts, device=logits.device) * capacity + places
    slots = torch.where(is_active & (places < capacity), numbers, num_experts * capacity)
    return weights, slots.to(torch.int32)


def route_softmax_backward(_: KernelContext, inputs: Sequence[Tensor], attributes: Attributes) -> tuple[Tensor, ...]:
    """Return the gradient of the logits, if the weights are their softmax at a temperature."""
    gradient, weights = inputs
    return (weights * (gradient - (weights * gradient).sum(-1, keepdim=True)) / attributes["temperature"],)


def route_biased(_: KernelContext, inputs: Sequence[Tensor], attributes: Attributes) -> tuple[Tensor, ...]:
    """Return weights, experts and slots of the best sums of sigmoid and bias; weights are the sigmoids' shares."""
    logits, bias = inputs
    scores = logits.sigmoid()
    experts = best_of_groups(scores + bias, attributes)
    return _sigmoid_shares(scores, experts)[0], *numbered(experts, logits.shape[-1], attributes)


def route_biased_backward(_: KernelContext, inputs: Sequence[Tensor], _attributes: Attributes) -> tuple[Tensor, ...]:
    """Return the gradient of the logits through the sigmoids of the chosen experts and the sum of these."""
    gradient, logits, chosen = inputs
    experts, scores = chosen.long(), logits.sigmoid()
    weights, total = _sigmoid_shares(scores, experts)
    if experts.shape[-1] > 1:
        gradient = (gradient - (gradient * weights).sum(-1, keepdim=True)) / total
    slope = (scores * (1.0 - scores)).gather(-1, experts)
    return (torch.zeros_like(logits).scatter(-1, experts, gradient * slope),)


def _sigmoid_shares(scores: Tensor, experts: Tensor) -> tuple[Tensor, Tensor]:
    """Return the weights of the chosen experts, and the sum of their scores; of one expert its score is the weight."""
    chosen = scores.gather(-1, experts)
    total = chosen.sum(-1, keepdim=True)
    return (chosen / total if experts.shape[-1] > 1 else chosen), total


def count_choices(_: KernelContext, inputs: Sequence[Tensor], _attributes: Attributes) -> tuple[Tensor, ...]:
    """Return the counts of choices by expert, with those of these experts added."""
    experts, counts = inputs
    return (counts.add_(experts.flatten().bincount(minlength=len(counts))),)


def update_bias(_: KernelContext, inputs: Sequence[Tensor], attributes: Attributes) -> tuple[Tensor, ...]:
    """Return biases moved by ``rate``, up where an expert had less than its share; and the counts, cleared."""
    bias, counts = inputs
    return bias.add_(attributes["rate"] * torch.sign(counts.mean() - counts)), counts.zero_()


def route_base(_: KernelContext, inputs: Sequence[Tensor], attributes: Attributes) -> tuple[Tensor, ...]:
    """Return weights, experts and slots of the assignment of tokens to slots whose scores add up to most."""
    (logits,), capacity = inputs, attributes["capacity"]
    scores = logits.flatten(0, -2).to("cpu", torch.float64).repeat_interleave(capacity, 1)
    _, slots = linear_sum_assignment(scores.numpy(), maximize=True)
    experts = torch.from_numpy(slots // capacity).to(logits.device).view(*logits.shape[:-1], 1)
    return (
        choice_weights(logits, experts), experts.to(torch.int32),
        first_come_slots(experts, logits.shape[-1], capacity),
    )  # fmt: skip


def route_near(context: KernelContext, inputs: Sequence[Tensor], attributes: Attributes) -> tuple[Tensor, ...]:
    """Return weights, experts and slots of the best; no more tokens than may be have one outside the rank's group."""
    (logits,), top_k = inputs, attributes["top_k"]
    num_experts, axes = logits.shape[-1], (attributes["axis"],)
    numbers = torch.arange(num_experts, device=logits.device) * attributes["num_groups"] // num_experts
    own = context.index(axes) * attributes["num_groups"] // context.rank.mesh.degree(*axes)
    best = logits.max(-1)
    leaving, most = (numbers[best.indices] != own).flatten(), attributes["most_outside"]
    experts = logits.topk(top_k, -1).indices
    if int(leaving.sum()) > most:
        experts = logits.masked_fill(numbers != own, -torch.inf).topk(top_k, -1).indices
        chosen = best.values.flatten().masked_fill(~leaving, -torch.inf).topk(most).indices
        experts.view(-1, top_k)[chosen, -1] = best.indices.flatten()[chosen]
    return choice_weights(logits, experts), *numbered(experts, num_experts, attributes)


def route_mixed(_: KernelContext, inputs: Sequence[Tensor], attributes: Attributes) -> tuple[Tensor, ...]:
    """Return weights, experts and slots of the best in the group of the largest share, and the slots in the groups."""
    (logits,), num_groups = inputs, attributes["num_groups"]
    num_experts = logits.shape[-1]
    group = logits.softmax(-1).view(*logits.shape[:-1], num_groups, -1).sum(-1).argmax(-1, keepdim=True)
    of_group = first_come_slots(group, num_groups, attributes["group_capacity"])
    numbers = torch.arange(num_experts, device=logits.device) * num_groups // num_experts
    experts = logits.masked_fill(numbers != group, -torch.inf).topk(attributes["top_k"], -1).indices
    sent = torch.where(of_group < num_groups * attributes["group_capacity"], experts, num_experts)
    slots = first_come_slots(sent, num_experts, attributes["capacity"])
    return choice_weights(logits, experts), experts.to(torch.int32), slots, of_group


def dispatch_slots(_: KernelContext, inputs: Sequence[Tensor], attributes: Attributes) -> tuple[Tensor, ...]:
    """Return the slots of tokens at the places of these in their groups; at empty places the number of no slot."""
    (slots, of_group), num_places = inputs, attributes["num_experts"] * attributes["capacity"]
    filled = slots.new_full((num_places + 1, slots.shape[-1]), attributes["num_slots"])
    filled[of_group.flatten().long()] = slots.flatten(0, -2)
    return (filled[:num_places].clone().view(attributes["num_experts"], attributes["capacity"], -1),)


def own_slots(_: KernelContext, inputs: Sequence[Tensor], attributes: Attributes) -> tuple[Tensor, ...]:
    """Return slots as the rank of the experts numbers them: those of source ranks follow each other in an expert."""
    (slots,), parts = inputs, attributes["parts"]
    num_own, of_source = attributes["num_experts"], attributes["capacity"] // parts
    sources = torch.arange(slots.shape[1], device=slots.device)[:, None] // (slots.shape[1] // parts)
    numbers = slots // of_source % num_own * attributes["capacity"] + sources * of_source + slots % of_source
    is_one = slots < num_own * parts * of_source
    return (torch.where(is_one, numbers, num_own * attributes["capacity"]).to(torch.int32),)


def route_hash(context: KernelContext, inputs: Sequence[Tensor], attributes: Attributes) -> tuple[Tensor, ...]:
    """Return the weight 1, the fixed expert of every token id, and its slot."""
    (ids,), num_experts = inputs, attributes["num_experts"]
    experts = hashed_experts(context.rank.seed, attributes["salt"], ids, num_experts)[..., None]
    weights = torch.ones(experts.shape, dtype=DTYPES[attributes["dtype"]], device=ids.device)
    return weights, experts.to(torch.int32), first_come_slots(experts, num_experts, attributes["capacity"])


EXPERT_GATE_KERNELS: Final[Mapping[str, KernelFunction]] = MappingProxyType(
    {
        "route_gshard": route_gshard,
        "route_expert_choice": route_expert_choice,
        "route_dense_to_sparse": route_dense_to_sparse,
        "route_softmax_backward": route_softmax_backward,
        "route_biased": route_biased,
        "route_biased_backward": route_biased_backward,
        "count_choices": count_choices,
        "update_bias": update_bias,
        "route_near": route_near,
        "route_mixed": route_mixed,
        "dispatch_slots": dispatch_slots,
        "own_slots": own_slots,
        "route_base": route_base,
        "route_hash": route_hash,
    }
)
