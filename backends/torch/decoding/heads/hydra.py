"""Hydra's heads: each reads the hidden state and all tokens on the path to its guess (Ankner et al. 2024)."""

import torch
from torch import Tensor, nn

from backends.torch.decoding.decoder import Cache, Decoder
from backends.torch.decoding.heads.draft_heads import HeadsInTurn, ResidualBlock, unit_rows
from backends.torch.decoding.heads.medusa import own_outputs


class HydraHeads(HeadsInTurn):
    """Heads whose block reads the last hidden state, and behind it the embeddings of the tokens on the path.

    A state is this growing vector. Embeddings are the target's, with rows of one length, since the target's own are
    short beside hidden states.
    """

    def __init__(self, decoder: Decoder, num_heads: int) -> None:
        super().__init__()
        width, self.num_depths = decoder.spec.hidden_size, num_heads
        self.blocks = nn.ModuleList(ResidualBlock(width, (head + 2) * width) for head in range(num_heads))
        self.heads = own_outputs(decoder, num_heads)
        self.embedding = nn.Buffer(unit_rows(decoder.embedding.weight))

    def first_states(self, hidden: Tensor, following: Tensor, memory: Cache | None) -> Tensor:
        """Return the hidden states; nothing else is read."""
        del following, memory
        return hidden

    def step(self, depth: int, state: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return states that are longer by these tokens' embeddings, and the head's logits."""
        state = torch.cat((state, self.embedding[tokens]), dim=-1)
        return state, self.heads[depth](self.blocks[depth](state))
