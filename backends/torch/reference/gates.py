"""Gates of the dense reference. Each returns tables [token, expert] of the experts' weights and slots.

They are written from the gates' definitions, token by token and expert by expert, without the plan's kernels.
"""

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from types import MappingProxyType
from typing import Final

import numpy as np
import torch
from msgspec import Struct
from scipy.optimize import linprog
from torch import Tensor
from torch.nn import functional as nn

from sim.moe.choices import forced_choices
from sim.moe.dense_to_sparse import THRESHOLD
from sim.training.gates.near_experts import SwitchAndMixture
from sim.training.gates.other_rules import schedule_of
from sim.training.gates.registry import ExpertGate
from sim.training.spec.models.experts import ExpertsSpec


class GateInputs(Struct, frozen=True):
    """Inputs of gates besides scores, for all tokens [s, b] or for one rank's tokens [T].

    ``hashed``: the fixed expert of each token's id (gate ``hash``).
    ``draws``: one random number from 0 to 1 per token (gate ``gshard``).
    ``noise``: Gumbel noise per token and expert, [s, b, E] or [T, E] (gate ``dense_to_sparse``).
    ``bias``: of every expert, [E] (gate ``bias``).
    ``homes``: the place of each data-parallel rank among those that share out experts, from 0 to 1 (gate
        ``topology_aware``); of some tokens, of their rank alone.
    """

    hashed: Tensor
    draws: Tensor
    noise: Tensor
    bias: Tensor
    homes: tuple[Fraction, ...] = (Fraction(0),)

    def of(self, tokens: Tensor, samples: slice, turn: int) -> "GateInputs":
        """Return the inputs of tokens at these positions of these samples, [T] or [T, E], ordered by position.

        ``turn``: the number of the micro-batch; data-parallel ranks take them in turn.
        """
        hashed, draws, noise = (x[tokens, samples].flatten(0, 1) for x in (self.hashed, self.draws, self.noise))
        return GateInputs(hashed, draws, noise, self.bias, (self.homes[turn % len(self.homes)],))


class ExpertWeights(Struct, frozen=True):
    """The result of a gate, as tables [T, E] of tokens and experts.

    ``values``: weight of the expert's output. ``kept``: the expert has a slot for the token.
    ``asked``: the choice counts in the balance loss.
    """

    values: Tensor
    kept: Tensor
    asked: Tensor


def weights_of_experts(spec: ExpertsSpec, scores: Tensor, inputs: GateInputs, forced: Sequence[int]) -> ExpertWeights:
    """Return the gate's result for scores[T, E]. ``forced``: choices per expert, which then ignore the scores."""
    return DEFINITIONS[spec.gate](spec, scores, inputs, forced)


def _best(spec: ExpertsSpec, scores: Tensor, _: GateInputs, forced: Sequence[int]) -> ExpertWeights:
    if forced:
        chosen = torch.from_numpy(forced_choices(forced, len(scores), spec.gating.limit(spec))).to(scores.device)
    elif spec.routing == "balanced":
        turns = torch.arange(len(scores) * spec.top_k, device=scores.device)
        chosen = (turns % spec.num_experts).view(len(scores), -1)
    else:
        chosen = _largest(scores, spec.top_k)
    return _served(spec, chosen, _renormalised(scores, chosen))


def _gshard(spec: ExpertsSpec, scores: Tensor, inputs: GateInputs, _: Sequence[int]) -> ExpertWeights:
    chosen = _largest(scores, 2)
    weights = _renormalised(scores, chosen)
    sent = torch.stack([torch.ones_like(inputs.draws, dtype=torch.bool), inputs.draws < 2.0 * weights[:, 1]], 1)
    found = _served(spec, chosen, weights, sent)
    return ExpertWeights(found.values, found.kept, nn.one_hot(chosen[:, 0], spec.num_experts))


def _k_top_1(spec: ExpertsSpec, scores: Tensor, _: GateInputs, _forced: Sequence[int]) -> ExpertWeights:
    size = spec.num_experts // spec.top_k
    found = [part.softmax(1).max(1) for part in torch.split(scores, size, 1)]
    chosen = torch.stack([best.indices + group * size for group, best in enumerate(found)], 1)
    return _served(spec, chosen, torch.stack([best.values for best in found], 1))


def _group_limited(spec: ExpertsSpec, scores: Tensor, inputs: GateInputs, forced: Sequence[int]) -> ExpertWeights:
    if forced:
        return _best(spec, scores, inputs, forced)
    chosen = _largest(_of_best_groups(spec, scores), spec.top_k)
    return _served(spec, chosen, _renormalised(scores, chosen))


def _of_best_groups(spec: ExpertsSpec, scores: Tensor) -> Tensor:
    """Return the scores of experts in the best groups, and minus infinity elsewhere."""
    size, counted = spec.num_experts // spec.num_groups, max(1, spec.top_k // spec.top_groups)
    parts = torch.split(scores, size, 1)
    sums = torch.stack([part.sort(1, descending=True).values[:, :counted].sum(1) for part in parts], 1)
    least = sums.sort(1, descending=True).values[:, spec.top_groups - 1, None]
    return torch.where((sums >= least).repeat_interleave(size, 1), scores, -torch.inf)


def _biased(spec: ExpertsSpec, scores: Tensor, inputs: GateInputs, _forced: Sequence[int]) -> ExpertWeights:
    shares = torch.sigmoid(scores)
    allowed = _of_best_groups(spec, shares + inputs.bias)
    chosen = _largest(allowed, spec.top_k)
    weights = shares.gather(1, chosen)
    return _served(spec, chosen, weights / weights.sum(1, keepdim=True) if spec.top_k > 1 else weights)


def _expert_choice(spec: ExpertsSpec, scores: Tensor, _: GateInputs, _forced: Sequence[int]) -> ExpertWeights:
    shares, capacity = scores.softmax(1), spec.capacity(len(scores))
    places = shares.argsort(0, descending=True).argsort(0)  # rank of each token among all tokens, by expert
    return ExpertWeights(shares, places < capacity, places < capacity)


def _dense_to_sparse(spec: ExpertsSpec, scores: Tensor, inputs: GateInputs, _forced: Sequence[int]) -> ExpertWeights:
    schedule = schedule_of(spec)
    weights = nn.softmax((scores + inputs.noise) / schedule.temperature, 1)
    best = nn.one_hot(weights.argmax(1), spec.num_experts).bool()
    active = best if schedule.is_hard else weights > THRESHOLD
    return ExpertWeights(weights, active & (active.cumsum(0) <= spec.capacity(len(scores))), active)


def _base(spec: ExpertsSpec, scores: Tensor, _: GateInputs, _forced: Sequence[int]) -> ExpertWeights:
    """Solve the linear program of a transport from tokens, one each, to experts, at most their slots each."""
    num_tokens, num_experts = scores.shape
    of_token = np.repeat(np.eye(num_tokens), num_experts, axis=1)
    of_expert = np.tile(np.eye(num_experts), num_tokens)
    found = linprog(
        -scores.detach().cpu().numpy().ravel(), A_eq=of_token, b_eq=np.ones(num_tokens),
        A_ub=of_expert, b_ub=np.full(num_experts, spec.capacity(num_tokens)),
    )  # fmt: skip
    chosen = torch.from_numpy(found.x.reshape(num_tokens, num_experts).argmax(1)).to(scores.device)[:, None]
    return _served(spec, chosen, _renormalised(scores, chosen))


def _topology_aware(spec: ExpertsSpec, scores: Tensor, inputs: GateInputs, forced: Sequence[int]) -> ExpertWeights:
    """Go through the tokens that score an expert outside best, from the highest score on, as long as one may leave."""
    size, own = spec.num_experts // spec.num_groups, int(inputs.homes[0] * spec.num_groups)
    outside = [token for token, best in enumerate(scores.argmax(1).tolist()) if best // size != own]
    most = int(Fraction(str(spec.remote_share)) * len(scores))
    if forced or len(outside) <= most:
        return _best(spec, scores, inputs, forced)
    chosen = own * size + _largest(scores[:, own * size : (own + 1) * size], spec.top_k)
    for token in sorted(outside, key=lambda token: -float(scores[token].detach().max()))[:most]:
        chosen[token, -1] = scores[token].argmax()
    return _served(spec, chosen, _renormalised(scores, chosen))


def _sam(spec: ExpertsSpec, scores: Tensor, _: GateInputs, _forced: Sequence[int]) -> ExpertWeights:
    size, gate = spec.num_experts // spec.num_groups, spec.gating
    assert isinstance(gate, SwitchAndMixture)
    shares = torch.stack([part.sum(1) for part in torch.split(scores.softmax(1), size, 1)], 1)
    of_group = nn.one_hot(shares.argmax(1), spec.num_groups)
    arrives = (of_group * (of_group.cumsum(0) <= gate.group_capacity(spec, len(scores)))).sum(1)
    inside = torch.where(of_group.repeat_interleave(size, 1).bool(), scores, -torch.inf)
    chosen = _largest(inside, spec.top_k)
    return _served(spec, chosen, _renormalised(scores, chosen), arrives[:, None].expand(chosen.shape))


def _hash(spec: ExpertsSpec, scores: Tensor, inputs: GateInputs, _forced: Sequence[int]) -> ExpertWeights:
    chosen = inputs.hashed[:, None]
    return _served(spec, chosen, torch.ones_like(scores[:, :1]))


_Gate = Callable[[ExpertsSpec, Tensor, GateInputs, Sequence[int]], ExpertWeights]
DEFINITIONS: Final[Mapping[ExpertGate, _Gate]] = MappingProxyType(
    {
        "top_k": _best, "switch": _best, "gshard": _gshard, "k_top_1": _k_top_1, "group_limited": _group_limited,
        "expert_choice": _expert_choice, "dense_to_sparse": _dense_to_sparse, "hash": _hash,
        "base": _base, "bias": _biased, "topology_aware": _topology_aware, "sam": _sam,
    }
)  # fmt: skip


def _largest(scores: Tensor, count: int) -> Tensor:
    return scores.argsort(-1, descending=True)[:, :count]


def _renormalised(scores: Tensor, chosen: Tensor) -> Tensor:
    """Return the softmax over the chosen experts [T, k]; for k = 1, the softmax over all experts at the chosen one."""
    weights = scores.softmax(-1).gather(1, chosen)
    return weights / weights.sum(1, keepdim=True) if chosen.shape[1] > 1 else weights


def _served(spec: ExpertsSpec, chosen: Tensor, weights: Tensor, sent: Tensor | None = None) -> ExpertWeights:
    """Return the tables of choices [T, k]. Slots go to all first choices, then to all second ones, in token order.

    ``sent``: mask of the choices that may get a slot; None: all may.
    """
    capacity = len(chosen) if spec.dispatch == "exact" else spec.capacity(len(chosen))
    in_turn = nn.one_hot(chosen.T.flatten(), spec.num_experts)
    if sent is not None:
        in_turn = in_turn * sent.T.flatten()[:, None]
    is_kept = (in_turn * (in_turn.cumsum(0) <= capacity)).view(chosen.shape[1], -1, spec.num_experts)
    kept = is_kept.sum(0).bool()
    values = torch.zeros(kept.shape, dtype=weights.dtype, device=weights.device).scatter(1, chosen, weights)
    return ExpertWeights(values, kept, nn.one_hot(chosen, spec.num_experts).sum(1))
