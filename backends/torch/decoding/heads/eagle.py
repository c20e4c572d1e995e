"""EAGLE's draft: a layer that guesses the next hidden state, again and again (Li et al. 2024)."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from backends.torch.decoding.decoder import Cache, Decoder, DecoderLayer
from backends.torch.decoding.heads.draft_heads import DraftHeads, Guesser, pairs, unit_rows
from backends.torch.decoding.step import Step, numbers
from sim.serving.decoding.draft_tree import Floats, probabilities
from sim.serving.decoding.growth import Node
from sim.serving.decoding.tree import Path


class EagleHeads(DraftHeads):
    """A projection of a state and the next token's embedding to one vector, and a transformer layer.

    The layer's output stands for the next hidden state: the target's output layer makes logits of it, and the layer
    runs again on it and on a guessed token. Here it learns from its own outputs at all depths, as in EAGLE-3 (Li et al.
    2025); EAGLE-1 trained the first alone, with noise on its inputs.
    """

    distilled: ClassVar[bool] = True

    def __init__(self, decoder: Decoder, num_depths: int) -> None:
        super().__init__()
        width, self.num_depths = decoder.spec.hidden_size, num_depths
        self.projection = nn.Linear(2 * width, width, bias=False)
        self.projection.weight.data.copy_(torch.eye(width, 2 * width))
        self.layer = DecoderLayer(decoder.spec)
        self.layer.load_state_dict(decoder.layers[-1].state_dict())
        self.output = nn.Buffer(decoder.head.weight.detach().clone())
        self.embedding = nn.Buffer(unit_rows(decoder.embedding.weight))

    def forward(self, hidden: Tensor, following: Tensor) -> list[Tensor]:
        """Return each depth's logits; see ``DraftHeads``. A place sees its own guessed states of the depths before."""
        count, memory, found = hidden.shape[1], Cache(), []
        mask, own = torch.ones(count, count, dtype=torch.bool).tril(), torch.eye(count, dtype=torch.bool)
        for depth in range(self.num_depths):
            hidden = self.next_states(hidden, following[depth], torch.arange(count) + depth, mask, memory)
            found.append(self.logits(hidden))
            mask = torch.cat((mask, own), dim=1)
        return found

    def next_states(self, states: Tensor, tokens: Tensor, positions: Tensor, mask: Tensor, memory: Cache) -> Tensor:
        """Return the states [batch, places, width] after states of that shape and tokens [batch, places].

        ``mask`` [places, remembered + places]: true where one sees. The memory gets a row for each place.
        """
        joined = self.projection(torch.cat((states, self.embedding[tokens]), dim=-1))
        return cast("Tensor", self.layer(joined, positions, mask, memory, 0))

    def logits(self, states: Tensor) -> Tensor:
        """Return the target's logits [..., vocabulary] of guessed states [..., width]."""
        return functional.linear(states, self.output)

    def guesser(self) -> Guesser:
        """Return a guesser that knows no text yet."""
        return _EagleGuesser(self)


@dataclass(slots=True)
class _EagleGuesser:
    """Guesses of a layer whose memory has a row for each settled token, and during a draft one for each guessed state.

    ``_states``: the guessed state after each node; ``_rows``: the rows of the nodes on the way to it, below the root.
    """

    heads: EagleHeads
    _memory: Cache = field(default_factory=Cache)
    _num_settled: int = 0
    _settled: tuple[Step, ...] = ()
    _states: dict[Path, Tensor] = field(default_factory=dict)
    _rows: dict[Path, tuple[int, ...]] = field(default_factory=dict)

    def settle(self, step: Step) -> None:
        """Keep the step until its next token is known, and drop the rows of guessed states."""
        self._settled = (step,)
        if len(self._memory) > self._num_settled:
            self._memory.keep(self._num_settled)

    def after(self, depth: int, frontier: Sequence[Node]) -> Floats:
        """Return the probabilities after each node; see ``Guesser``."""
        before, count = len(self._memory), len(frontier)
        if depth:
            states = torch.stack([self._states[node.path[:-1]] for node in frontier])[None]
            tokens = torch.tensor([[node.token for node in frontier]])
            rows = [(*self._rows[node.path[:-1]], before + place) for place, node in enumerate(frontier)]
            mask = torch.zeros(count, before + count, dtype=torch.bool)
            mask[:, : self._num_settled] = True
            for place, seen in enumerate(rows):
                mask[place, list(seen)] = True
            positions = torch.full((count,), self._num_settled - 1 + depth)
        else:
            states, tokens = pairs(self._settled[0], frontier[0].token)
            self._num_settled += states.shape[1]
            rows = [()]
            mask = torch.ones(states.shape[1], self._num_settled, dtype=torch.bool).tril(before)
            positions = torch.arange(before, self._num_settled)
        found = self.heads.next_states(states, tokens, positions, mask, self._memory)[0, -count:]
        for node, state, seen in zip(frontier, found, rows, strict=True):
            self._states[node.path], self._rows[node.path] = state, seen
        return probabilities(numbers(self.heads.logits(found)), 1.0)
