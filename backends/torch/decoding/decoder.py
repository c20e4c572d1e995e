"""A small decoder-only language model, with a cache of keys and values and any mask of attention.

Root-mean-square norms, rotary positions, SwiGLU, as in Touvron et al. 2023 (LLaMA). It serves to run decoding methods
for real; the models that plans train are laid out in ``sim/training``.
"""

from dataclasses import dataclass, field
from typing import Final, cast

import torch
from msgspec import Struct
from torch import Tensor, nn
from torch.nn import functional

_ROTARY_BASE: Final = 10_000.0


class DecoderSpec(Struct, frozen=True, kw_only=True):
    """The sizes of a decoder."""

    vocab_size: int
    hidden_size: int = 128
    num_layers: int = 4
    num_heads: int = 4

    @property
    def head_size(self) -> int:
        """Return the width of an attention head."""
        return self.hidden_size // self.num_heads


@dataclass(slots=True)
class Cache:
    """Keys and values of each layer [batch, heads, tokens, head size]; empty at first."""

    keys: dict[int, Tensor] = field(default_factory=dict)
    values: dict[int, Tensor] = field(default_factory=dict)

    def __len__(self) -> int:
        return self.keys[0].shape[2] if self.keys else 0

    def extend(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Add rows to a layer; return all of its keys and values."""
        if layer in self.keys:
            keys = torch.cat((self.keys[layer], keys), dim=2)
            values = torch.cat((self.values[layer], values), dim=2)
        self.keys[layer], self.values[layer] = keys, values
        return keys, values

    def keep(self, length: int, rows: tuple[int, ...] = ()) -> None:
        """Keep the first rows, and of those after them the named ones, moved together: compaction after a step."""
        kept = torch.tensor([*range(length), *(length + row for row in rows)])
        for held in (self.keys, self.values):
            for layer, tensor in held.items():
                held[layer] = tensor.index_select(2, kept)


class DecoderLayer(nn.Module):
    """Attention and an MLP, each after a norm and beside a residual."""

    def __init__(self, spec: DecoderSpec) -> None:
        super().__init__()
        width, self.spec = spec.hidden_size, spec
        self.attention_norm, self.mlp_norm = nn.RMSNorm(width, 1e-5), nn.RMSNorm(width, 1e-5)
        self.qkv, self.output = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.gate_up, self.down = nn.Linear(width, 6 * width, bias=False), nn.Linear(3 * width, width, bias=False)

    def forward(self, x: Tensor, positions: Tensor, mask: Tensor, cache: Cache | None, layer: int) -> Tensor:
        """Return the layer's output [batch, tokens, width]. ``mask`` [tokens, cached + tokens]: true where one sees."""
        x = self.attended(x, positions, mask, cache, layer)
        gate, up = self.gate_up(self.mlp_norm(x)).chunk(2, dim=-1)
        return cast("Tensor", x + self.down(functional.silu(gate) * up))

    def attended(self, x: Tensor, positions: Tensor, mask: Tensor, cache: Cache | None, layer: int) -> Tensor:
        """Return x with what attention adds to it."""
        heads = self.qkv(self.attention_norm(x)).unflatten(-1, (3, self.spec.num_heads, self.spec.head_size))
        q, k, v = heads.permute(2, 0, 3, 1, 4)
        q, k = rotated(q, positions), rotated(k, positions)
        if cache is not None:
            k, v = cache.extend(layer, k, v)
        mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return cast("Tensor", x + self.output(mixed.transpose(1, 2).flatten(2)))


class Decoder(nn.Module):
    """The whole model. Its last hidden states, after the last norm, are what drafts build on."""

    def __init__(self, spec: DecoderSpec) -> None:
        super().__init__()
        self.spec = spec
        self.embedding = nn.Embedding(spec.vocab_size, spec.hidden_size)
        self.layers = nn.ModuleList(DecoderLayer(spec) for _ in range(spec.num_layers))
        self.norm = nn.RMSNorm(spec.hidden_size, 1e-5)
        self.head = nn.Linear(spec.hidden_size, spec.vocab_size, bias=False)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02 * (128 / spec.hidden_size) ** 0.5)

    def forward(
        self, tokens: Tensor, cache: Cache | None = None, depths: Tensor | None = None, ancestors: Tensor | None = None
    ) -> Tensor:
        """Return the last hidden states [batch, tokens, width] of tokens [batch, tokens] after those in the cache.

        A tree states ``depths`` [tokens] below the cached tokens and ``ancestors`` [tokens, tokens], who sees whom;
        without them tokens follow one after the other.
        """
        count, before = tokens.shape[1], 0 if cache is None else len(cache)
        if depths is None or ancestors is None:
            depths, ancestors = torch.arange(count), torch.ones(count, count, dtype=torch.bool).tril()
        mask = torch.cat((torch.ones(count, before, dtype=torch.bool), ancestors), dim=1)
        x = self.embedding(tokens)
        for index, layer in enumerate(self.layers):
            x = layer(x, depths + before, mask, cache, index)
        found: Tensor = self.norm(x)
        return found


def rotated(x: Tensor, positions: Tensor) -> Tensor:
    """Return vectors [..., tokens, head size] turned by their positions [tokens] (Su et al. 2021, RoFormer)."""
    half = x.shape[-1] // 2
    rates = _ROTARY_BASE ** (-torch.arange(half, dtype=x.dtype) / half)
    angles = positions.to(x.dtype)[:, None] * rates
    first, second = x.chunk(2, dim=-1)
    sine, cosine = angles.sin(), angles.cos()
    return torch.cat((first * cosine - second * sine, first * sine + second * cosine), dim=-1)
