"""A small decoder whose MLPs are experts, with a Switch or a dense-to-sparse gate. For training on a CPU.

All experts compute all tokens, and the gate's weights choose among the results: the numbers are those of a sparse layer
without slots, at the price of a dense one.
"""

from typing import Literal, cast

import torch
from msgspec import Struct
from torch import Tensor, nn
from torch.nn import functional

from backends.torch.decoding.decoder import Cache, Decoder, DecoderLayer, DecoderSpec
from sim.moe.dense_to_sparse import THRESHOLD, DenseToSparse

Gate = Literal["switch", "dense_to_sparse"]


class MixtureSpec(Struct, frozen=True, kw_only=True):
    """Sizes of the experts, their gate and the coefficient of its balance loss.

    ``schedule``: of the dense-to-sparse gate; its ``decay_steps`` and ``hard_after`` count steps of this training.
    """

    num_experts: int
    ffn_hidden_size: int
    gate: Gate
    balance_loss: float
    schedule: DenseToSparse


class Experts(nn.Module):
    """Experts with SwiGLU in the place of an MLP.

    ``step``: that of the training, from which the temperature follows. After a call ``balance`` is the balance loss and
    ``active_experts`` the mean number of experts that a token chose.
    """

    def __init__(self, width: int, spec: MixtureSpec) -> None:
        super().__init__()
        self.spec, self.schedule, self.active_experts, self.balance = spec, spec.schedule, 1.0, torch.zeros(())
        self.router = nn.Linear(width, spec.num_experts, bias=False)
        self.gate_up = nn.Parameter(0.03 * torch.randn(spec.num_experts, width, 2 * spec.ffn_hidden_size))
        self.down = nn.Parameter(0.03 * torch.randn(spec.num_experts, spec.ffn_hidden_size, width))

    def weights(self, scores: Tensor) -> Tensor:
        """Return the weight of every expert [..., E], 0 for those that a token does not choose."""
        if self.spec.gate == "switch":
            shares = scores.softmax(-1)
            return shares * functional.one_hot(shares.argmax(-1), self.spec.num_experts)
        noise = -torch.empty_like(scores).exponential_().log() if self.training else torch.zeros_like(scores)
        shares = ((scores + noise) / self.schedule.temperature).softmax(-1)
        if self.schedule.is_hard:
            return shares * functional.one_hot(shares.argmax(-1), self.spec.num_experts)
        return shares * (shares > THRESHOLD)

    def forward(self, x: Tensor) -> Tensor:
        """Return the weighted outputs of the chosen experts for tokens [batch, tokens, width]."""
        scores = self.router(x)
        weights = self.weights(scores)
        chosen = (weights > 0.0).to(x.dtype)
        self.active_experts = float(chosen.sum(-1).mean())
        parts = chosen.mean((0, 1)) / chosen.mean((0, 1)).sum()
        self.balance = self.spec.num_experts * (parts * scores.softmax(-1).mean((0, 1))).sum()
        gate, up = torch.einsum("bth,ehf->btef", x, self.gate_up).chunk(2, dim=-1)
        return torch.einsum("btef,efh,bte->bth", functional.silu(gate) * up, self.down, weights)


class MixtureLayer(DecoderLayer):
    """Attention and experts, each after a norm and beside a residual."""

    def __init__(self, spec: DecoderSpec, mixture: MixtureSpec) -> None:
        super().__init__(spec)
        del self.gate_up, self.down
        self.experts = Experts(spec.hidden_size, mixture)

    def forward(self, x: Tensor, positions: Tensor, mask: Tensor, cache: Cache | None, layer: int) -> Tensor:
        """Return the layer's output [batch, tokens, width]."""
        x = self.attended(x, positions, mask, cache, layer)
        return cast("Tensor", x + self.experts(self.mlp_norm(x)))


class Mixture(Decoder):
    """The whole model; ``experts`` are those of all layers."""

    def __init__(self, spec: DecoderSpec, mixture: MixtureSpec) -> None:
        super().__init__(spec)
        self.layers = nn.ModuleList(MixtureLayer(spec, mixture) for _ in range(spec.num_layers))
        self.experts = [layer.experts for layer in self.layers if isinstance(layer, MixtureLayer)]

    def loss(self, tokens: Tensor) -> Tensor:
        """Return the mean cross entropy, in nats, of the next of tokens [batch, tokens + 1]."""
        logits = self.head(self(tokens[:, :-1]))
        return functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
