"""Medusa's heads: side by side, so that none knows what another one guesses (Cai et al. 2024)."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor, nn

from backends.torch.decoding.decoder import Decoder
from backends.torch.decoding.heads.draft_heads import DraftHeads, Guesser, ResidualBlock
from backends.torch.decoding.step import Step, numbers
from sim.serving.decoding.draft_tree import Floats, probabilities
from sim.serving.decoding.growth import Node


def own_outputs(decoder: Decoder, count: int) -> nn.ModuleList:
    """Return output layers that begin as the decoder's."""
    heads = [nn.Linear(decoder.spec.hidden_size, decoder.spec.vocab_size, bias=False) for _ in range(count)]
    for head in heads:
        head.weight.data.copy_(decoder.head.weight.data)
    return nn.ModuleList(heads)


class MedusaHeads(DraftHeads):
    """Heads with a block and an output layer each, on a decoder that stays as it is (Medusa-1)."""

    def __init__(self, decoder: Decoder, num_heads: int) -> None:
        super().__init__()
        self.num_depths = num_heads
        self.blocks = nn.ModuleList(ResidualBlock(decoder.spec.hidden_size) for _ in range(num_heads))
        self.heads = own_outputs(decoder, num_heads)

    def forward(self, hidden: Tensor, following: Tensor) -> list[Tensor]:
        """Return each head's logits [..., vocabulary] from hidden states [..., width]; ``following`` is not read."""
        del following
        return [head(block(hidden)) for block, head in zip(self.blocks, self.heads, strict=True)]

    def guesser(self) -> Guesser:
        """Return a guesser that knows no text yet."""
        return _MedusaGuesser(self)


@dataclass(slots=True)
class _MedusaGuesser:
    """Guesses for one depth are the same below every node."""

    heads: MedusaHeads
    _chances: list[Floats] = field(default_factory=list)

    def settle(self, step: Step) -> None:
        """Run all heads on the last state."""
        last = step.hidden[-1]
        self._chances = [probabilities(numbers(logits), 1.0) for logits in self.heads(last, last)]

    def after(self, depth: int, frontier: Sequence[Node]) -> Floats:
        """Return the probabilities of this depth, for every node."""
        return np.broadcast_to(self._chances[depth], (len(frontier), len(self._chances[depth])))
