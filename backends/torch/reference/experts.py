"""Expert layers of the dense reference. They process one expert after the other.

The slots of experts are counted as in the plan: over one rank's tokens of one micro-batch. A micro-batch is a run of
consecutive samples. A rank has all tokens of these samples; if ranks share sequences, it has two chunks of each.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional as nn

from backends.torch.reference.gates import GateInputs, weights_of_experts
from sim.training.spec.models.experts import ExpertsSpec
from sim.training.spec.models.model import TransformerSpec

Mlp = Callable[[Tensor, Tensor, Tensor], Tensor]
"""A function of tokens [T, h] and two weights: [h, f] or, with a gate, [h, 2, f], and [f, h]."""


class Operand(Protocol):
    """How a product takes an input; see ``DenseModel.operand``."""

    def __call__(self, x: Tensor, *, rows: int = 2, shared: int | None = None) -> Tensor:
        """Return the input."""


class Routed(NamedTuple):
    """The result of an expert layer: its output, its balance loss, and how many choices fell on each expert."""

    y: Tensor
    balance: Tensor
    asked: Tensor


def expert_shapes(model: TransformerSpec) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a layer's router and experts, by name within the layer."""
    spec, h = model.experts, model.hidden_size
    assert spec is not None
    gates = () if model.family == "gpt" else (2,)
    f, shared = spec.ffn_hidden_size, spec.shared_ffn_hidden_size
    shapes: dict[str, tuple[int, ...]] = {"router.weight": (h, spec.num_experts)} if spec.gating.has_scores else {}
    shapes |= {
        "experts.fc1.weight": (spec.num_experts, h, *gates, f), "experts.fc2.weight": (spec.num_experts, f, h),
    }  # fmt: skip
    if shared:
        shapes |= {"shared.fc1.weight": (h, *gates, shared), "shared.fc2.weight": (shared, h)}
    if "bias_update_rate" in spec.gating.options:
        shapes["router.bias"] = (spec.num_experts,)
    return shapes | ({"shared_gate.weight": (h, 1)} if spec.shared_gate else {})


def through_experts(
    model: TransformerSpec,
    p: Mapping[str, Tensor],
    x: Tensor,
    *,
    microbatch_size: int,
    chunks: Sequence[Sequence[int]],
    inputs: GateInputs,
    operand: Operand,
    forced: Sequence[Sequence[int]] = (),
) -> Routed:
    """Return the result of an expert layer with parameters ``p`` for x[s, b, h], all samples of a global batch.

    The balance loss is the mean over micro-batches and over the ranks that share their sequences.
    ``chunks``: numbers of the equal chunks of a sequence that each of these ranks has.
    ``inputs``: inputs [s, b] of the gate besides the scores. ``operand``: how a product takes an input.
    ``forced``: number of times that each data-parallel rank chooses each expert. Ranks take micro-batches in turn.
    """
    assert model.experts is not None
    act = {"gelu": _gelu, "swiglu": _swiglu, "geglu": _geglu}[model.activation]

    def mlp(x: Tensor, first: Tensor, second: Tensor) -> Tensor:
        return operand(act(operand(x, rows=1), first), rows=1, shared=1) @ second

    owned = _tokens_of_ranks(x.shape[0], chunks)
    in_order = torch.cat(owned).argsort()
    columns, every = [], []
    for turn, samples in enumerate(torch.split(x, microbatch_size, 1)):
        counts = forced[turn % len(forced)] if forced else ()
        columns_of = slice(turn * microbatch_size, (turn + 1) * microbatch_size)
        found = [
            _routed(model.experts, p, samples[tokens].flatten(0, 1), mlp, inputs.of(tokens, columns_of, turn), counts)
            for tokens in owned
        ]
        columns.append(torch.cat([of_rank.y.view(-1, *samples.shape[1:]) for of_rank in found])[in_order])
        every += found
    y = torch.cat(columns, 1)
    if "shared.fc1.weight" in p:
        shared = mlp(x.flatten(0, 1), p["shared.fc1.weight"], p["shared.fc2.weight"]).view_as(x)
        y = y + (shared * torch.sigmoid(x @ p["shared_gate.weight"]) if "shared_gate.weight" in p else shared)
    balance = torch.stack([of_rank.balance for of_rank in every]).mean()
    asked = torch.stack([of_rank.asked for of_rank in every]).sum(0)
    return Routed(y, model.experts.balance_loss * balance, asked)


def _tokens_of_ranks(num_tokens: int, chunks: Sequence[Sequence[int]]) -> list[Tensor]:
    """Return the positions of each rank's tokens in a sequence, given the rank's chunks."""
    tokens = torch.arange(num_tokens).tensor_split(sum(map(len, chunks)))
    return [torch.cat([tokens[index] for index in own]) for own in chunks]


def _routed(
    spec: ExpertsSpec,
    p: Mapping[str, Tensor],
    x: Tensor,
    mlp: Mlp,
    inputs: GateInputs,
    forced: Sequence[int],
) -> Routed:
    """Return the weighted sum of expert outputs for tokens x[T, h], over the experts with a slot for the token.

    The balance loss is E times the sum over experts of (mean share of the softmax) times (fraction of the choices). It
    is 1 if all experts are equally busy.
    """
    scores = x @ p["router.weight"] if spec.gating.has_scores else x.new_zeros(len(x), spec.num_experts)
    weights = weights_of_experts(spec, scores, inputs, forced)
    y = torch.zeros_like(x)
    for expert in range(spec.num_experts):
        tokens = weights.kept[:, expert].nonzero(as_tuple=True)[0]
        found = mlp(x[tokens], p["experts.fc1.weight"][expert], p["experts.fc2.weight"][expert])
        of_expert = weights.values[tokens, expert, None] * found
        y = y.index_add(0, tokens, of_expert)
    asked = weights.asked.sum(0)
    parts = asked.to(x.dtype) / asked.sum()
    return Routed(y, spec.num_experts * (scores.softmax(-1).mean(0) * parts).sum(), asked)


def _swiglu(x: Tensor, weight: Tensor) -> Tensor:
    gate, value = torch.einsum("th,hcf->ctf", x, weight)
    hidden: Tensor = nn.silu(gate) * value
    return hidden


def _geglu(x: Tensor, weight: Tensor) -> Tensor:
    gate, value = torch.einsum("th,hcf->ctf", x, weight)
    hidden: Tensor = nn.gelu(gate, approximate="tanh") * value
    return hidden


def _gelu(x: Tensor, weight: Tensor) -> Tensor:
    return nn.gelu(x @ weight, approximate="tanh")
