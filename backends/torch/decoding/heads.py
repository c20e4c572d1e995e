"""Draft heads on a decoder's last hidden states: Medusa's, which know nothing of each other, and Clover's.

Head k guesses the token k places after the next one. Training passes all places of a text at once; ``guess`` serves one
step of generation.
"""

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from backends.torch.decoding.decoder import Cache, Decoder, DecoderLayer


class ResidualBlock(nn.Module):
    """x + SiLU(W x), the identity at first (Cai et al. 2024)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width, bias=False)
        nn.init.zeros_(self.linear.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output, of the shape of its input."""
        return x + functional.silu(self.linear(x))


class MedusaHeads(nn.Module):
    """Heads side by side, each with a block and an output layer of its own (Cai et al. 2024, Medusa-1)."""

    def __init__(self, decoder: Decoder, num_heads: int) -> None:
        super().__init__()
        width, vocab_size = decoder.spec.hidden_size, decoder.spec.vocab_size
        self.blocks = nn.ModuleList(ResidualBlock(width) for _ in range(num_heads))
        heads = [nn.Linear(width, vocab_size, bias=False) for _ in range(num_heads)]
        for head in heads:
            head.weight.data.copy_(decoder.head.weight.data)
        self.heads = nn.ModuleList(heads)

    def forward(self, hidden: Tensor, following: Tensor) -> list[Tensor]:
        """Return each head's logits [..., vocabulary] from hidden states [..., width]; ``following`` is not read."""
        del following
        return [head(block(hidden)) for block, head in zip(self.blocks, self.heads, strict=True)]


class CloverHeads(nn.Module):
    """Heads in turn: each also sees the token that the one before it guessed (Xiao et al. 2024, Clover).

    A transformer layer of its own (the augmenting block) makes the first state. A cell carries it on: per attention
    head the cosine of query and key weighs the value, and the sum is added to the state. The paper leaves that weight
    open; the cosine is that of Clover-2's code. Embeddings are normalised rows of the target's output layer, which all
    heads share.
    """

    def __init__(self, decoder: Decoder, num_heads: int) -> None:
        super().__init__()
        spec = decoder.spec
        width, self.spec = spec.hidden_size, spec
        self.augmenting = DecoderLayer(spec)
        self.augmenting.load_state_dict(decoder.layers[-1].state_dict())
        self.norm = nn.RMSNorm(width, 1e-5)
        self.query, self.key, self.value = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.blocks = nn.ModuleList(ResidualBlock(width) for _ in range(num_heads))
        self.output = nn.Buffer(decoder.head.weight.detach().clone())
        self.embedding = nn.Buffer(functional.normalize(decoder.head.weight.detach(), dim=1) * width**0.5)
        for linear in (self.query, self.key):
            noise = torch.randn(width, width) * 0.02
            linear.weight.data.copy_(torch.eye(width) + noise)
        nn.init.zeros_(self.value.weight)

    def augmented(self, hidden: Tensor, cache: Cache | None = None) -> Tensor:
        """Return the first states [batch, tokens, width] of hidden states that follow those in the cache."""
        count, before = hidden.shape[1], 0 if cache is None else len(cache)
        mask = torch.ones(count, before + count, dtype=torch.bool).tril(before)
        return cast("Tensor", self.augmenting(hidden, torch.arange(count) + before, mask, cache, 0))

    def step(self, depth: int, state: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return the next states [..., width] and logits [..., vocabulary] after these tokens [...]."""
        embedded = self.embedding[tokens]
        shape = (self.spec.num_heads, self.spec.head_size)
        q, k, v = (
            linear(x).unflatten(-1, shape)
            for linear, x in ((self.query, self.norm(state)), (self.key, embedded), (self.value, embedded))
        )
        state = state + (functional.cosine_similarity(q, k, dim=-1)[..., None] * v).flatten(-2)
        return state, functional.linear(self.blocks[depth](state), self.output)

    def forward(self, hidden: Tensor, following: Tensor) -> list[Tensor]:
        """Return each head's logits [batch, tokens, vocabulary] where all tokens before are the true ones.

        ``hidden`` [batch, tokens, width]; ``following`` [heads, batch, tokens]: the next tokens, those after them, ...
        """
        state, found = self.augmented(hidden), []
        for depth in range(len(self.blocks)):
            state, logits = self.step(depth, state, following[depth])
            found.append(logits)
        return found
