"""Clover's and Clover-2's heads: a cell of attention carries a state from token to token (Xiao et al. 2024)."""

from collections.abc import Iterable
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from backends.torch.decoding.decoder import Cache, Decoder, DecoderLayer, DecoderSpec
from backends.torch.decoding.heads.draft_heads import HeadsInTurn, ResidualBlock, unit_rows


class AttentionCell(nn.Module):
    """Clover's attention decoder: a token's embedding goes into a state.

    Per attention head the cosine of query and key weighs the value, and the sum is added to the state. The paper leaves
    that weight open; the cosine is that of Clover-2's code. At first the state stays as it is.
    """

    def __init__(self, spec: DecoderSpec) -> None:
        super().__init__()
        width, self.spec = spec.hidden_size, spec
        self.norm = nn.RMSNorm(width, 1e-5)
        self.query, self.key, self.value = (nn.Linear(width, width, bias=False) for _ in range(3))
        for linear in (self.query, self.key):
            noise = torch.randn(width, width) * 0.02
            linear.weight.data.copy_(torch.eye(width) + noise)
        nn.init.zeros_(self.value.weight)

    def forward(self, state: Tensor, embedded: Tensor) -> Tensor:
        """Return the next states [..., width] after tokens of these embeddings [..., width]."""
        shape = (self.spec.num_heads, self.spec.head_size)
        q, k, v = (
            linear(x).unflatten(-1, shape)
            for linear, x in ((self.query, self.norm(state)), (self.key, embedded), (self.value, embedded))
        )
        found: Tensor = state + (functional.cosine_similarity(q, k, dim=-1)[..., None] * v).flatten(-2)
        return found


class CloverHeads(HeadsInTurn):
    """Heads behind a transformer layer of their own (the augmenting block), which makes the first state.

    Embeddings are normalised rows of the target's output layer, which all heads share.
    """

    def __init__(self, decoder: Decoder, num_heads: int) -> None:
        super().__init__()
        self.num_depths = num_heads
        self.augmenting = _last_layer(decoder)
        self.cell = AttentionCell(decoder.spec)
        self.blocks = nn.ModuleList(ResidualBlock(decoder.spec.hidden_size) for _ in range(num_heads))
        self.output = nn.Buffer(decoder.head.weight.detach().clone())
        self.embedding = nn.Buffer(unit_rows(decoder.head.weight))

    def first_states(self, hidden: Tensor, following: Tensor, memory: Cache | None) -> Tensor:
        """Return the augmented states; the tokens that follow are not read."""
        del following
        return _through_layers([self.augmenting], hidden, memory)

    def step(self, depth: int, state: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return the next states [..., width] and logits [..., vocabulary] after these tokens [...]."""
        state = self.cell(state, self.embedding[tokens])
        return state, functional.linear(self.blocks[depth](state), self.output)


class Clover2Heads(HeadsInTurn):
    """Clover-2: the next token also enters before the augmenting block, which has two layers.

    A projection of state and embedding takes the place of Clover's blocks. The heads learn the target's distributions.
    """

    distilled: ClassVar[bool] = True

    def __init__(self, decoder: Decoder, num_heads: int) -> None:
        super().__init__()
        width, self.num_depths = decoder.spec.hidden_size, num_heads
        self.first_cell, self.cell = AttentionCell(decoder.spec), AttentionCell(decoder.spec)
        self.augmenting = nn.ModuleList(_last_layer(decoder) for _ in range(2))
        projections = [nn.Linear(2 * width, width, bias=False) for _ in range(num_heads)]
        for projection in projections:
            projection.weight.data.copy_(torch.eye(width, 2 * width))
        self.projections = nn.ModuleList(projections)
        self.output = nn.Buffer(decoder.head.weight.detach().clone())
        self.embedding = nn.Buffer(unit_rows(decoder.head.weight))

    def first_states(self, hidden: Tensor, following: Tensor, memory: Cache | None) -> Tensor:
        """Return the augmented states of hidden states that have seen the token after them."""
        seen = self.first_cell(hidden, self.embedding[following])
        return _through_layers(self.augmenting, seen, memory)

    def step(self, depth: int, state: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return the next states [..., width] and logits [..., vocabulary] after these tokens [...]."""
        embedded = self.embedding[tokens]
        state = self.cell(state, embedded)
        guessed = self.projections[depth](torch.cat((state, embedded), dim=-1))
        return state, functional.linear(guessed, self.output)


def _last_layer(decoder: Decoder) -> DecoderLayer:
    """Return a layer that begins as the decoder's last one."""
    layer = DecoderLayer(decoder.spec)
    layer.load_state_dict(decoder.layers[-1].state_dict())
    return layer


def _through_layers(layers: Iterable[nn.Module], states: Tensor, memory: Cache | None) -> Tensor:
    """Return the output of causal layers [batch, places, width] at places after those in the memory."""
    count, before = states.shape[1], 0 if memory is None else len(memory)
    mask = torch.ones(count, before + count, dtype=torch.bool).tril(before)
    for index, layer in enumerate(layers):
        states = layer(states, torch.arange(count) + before, mask, memory, index)
    return states
